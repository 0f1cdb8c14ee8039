"""What the tests of the store contract share."""

# ruff: noqa: S101 - these are tests, though they stand in the package

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from asyncckpt.store.base import Buffer, Entry, Store

RACERS = 16


class Closable(AsyncIterator[Buffer]):
    """Parts, then an error or the end; notes ``aclose``."""

    def __init__(self, parts: Sequence[Buffer], error: Exception | None = None) -> None:
        self._parts = iter(parts)
        self._error = error
        self.closed = False

    async def __anext__(self) -> Buffer:
        for part in self._parts:
            return part
        raise self._error or StopAsyncIteration

    async def aclose(self) -> None:
        """Note that we were closed."""
        self.closed = True


class Stuck(Closable):
    """One part, then it waits for ever."""

    def __init__(self, part: Buffer) -> None:
        super().__init__([part])
        self.waiting = asyncio.Event()

    async def __anext__(self) -> Buffer:
        for part in self._parts:
            return part
        self.waiting.set()
        await asyncio.get_running_loop().create_future()
        raise StopAsyncIteration


async def cancel_when(event: asyncio.Event, call: Coroutine[Any, Any, object]) -> None:
    """Run a call, cancel it once the event is set, and expect it to end so."""
    task = asyncio.create_task(call)
    await event.wait()
    task.cancel()
    with raises(asyncio.CancelledError):
        await task


async def call(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """For ``asyncio.run``, which takes coroutines only where a protocol promises an awaitable."""
    return await coroutine


async def split(data: bytes, size: int) -> AsyncIterator[Buffer]:
    """The bytes in parts of ``size``."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def pattern(size: int) -> bytes:
    """Bytes without a period that a page or a piece could hide."""
    return b"".join(i.to_bytes(4, "little") for i in range(size // 4 + 1))[:size]


def sizes(entries: Sequence[Entry]) -> dict[str, int]:
    """Name (a folder's with a slash) -> size."""
    return {entry.name + "/" * entry.is_folder: entry.size for entry in entries}


def names(store: Store, folder: str) -> set[str]:
    """Final names: what a failed call could not clean up ends in .tmp."""
    entries: Sequence[Entry] = asyncio.run(call(store.list(folder)))
    return {entry.name for entry in entries if not entry.name.endswith(".tmp")}


def winners(outcomes: Sequence[BaseException | None]) -> int:
    """The number of the only one without an error; all others found the name taken."""
    assert all(isinstance(outcome, FileExistsError | None) for outcome in outcomes), outcomes
    (won,) = [i for i, outcome in enumerate(outcomes) if outcome is None]
    return won


def in_threads(run: Callable[[int], None], count: int = RACERS) -> list[Future[None]]:
    """Run ``run(i)`` in ``count`` threads at once; their outcomes."""
    futures: list[Future[None]] = [Future() for _ in range(count)]

    def body(i: int) -> None:
        try:
            run(i)
            futures[i].set_result(None)
        except BaseException as error:
            futures[i].set_exception(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return futures


@contextmanager
def raises(kind: type[BaseException]) -> Iterator[None]:
    """As pytest's, without needing pytest."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def raised(call: Callable[[], object]) -> Exception | None:
    """The exception of a call, or None."""
    try:
        call()
    except Exception as error:
        return error
    return None
