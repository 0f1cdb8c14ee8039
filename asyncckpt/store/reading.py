"""Reading local files: what is in the page cache from there, the rest past it.

* Bytes in the page cache are copied from it, straight to where they are wanted.
* Others are read by O_DIRECT into page-aligned memory that the caller lends: a third of the processor time, nobody's
  data is pushed out of the cache, and no fresh page is taken for what is read once.
* Where the file system refuses either of this, or if other processes are about to read the same bytes (``shared``:
  the first one fills the cache for the others), reads are buffered.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from asyncckpt.store.base import PAGE
from asyncckpt.store.cached import Cache
from asyncckpt.store.oserrors import os_errors
from asyncckpt.threads import InPlace, PlainExecutor

T = TypeVar("T")


class LocalFile:
    """One file, opened by the first read. One thread at a time; ``close`` it. See ``base.OpenFile``."""

    def __init__(self, path: str, *, shared: bool) -> None:
        self._path, self._shared = path, shared
        self._fds: list[int] = []  # buffered; and direct, as long as that works
        self._cache: Cache | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._cache = None
        while self._fds:
            os.close(self._fds.pop())

    def fetch(self, start: int, nbytes: int, into: memoryview | None, room: memoryview) -> memoryview:
        """See ``base.OpenFile``."""
        with os_errors(self._path, passing=(FileNotFoundError,)):
            if not self._fds:
                self._open()
            if self._cache is not None and not self._cache.holds(start, nbytes):
                found = self._direct(start, nbytes, room)
                if found is not None:
                    return found
            view = room[:nbytes] if into is None else into
            read_exactly(self._fds[0], self._path, start, view)
        return view

    def _open(self) -> None:
        self._fds.append(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
        if not self._shared and hasattr(os, "O_DIRECT"):
            with suppress(OSError):  # some file systems refuse it
                self._fds.append(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT))
                self._cache = Cache(self._fds[0])

    def _direct(self, start: int, nbytes: int, room: memoryview) -> memoryview | None:
        """The bytes, somewhere in ``room``; None if they cannot be read like this."""
        begin = start - start % PAGE
        wanted = start + nbytes - begin
        try:
            count = 0
            while count < wanted and not count % PAGE:
                got = os.preadv(self._fds[1], [room[count : wanted + -wanted % PAGE]], begin + count)
                if not got:
                    break
                count += got
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._cache = None
            return None
        return room[start - begin : wanted] if count >= wanted else None  # a short file says so when read buffered


def read_exactly(fd: int, path: str, start: int, into: memoryview) -> None:
    """Fill ``into``; ``EOFError`` if the file ends before."""
    while len(into):
        count = os.preadv(fd, [into], start)
        if not count:
            raise EOFError(f"{path} ends {len(into)} bytes too early, at byte {start}")
        start, into = start + count, into[count:]


class Threads:
    """Threads for blocking calls that read: as many as calls run side by side on an event loop, used again and again.

    When no call runs on the loop any more, its threads have ended. A cancelled call returns only after its thread has
    left it. Where no thread can be started (the very end of the interpreter), calls run on the event loop's own thread.
    """

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, _Crew] = {}

    async def call(self, fn: Callable[..., T], *args: object) -> T:
        """One call in a thread."""
        loop = asyncio.get_running_loop()
        crew = self._by_loop.setdefault(loop, _Crew())
        executor = crew.take()
        call = executor.submit(fn, *args)
        try:
            return await asyncio.wrap_future(call)
        except BaseException:
            await _ended(call)
            raise
        finally:
            if crew.give_back(executor):
                del self._by_loop[loop]


async def _ended(call: Future[T]) -> None:
    """Wait until a call has left its thread, whatever cancellations arrive; its outcome is nobody's concern."""
    while not call.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([asyncio.wrap_future(call)])


class _Crew:
    """The threads of one event loop."""

    def __init__(self) -> None:
        self._idle: list[Executor] = []
        self._busy = 0

    def take(self) -> Executor:
        """A thread that has nothing to do."""
        executor = self._idle.pop() if self._idle else _start()
        self._busy += 1
        return executor

    def give_back(self, executor: Executor) -> bool:
        """Whether that was the last one; all have ended then."""
        self._busy -= 1
        self._idle.append(executor)
        if self._busy:
            return False
        while self._idle:
            self._idle.pop().shutdown()
        return True


def _start() -> Executor:
    try:
        return PlainExecutor(1, "asyncckpt-store", background=False)
    except RuntimeError:
        return InPlace()
