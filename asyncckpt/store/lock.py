"""The lock of a local root: one writer at a time, over processes and within one.

A ``flock`` on ``.asyncckpt.lock``, so it ends with its holder, however that dies. The file names the holder, for
people; it is never removed, because a removed file could be locked by one and made anew by another. A forked child
neither holds the lock nor releases it.
"""

# os by the names of the system calls: their order and their errors are what matters here
# ruff: noqa: PTH118

import errno
import fcntl
import functools
import os
import socket
from types import TracebackType

from asyncckpt.errors import RootInUseError
from asyncckpt.events import logger
from asyncckpt.store.folders import make
from asyncckpt.store.oserrors import os_errors

LOCK_NAME = ".asyncckpt.lock"
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
HOLDER_BYTES = 300  # a host name has at most 253

_held: set["RootLock"] = set()


class RootLock:
    """Holds a root between ``__enter__`` and ``__exit__``. Not reusable while held."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._path = os.path.join(root, LOCK_NAME)
        self._fd: int | None = None

    def __enter__(self) -> None:
        _watch_forks()
        with os_errors(self._path):
            make(self._root)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with os_errors(self._path):
                self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _held.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _held.discard(self)
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            # Closing alone would leave the lock with a child that was forked past our hook.
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError as failure:
            logger.debug("unlocking %s: %s", self._path, failure)
        finally:
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: close its copy of the descriptor. The parent's lock stays."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise self._in_use(fd) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            logger.warning("%s: no file locks here (%s); a second writer would go unnoticed", self._root, error)
        else:
            _write_holder(fd)

    def _in_use(self, fd: int) -> RootInUseError:
        holder = os.pread(fd, HOLDER_BYTES, 0).decode("utf-8", "replace").strip() or "an unknown process"
        message = f"{self._root} is in use by another writer: {holder}"
        return RootInUseError(message, errno=errno.EWOULDBLOCK, path=self._root)


def _write_holder(fd: int) -> None:
    """Who holds the lock: no promise, so a full disk does not matter."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as error:
        logger.debug("naming the holder of the lock: %s", error)


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for lock in tuple(_held):
        lock.forget()
    _held.clear()
