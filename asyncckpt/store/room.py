"""Disk space taken ahead of the writes of one file: a full disk shows early, and the file's extents lie together.

* The size is known exactly: all of it is taken before the first write. If it does not fit, that fails at once.
* It is not: space is taken in steps. What does not fit then is not an error yet: the rest may need less than a step.
* A file system without ``fallocate`` is left alone. The C library's stand-in, which writes zeros, is never used.

The size of the file does not change by this. What was taken and not written goes back in ``trim``.
"""

import errno
import os

from asyncckpt.store.linux import allocate

STEP = 64 << 20


class Room:
    """Blocking; one thread at a time.

    Args:
        fd: an open, empty file.
        nbytes: its exact size in the end, if that is known.
    """

    def __init__(self, fd: int, nbytes: int | None) -> None:
        self._fd, self._nbytes = fd, nbytes
        self._taken = 0
        self._wanted = True

    def reach(self, end: int) -> None:
        """Be told that a write up to ``end`` comes next. ENOSPC or EDQUOT if the whole file is known not to fit."""
        while self._wanted and self._taken < end:
            self._take()

    def trim(self, size: int) -> None:
        """Give back what lies behind the end of the finished file of ``size`` bytes."""
        if self._taken > size:
            os.ftruncate(self._fd, size)

    def _take(self) -> None:
        count = STEP if self._nbytes is None else self._nbytes
        self._wanted = self._nbytes is None  # known sizes are taken once
        before, self._taken = self._taken, self._taken + count  # a refused call may have taken a part
        free = _free(self._fd)
        try:
            allocate(self._fd, before, count)
        except OSError as error:
            self._wanted = False
            if self._nbytes is not None and _is_full(error, free < count):
                raise


def _free(fd: int) -> int:
    disk = os.fstatvfs(fd)
    return disk.f_bavail * disk.f_frsize


def _is_full(error: OSError, short: bool) -> bool:
    """Whether the bytes do not fit. ENOSPC for less than there is free is about something else, which may yet do."""
    return error.errno == errno.EDQUOT or (error.errno == errno.ENOSPC and short)
