"""A store that fails on demand."""

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from errno import EIO

from asyncckpt.errors import PermanentStoreError, StoreError, TransientStoreError
from asyncckpt.store.base import Buffer, Entry, Store
from asyncckpt.store.calls import closing


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing asked of a store.

    Attributes:
        number: counted from 1, over all operations of the store.
        name: the method, or ``"part"``: the next part of a running ``put`` was asked for.
        key: what it concerns; for ``delete`` the first key; for ``writer_lock`` empty.
        failed: whether the fault struck here.
    """

    number: int
    name: str
    key: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and when.

    Attributes:
        at: strike at the at-th operation that ``where`` accepts, from 1 on, counted since the fault was set.
        errno: of the error.
        for_ever: strike at all later ones too.
        transient: raise ``TransientStoreError`` instead of ``PermanentStoreError``.
        after_bytes: for a ``put``: let so many bytes through first. With more than there are, all bytes are written
            and the error comes in place of the end, before the name appears.
        where: which operations count; None: all.
    """

    at: int = 1
    errno: int = EIO
    for_ever: bool = False
    transient: bool = False
    after_bytes: int = 0
    where: Callable[[Operation], bool] | None = None

    def error(self, operation: Operation) -> StoreError:
        """The error for this operation."""
        kind = TransientStoreError if self.transient else PermanentStoreError
        message = f"injected at operation {operation.number} ({operation.name} {operation.key})"
        error = kind(f"{message}: {os.strerror(self.errno)}", errno=self.errno, path=operation.key)
        error.__cause__ = OSError(self.errno, os.strerror(self.errno))
        return error


class FaultyStore:
    """Passes everything to ``inner``, records it, and fails as ``fault`` says. Any thread, any event loop.

    ``slow`` is awaited at the start of every operation but ``writer_lock``.
    """

    def __init__(
        self, inner: Store, fault: Fault | None = None, *, slow: Callable[[Operation], Awaitable[None]] | None = None
    ) -> None:
        self._inner = inner
        self._slow = slow
        self._mutex = threading.Lock()
        self._operations: list[Operation] = []
        self.set_fault(fault)

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self._inner.url

    @property
    def operations(self) -> list[Operation]:
        """What has been asked so far, in order."""
        with self._mutex:
            return list(self._operations)

    def set_fault(self, fault: Fault | None) -> None:
        """Arm another fault, or with None lift the present one. Counting begins anew."""
        with self._mutex:
            self._fault = fault
            self._counted = 0

    async def put(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """See ``Store``."""
        async with closing(parts):
            operation, fault = self._note("put", key)
            if fault is not None and not fault.after_bytes:
                raise fault.error(operation)
            await self._delay(operation)
            watched = self._watched(key, parts)
            return await self._inner.put(key, watched if fault is None else _cut_short(watched, fault, operation))

    async def put_new(self, key: str, data: bytes) -> None:
        """See ``Store``."""
        await self._begin("put_new", key)
        await self._inner.put_new(key, data)

    async def read(self, key: str, start: int, into: memoryview) -> None:
        """See ``Store``."""
        await self._begin("read", key)
        await self._inner.read(key, start, into)

    async def list(self, folder: str) -> Sequence[Entry]:
        """See ``Store``."""
        await self._begin("list", folder)
        return await self._inner.list(folder)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ``Store``."""
        await self._begin("delete", keys[0] if keys else "")
        await self._inner.delete(keys)

    def writer_lock(self) -> AbstractContextManager[None]:
        """See ``Store``."""
        operation, fault = self._note("writer_lock", "")
        if fault is not None:
            raise fault.error(operation)
        return self._inner.writer_lock()

    async def _watched(self, key: str, parts: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
        async for part in parts:
            await self._begin("part", key)
            yield part

    async def _begin(self, name: str, key: str) -> None:
        operation, fault = self._note(name, key)
        if fault is not None:
            raise fault.error(operation)
        await self._delay(operation)

    async def _delay(self, operation: Operation) -> None:
        if self._slow is not None:
            await self._slow(operation)

    def _note(self, name: str, key: str) -> tuple[Operation, Fault | None]:
        """Record an operation; give the fault if it strikes here."""
        with self._mutex:
            number = len(self._operations) + 1
            struck = self._strikes(Operation(number, name, key))
            operation = Operation(number, name, key, struck)
            self._operations.append(operation)
            return operation, self._fault if struck else None

    def _strikes(self, operation: Operation) -> bool:
        fault = self._fault
        if fault is None or (fault.where is not None and not fault.where(operation)):
            return False
        self._counted += 1
        return self._counted == fault.at or (fault.for_ever and self._counted > fault.at)


async def _cut_short(parts: AsyncIterator[Buffer], fault: Fault, operation: Operation) -> AsyncIterator[Buffer]:
    """The first ``after_bytes`` bytes, then the error."""
    left = fault.after_bytes
    async with closing(parts):
        async for part in parts:
            view = memoryview(part).cast("B")[:left]
            yield view
            left -= len(view)
            if not left:
                break
    raise fault.error(operation)
