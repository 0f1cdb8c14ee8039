"""Single buffers of host memory: page-aligned, touched, pinned if asked for and possible."""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncckpt.events import logger

PAGE = mmap.PAGESIZE
CACHING = {"cuda", "xpu"}  # torch crashes if asked to empty the cache of an accelerator that registered none


class Buffer:
    """``nbytes`` bytes of host memory, seen as a torch tensor and as a numpy array (both uint8, one dimension)."""

    __slots__ = ("address", "array", "owner", "pinned", "tensor")

    def __init__(self, tensor: torch.Tensor, owner: Any, *, pinned: bool) -> None:
        self.tensor = tensor
        self.array: npt.NDArray[np.uint8] = tensor.numpy()
        self.address = tensor.data_ptr()
        self.owner, self.pinned = owner, pinned

    def free(self) -> None:
        """Give the memory back; the buffer must not be used after."""
        del self.tensor, self.array
        self.owner = None


def allocate(nbytes: int, *, pinned: bool) -> Buffer:
    """A buffer whose pages are all present. Falls back to pageable memory, with one warning, if pinning fails."""
    if pinned:
        try:
            return _pinned(nbytes)
        except RuntimeError as error:
            _warn_once(error)
    return _pageable(nbytes)


def _pageable(nbytes: int) -> Buffer:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    tensor.fill_(0)
    return Buffer(tensor, memory, pinned=False)


def _pinned(nbytes: int) -> Buffer:
    """Exactly a power of two where that is aligned: the caching host allocator rounds up to one."""
    whole = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    if whole.data_ptr() % PAGE:
        whole = torch.empty(nbytes + PAGE, dtype=torch.uint8, device="cpu", pin_memory=True)
    start = -whole.data_ptr() % PAGE
    tensor = whole[start : start + nbytes]
    tensor.fill_(0)
    return Buffer(tensor, whole, pinned=True)


def empty_pinned_cache() -> None:
    """Make torch give freed pinned memory back to the system; else it keeps it for the next pinned tensor."""
    accelerator = torch.accelerator.current_accelerator()
    empty = getattr(torch.accelerator, "empty_host_cache", None)  # not in every version of torch
    if empty is not None and accelerator is not None and accelerator.type in CACHING:
        empty()


class _Warned:
    yet = False


def _warn_once(error: RuntimeError) -> None:
    if not _Warned.yet:
        _Warned.yet = True
        logger.warning(
            "host memory cannot be pinned (%s); snapshots go through pageable memory, which is slower", error
        )
