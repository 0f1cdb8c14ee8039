"""Plain threads for blocking work, and the one bridge from blocking code into asyncio.

``concurrent.futures.ThreadPoolExecutor`` refuses work once the main thread has ended, which is just when the last
save of a script that never called ``close()`` is being written. These executors are plain non-daemon threads: they
work until they are shut down, and the interpreter waits for them.
"""

import asyncio
import contextlib
import gc
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

BACKGROUND_PRIORITY = 10  # nice value; training threads stay at 0


def lower_priority() -> None:
    """Make the calling thread give way to the training threads. Does nothing where that is not possible."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_PRIORITY)


class PlainExecutor(Executor):
    """A fixed number of plain threads, started at construction; ``shutdown()`` must be called."""

    def __init__(self, threads: int, name: str, *, background: bool = True) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(background,), name=f"{name}-{i}", daemon=False)
            for i in range(threads)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.shutdown(wait=False)  # those that did start must not wait for ever
            raise

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue one call. Any exception of it, even ``SystemExit``, goes to the future."""
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            _settle(future, fn, *args, **kwargs)

        self._jobs.put(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - the base's name
        """Let the threads end once the queue is empty, and wait for them if asked."""
        for _ in self._threads:
            self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self, background: bool) -> None:
        if background:
            lower_priority()
        while (job := self._jobs.get()) is not None:
            job()
            del job  # an idle thread must not keep the last job's data alive


class InPlace(Executor):
    """Runs each call at once, in the thread that submits it: for where no thread can be started."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call and give its outcome."""
        future: Future[T] = Future()
        _settle(future, fn, *args, **kwargs)
        return future


def _settle(future: Future[T], fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a call; its result or its exception, whichever that is, goes to the future."""
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def run_blocking(make: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run one coroutine to its end on a short-lived thread of its own and give its result.

    Works from any thread, also from inside a running event loop (a notebook). An interrupt of the waiting thread
    cancels the coroutine and waits for its clean-up before it goes on.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
    outcome: Future[T] = Future()

    async def main() -> T:
        task = asyncio.ensure_future(make())
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="asyncckpt-call", daemon=False)
    thread.start()
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: it would walk 100,000 new objects again and again, and find nothing."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
