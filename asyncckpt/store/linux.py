"""Three calls of Linux that Python's ``os`` does not have. All raise ``OSError`` as ``os`` would."""

import ctypes
import errno
import functools
import os

AT_FDCWD = -100
FALLOC_FL_KEEP_SIZE = 1
RENAME_NOREPLACE = 1
SYNC_FILE_RANGE_WRITE = 2


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: ctypes.c_int | ctypes.c_uint | ctypes.c_int64 | ctypes.c_char_p) -> None:
    function = getattr(_libc(), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, f"the C library has no {name}")
    if function(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def rename_new(source: str, target: str) -> None:
    """Rename, but only to a free name; else ``FileExistsError``. EINVAL where the file system cannot."""
    old, new = (ctypes.c_char_p(os.fsencode(path)) for path in (source, target))
    here = ctypes.c_int(AT_FDCWD)
    _call("renameat2", here, old, here, new, ctypes.c_uint(RENAME_NOREPLACE))


def start_writeback(fd: int, offset: int, nbytes: int) -> None:
    """Let the kernel begin to write these bytes of the page cache to disk. Makes nothing durable."""
    where, length = ctypes.c_int64(offset), ctypes.c_int64(nbytes)
    _call("sync_file_range", ctypes.c_int(fd), where, length, ctypes.c_uint(SYNC_FILE_RANGE_WRITE))


def allocate(fd: int, offset: int, nbytes: int) -> None:
    """Take disk space for these bytes of a file without changing its size. EOPNOTSUPP where that is not possible."""
    where, length = ctypes.c_int64(offset), ctypes.c_int64(nbytes)
    _call("fallocate64", ctypes.c_int(fd), ctypes.c_int(FALLOC_FL_KEEP_SIZE), where, length)
