"""A store that holds chosen operations up until the test lets them go: races without sleeping."""

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractContextManager, suppress

from asyncckpt.store.base import Buffer, Entry, Store
from asyncckpt.store.calls import closing

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class GateStore:
    """Passes everything to ``inner``; the chosen operations wait while the gate is closed.

    ``operations``: names of methods, or ``"part"`` for the parts of a ``put`` that has begun (its temporary file
    exists then). ``suffix``: only keys that end so. The event loop stays free meanwhile. Any thread, any event loop.

    Attributes:
        entered: set as soon as something waits; clear it yourself to see the next one.
    """

    def __init__(self, inner: Store, operations: Collection[str] = ("put",), *, suffix: str = "") -> None:
        self._inner = inner
        self._chosen = frozenset(operations)
        self._suffix = suffix
        self._mutex = threading.Lock()
        self._closed = True
        self._waiters: list[_Waiter] = []
        self.entered = threading.Event()

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self._inner.url

    def open(self) -> None:
        """Let all go on that wait, and all that come, until ``close()``."""
        with self._mutex:
            self._closed = False
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            with suppress(RuntimeError):  # that loop has ended meanwhile
                loop.call_soon_threadsafe(_let_go, future)

    def close(self) -> None:
        """Hold up the chosen operations again."""
        with self._mutex:
            self._closed = True

    async def put(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """See ``Store``."""
        async with closing(parts):
            await self._pass("put", key)
            return await self._inner.put(key, self._held(key, parts))

    async def put_new(self, key: str, data: bytes) -> None:
        """See ``Store``."""
        await self._pass("put_new", key)
        await self._inner.put_new(key, data)

    async def read(self, key: str, start: int, into: memoryview) -> None:
        """See ``Store``."""
        await self._pass("read", key)
        await self._inner.read(key, start, into)

    async def list(self, folder: str) -> Sequence[Entry]:
        """See ``Store``."""
        await self._pass("list", folder)
        return await self._inner.list(folder)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ``Store``."""
        for key in keys:
            await self._pass("delete", key)
        await self._inner.delete(keys)

    def writer_lock(self) -> AbstractContextManager[None]:
        """See ``Store``. Never held up."""
        return self._inner.writer_lock()

    async def _held(self, key: str, parts: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
        async for part in parts:
            await self._pass("part", key)
            yield part

    async def _pass(self, name: str, key: str) -> None:
        if name not in self._chosen or not key.endswith(self._suffix):
            return
        with self._mutex:
            if not self._closed:
                return
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((loop, future))
        self.entered.set()
        await future


def _let_go(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
