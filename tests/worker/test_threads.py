"""Plain executors and the bridge from blocking code into asyncio."""

import asyncio
import threading

import pytest

from asyncckpt.threads import PlainExecutor, run_blocking


def test_a_job_that_exits_ends_nothing_but_itself():
    """SystemExit of one job goes to its future; the thread takes the next job."""
    executor = PlainExecutor(1, "t")
    try:
        with pytest.raises(SystemExit):
            executor.submit(exit, 3).result(5)
        assert executor.submit(lambda: 7).result(5) == 7
    finally:
        executor.shutdown()


def test_no_thread_remains_after_shutdown():
    """Shutdown joins every thread."""
    before = threading.active_count()
    executor = PlainExecutor(3, "t")
    executor.shutdown()
    assert threading.active_count() == before


def test_run_blocking_works_inside_a_running_loop():
    """A notebook's own event loop does not stand in the way."""

    async def inner():
        await asyncio.sleep(0)
        return 5

    async def outer():
        return run_blocking(inner)

    assert asyncio.run(outer()) == 5


def test_run_blocking_passes_errors_on():
    """The coroutine's own exception reaches the caller, also an unusual one."""

    async def fails():
        raise LookupError("x")

    with pytest.raises(LookupError, match="x"):
        run_blocking(fails)
