"""Which bytes of a file are in the page cache.

Asked by ``mincore`` of a mapping that is never touched. (A read with ``RWF_NOWAIT`` would tell as well, but starts
reading ahead into the cache where it finds nothing.)
"""

import ctypes
import functools
import mmap

import numpy as np


class Cache:
    """The page cache of one open file; keeps no descriptor of the caller's in use.

    ``OSError`` or ``ValueError`` if the file cannot be mapped.
    """

    def __init__(self, fd: int) -> None:
        self._map = np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8)
        self._start = int(self._map.__array_interface__["data"][0])

    def holds(self, start: int, nbytes: int) -> bool:
        """Whether all these bytes are there, or nobody can tell."""
        first = start - start % mmap.PAGESIZE
        stop = min(start + nbytes, len(self._map))
        if stop <= first:
            return True
        pages = np.zeros(-(-(stop - first) // mmap.PAGESIZE), np.uint8)
        failed = _mincore()(
            ctypes.c_void_p(self._start + first),
            ctypes.c_size_t(stop - first),
            ctypes.c_void_p(int(pages.__array_interface__["data"][0])),
        )
        return bool(failed) or bool((pages & 1).all())


@functools.cache
def _mincore() -> "ctypes._NamedFuncPointer":
    return ctypes.CDLL(None).mincore
