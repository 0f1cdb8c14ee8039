"""Where the worker threads of a restore get their bytes from: the store itself, or its event loop."""

import asyncio
from types import TracebackType
from typing import Protocol, Self

from asyncckpt.store.base import BlockingReads, OpenFile, Store


class Source(Protocol):
    """One object of a store, read by several threads side by side."""

    def opened(self) -> OpenFile:
        """For one thread to read from."""
        ...

    def stop(self) -> None:
        """Cancel the reads that can be cancelled, and let no new ones begin. On the event loop."""
        ...


def source_of(store: Store, key: str, *, shared: bool) -> Source:
    """The shortest way to the bytes. Call it on the event loop."""
    if isinstance(store, BlockingReads):
        return _Direct(store, key, shared=shared)
    return _OnLoop(store, key)


class _Direct:
    """Each thread makes the calls itself. What has begun is not cancelled, but it is brief."""

    def __init__(self, store: BlockingReads, key: str, *, shared: bool) -> None:
        self._store, self._key, self._shared = store, key, shared

    def opened(self) -> OpenFile:
        """See ``Source``."""
        return self._store.opened(self._key, shared=self._shared)

    def stop(self) -> None:
        """See ``Source``."""


class _OnLoop:
    """Threads wait for the event loop to read for them. A fetch returns when its read has ended, cancelled or not."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key, self._loop = store, key, asyncio.get_running_loop()
        self._reads: set[asyncio.Task[None]] = set()
        self._stopped = False

    def opened(self) -> OpenFile:
        """See ``Source``."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Nothing is open."""

    def fetch(self, start: int, nbytes: int, into: memoryview | None, room: memoryview) -> memoryview:
        """See ``base.OpenFile``."""
        view = room[:nbytes] if into is None else into
        asyncio.run_coroutine_threadsafe(self._read(start, view), self._loop).result()
        return view

    async def _read(self, start: int, view: memoryview) -> None:
        if self._stopped:
            raise asyncio.CancelledError
        task = asyncio.ensure_future(self._store.read(self._key, start, view))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        await task

    def stop(self) -> None:
        """See ``Source``."""
        self._stopped = True
        for read in list(self._reads):
            read.cancel()
