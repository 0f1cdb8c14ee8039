"""Named ranges in the traces of torch.profiler, around what asyncckpt does in the training thread.

A ``record_function`` costs microseconds even when nobody looks; asking whether somebody does costs a tenth of one.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled

_NOTHING = nullcontext()


def profiled(name: str) -> AbstractContextManager[Any]:
    """A ``with`` around something names it in the trace; without a profiler it does nothing.

    Only in the training thread: torch.profiler leaves the ranges of background threads out by default.
    """
    return torch.profiler.record_function(name) if _watched() else _NOTHING


def _watched() -> bool:
    """Whether a profiler runs that this thread's ranges may go to.

    The flag is for profilers that any thread started (some record all threads), the call for those that have been
    started for this one without python knowing.
    """
    return torch.autograd.profiler._is_profiler_enabled or _profiler_enabled()  # noqa: SLF001
