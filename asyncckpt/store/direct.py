"""The bytes of one file: gathered into large calls, past the page cache where the file system lets us.

* Small parts are copied into one of two page-aligned pieces of 8 MiB; while one is written, the other is filled.
* Large parts go out as they are, without a copy: any of them where writes are buffered, those that are page-aligned
  where they are direct.
* The first large write tries O_DIRECT. If the file system refuses it, then or at any later write, the rest is
  buffered, with the kernel's write-back started behind each call, so that the final sync finds little left to do.
* The end of a file that is not a whole number of pages is written buffered.
* Disk space is taken ahead of the writes (room.py).

The caller makes the file durable; see draft.py.
"""

import asyncio
import errno
import fcntl
import io
import mmap
import os
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress

import numpy as np
import numpy.typing as npt
from aiofiles.threadpool import wrap

from asyncckpt.store.base import Buffer
from asyncckpt.store.calls import run
from asyncckpt.store.linux import start_writeback
from asyncckpt.store.room import Room

PAGE = 4096
PIECE = 8 << 20  # bytes of one gathered write
LARGE = 1 << 20  # from here on a part is worth a write of its own

Bytes = npt.NDArray[np.uint8]


class DataFile(io.FileIO):
    """An open file that is written from its start to its end. Does not own its descriptor. One thread at a time.

    Args:
        fd: the open, empty file.
        room: for space ahead of the writes.

    Attributes:
        direct: whether writes pass by the page cache; None as long as nothing has been written.
    """

    def __init__(self, fd: int, room: Room | None = None) -> None:
        super().__init__(fd, "wb", closefd=False)
        self.direct: bool | None = None
        self._end = 0
        self._room = room

    def write(self, data: Buffer) -> int:  # type: ignore[override]  # we never give it other buffers
        """Write some or all of the bytes; give their number, at least one."""
        nbytes = len(data)
        if self._room is not None:
            self._room.reach(self._end + nbytes)
        if self.direct is None:
            self.direct = nbytes >= LARGE and self._set_direct(True)
        if self.direct and nbytes % PAGE:
            self._leave_direct()
        written = self._write_some(data)
        if not written:
            raise OSError(errno.EIO, "a write took no bytes")
        self._after(written)
        return written

    def finish(self, *rest: memoryview) -> None:
        """Write all of the last bytes, and give back disk space that was taken ahead and not needed."""
        for view in rest:
            while len(view):
                view = view[self.write(view) :]  # noqa: PLW2901 - walks through it
        if self._room is not None:
            self._room.trim(self._end)

    def _write_some(self, data: Buffer) -> int:
        try:
            return os.write(self.fileno(), data)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct:
                raise
        self._leave_direct()  # accepted at fcntl, refused at write, or a short write has broken the alignment
        return os.write(self.fileno(), data)

    def _after(self, written: int) -> None:
        if not self.direct and written >= LARGE:
            with suppress(OSError):  # only a hint
                start_writeback(self.fileno(), self._end, written)
        self._end += written

    def _leave_direct(self) -> None:
        self._set_direct(False)
        self.direct = False

    def _set_direct(self, on: bool) -> bool:
        flags = fcntl.fcntl(self.fileno(), fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if on else flags & ~os.O_DIRECT
        try:
            fcntl.fcntl(self.fileno(), fcntl.F_SETFL, flags)
        except OSError:
            return False
        return True


class Gatherer:
    """Turns parts of any size into few large writes. Lives on one event loop; writes run in ``thread``.

    When ``add`` has returned, the part is not needed any more.
    """

    def __init__(self, file: DataFile, thread: Executor) -> None:
        self.size = 0
        self._state, self._thread = file, thread
        self._file = wrap(file, loop=asyncio.get_running_loop(), executor=thread)
        self._piece = _new_piece()
        self._spare: Bytes | None = None
        self._fill = 0
        self._running: asyncio.Task[None] | None = None

    async def add(self, part: Buffer) -> None:
        """Take one part."""
        rest = memoryview(part).cast("B")
        self.size += len(rest)
        while len(rest):
            rest = rest[await self._take(rest) :]

    async def finish(self) -> None:
        """Write what is left, and give back disk space that was not needed."""
        await self._settle()
        whole = self._fill if self._state.direct is False or self._fill < LARGE else _pages(self._fill)
        await run(self._thread, self._state.finish, self._piece.data[:whole], self._piece.data[whole : self._fill])

    async def stop(self) -> None:
        """Submit nothing more. A call that runs in the thread goes on: wait for it before the file is closed."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
            if running.done() and not running.cancelled():
                running.exception()

    async def _take(self, rest: memoryview) -> int:
        straight = 0 if self._fill else self._straight(rest)
        if straight:
            await self._settle()
            await self._write(rest[:straight])
            return straight
        return await self._copy(rest)

    def _straight(self, part: memoryview) -> int:
        """How many bytes of this part can be written from where they are."""
        if len(part) < LARGE:
            return 0
        if self._state.direct is False:
            return len(part)
        return _pages(len(part)) if _address(part) % PAGE == 0 else 0

    async def _copy(self, rest: memoryview) -> int:
        count = min(len(rest), PIECE - self._fill)
        # numpy lets other threads run meanwhile, a memoryview would not
        self._piece[self._fill : self._fill + count] = np.frombuffer(rest[:count], np.uint8)
        self._fill += count
        if self._fill == PIECE:
            await self._rotate()
        return count

    async def _rotate(self) -> None:
        """Start writing the full piece and go on in the other one."""
        await self._settle()
        full, self._fill = self._piece, 0
        self._piece, self._spare = (_new_piece() if self._spare is None else self._spare), full
        self._running = asyncio.create_task(self._write(full.data))

    async def _settle(self) -> None:
        if self._running is not None:
            await self._running
            self._running = None

    async def _write(self, view: memoryview) -> None:
        while len(view):
            view = view[await self._file.write(view) :]


@asynccontextmanager
async def gathering(fd: int, thread: Executor, nbytes: int | None = None) -> AsyncIterator[Gatherer]:
    """A gatherer for the open file; on leaving, nothing more is submitted to the thread.

    Args:
        fd: the open, empty file.
        thread: for the blocking calls.
        nbytes: the exact size of the file in the end, if that is known.
    """
    gatherer = Gatherer(DataFile(fd, Room(fd, nbytes)), thread)
    try:
        yield gatherer
    finally:
        await gatherer.stop()


def _new_piece() -> Bytes:
    return np.frombuffer(mmap.mmap(-1, PIECE), np.uint8)  # page-aligned, and no memory until it is touched


def _pages(nbytes: int) -> int:
    return nbytes - nbytes % PAGE


def _address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).__array_interface__["data"][0])
