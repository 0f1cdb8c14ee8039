"""Blocking calls of one store operation, on a thread of its own that ends with the operation.

* Calls of one operation run one after the other, in the order of submission.
* A cancelled operation returns only after its running call has returned: nobody's memory is touched afterwards.
* No thread is left behind, so none can hold up the end of the program, and a forked child misses none.
* Where no thread can be started (the very end of the interpreter), the calls run on the event loop's own thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import TypeVar

from asyncckpt.store.base import Buffer
from asyncckpt.threads import InPlace, PlainExecutor

T = TypeVar("T")


@asynccontextmanager
async def own_thread(*, background: bool) -> AsyncIterator[Executor]:
    """One thread for the calls of the body. On leaving, all of them have returned and the thread is gone."""
    executor = _start(background)
    try:
        yield executor
    except BaseException:
        await finished(executor.submit(_nothing))
        raise
    finally:
        executor.shutdown()


async def run(executor: Executor, fn: Callable[..., T], *args: object) -> T:
    """One call in the executor. If cancelled, the call may still be running: see ``own_thread``."""
    return await asyncio.get_running_loop().run_in_executor(executor, fn, *args)


async def finished(call: Future[None]) -> None:
    """Wait until a clean-up call has ended, whatever cancellations arrive; its error is nobody's concern."""
    while not call.done():
        try:
            await asyncio.wait([asyncio.wrap_future(call)])
        except asyncio.CancelledError:  # only seen where an operation is failing already
            continue


@asynccontextmanager
async def closing(parts: AsyncIterator[Buffer]) -> AsyncIterator[None]:
    """Close the iterator of a ``put`` (``aclose``, where it has one) when the body ends, however it ends."""
    try:
        yield
    finally:
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()


def _start(background: bool) -> Executor:
    try:
        return PlainExecutor(1, "asyncckpt-store", background=background)
    except RuntimeError:
        return InPlace()


def _nothing() -> None:
    pass
