"""Memory that a thread keeps between frames: fresh memory costs more than filling it, page by page.

``scratch`` is for what is used up before the next call. ``lent`` is for results: memory that nobody else refers to any
more, directly or through a view, is lent again.
"""

import sys
import threading

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
_KEPT = 24 << 20  # bytes of results that a thread remembers


class _Memory(threading.local):
    """One thread's named buffers, which grow to the largest size asked of them, and what it has lent."""

    def __init__(self) -> None:
        self.buffers: dict[str, Bytes] = {}
        self.lent: list[Bytes] = []


def _references(arrays: list[Bytes], k: int) -> int:
    return sys.getrefcount(arrays[k])


_memory = _Memory()
_OURS = _references([np.empty(1, np.uint8)], 0)  # of an array that only the list refers to; differs between Pythons


def scratch(name: str, nbytes: int) -> Bytes:
    """``nbytes`` bytes with any content, which this thread's next call with that name gives out again."""
    memory = _memory.buffers.get(name)
    if memory is None or len(memory) < nbytes:
        memory = _memory.buffers[name] = np.empty(nbytes, np.uint8)
    return memory[:nbytes]


def lent(nbytes: int) -> Bytes:
    """``nbytes`` bytes with any content for as long as anything refers to them, from any thread."""
    known = _memory.lent
    for k in range(len(known)):
        if _references(known, k) == _OURS and len(known[k]) == nbytes:
            return known[k][:]
    known.append(np.empty(nbytes, np.uint8))
    result = known[-1][:]
    while sum(map(len, known)) > _KEPT:
        known.pop(0)  # whoever still uses it keeps it alive
    return result
