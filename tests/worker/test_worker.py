"""The worker: order, outcomes, and what a failing save may do to the next (nothing)."""

import asyncio
import gc
import os
import sys
import threading
import weakref

import pytest

from asyncckpt.errors import ClosedError, SaveError, SaveSkippedError
from asyncckpt.worker import Job, PendingSave, Worker


class Thing:
    """Something that can be weakly referenced, as a tensor can."""


def job_of(worker, step, body, discards=None):
    handle = PendingSave(step)

    async def run(encoders):
        return await body()

    worker.submit(Job(handle, run, lambda: discards.append(step) if discards is not None else None))
    return handle


def gated():
    gate, entered = threading.Event(), threading.Event()

    async def body():
        entered.set()
        await asyncio.to_thread(gate.wait)
        return "info"

    return gate, entered, body


async def good():
    return "info"


def test_saves_run_in_order_and_one_at_a_time():
    """First in, first out; the second waits for the first."""
    worker, order = Worker(encoders=1), []
    gate, entered, body = gated()

    async def first():
        await body()
        order.append(1)
        return "a"

    async def second():
        order.append(2)
        return "b"

    a, b = job_of(worker, 1, first), job_of(worker, 2, second)
    assert entered.wait(10)
    assert (a.status, b.status, worker.unfinished()) == ("writing", "queued", [1, 2])
    assert not worker.drain(0.01)
    gate.set()
    assert (a.result(10), b.result(10), order) == ("a", "b", [1, 2])
    assert worker.drain(10)


@pytest.mark.parametrize("error", [SystemExit(3), MemoryError("no"), KeyboardInterrupt(), ValueError("bad")])
def test_a_failing_save_ends_only_itself(error):
    """Whatever a save raises, even SystemExit or MemoryError, the next one works, and memory is given back."""
    worker, discards = Worker(encoders=1), []

    async def fails():
        raise error

    bad = job_of(worker, 1, fails, discards)
    ok = job_of(worker, 2, good, discards)
    assert ok.result(10) == "info"
    found = bad.exception(10)
    assert found is error or (isinstance(found, SaveError) and found.__cause__ is error)
    assert isinstance(found, Exception)
    assert discards == [1, 2]
    assert worker.drain(10)


def test_a_failed_handle_keeps_nothing_of_the_save_alive():
    """Case 12: neither the traceback of a failure nor the idle worker keeps the state alive."""
    worker, things = Worker(encoders=1), []

    def submit():
        box = [Thing()]  # as a snapshot holds its tensors until it is discarded
        things.append(weakref.ref(box[0]))
        handle = PendingSave(1)

        async def run(encoders):
            local = box[0]
            raise ValueError(id(local))

        worker.submit(Job(handle, run, box.clear))
        return handle

    handle = submit()
    assert isinstance(handle.exception(10), ValueError)
    assert worker.drain(10)
    gc.collect()
    assert things[0]() is None


def test_supersede_drops_the_newest_that_has_not_begun():
    """The save being written goes on; the one behind it gives way and says so."""
    worker, discards = Worker(encoders=1), []
    gate, entered, body = gated()
    a = job_of(worker, 1, body, discards)
    assert entered.wait(10)
    assert not worker.supersede(9)
    b = job_of(worker, 2, good, discards)
    assert worker.supersede(3)
    assert b.status == "superseded"
    assert discards == [2]
    with pytest.raises(SaveSkippedError, match="step 3"):
        b.result(0)
    gate.set()
    assert a.result(10) == "info"
    assert worker.drain(10)


def test_an_error_is_delivered_once():
    """Whoever looks first gets it; ``take_undelivered`` gives it only if nobody has looked."""
    worker = Worker(encoders=1)

    async def fails():
        raise ValueError("x")

    seen, unseen = job_of(worker, 1, fails), job_of(worker, 2, fails)
    assert seen.exception(10) is not None
    assert worker.drain(10)
    assert seen.take_undelivered() is None
    assert unseen.take_undelivered() is not None
    assert unseen.take_undelivered() is None


def test_callbacks_are_called_once_and_their_errors_are_harmless(caplog):
    """A failing callback is logged; the save and the next callback are not affected."""
    worker, seen = Worker(encoders=1), []
    gate, _, body = gated()
    handle = job_of(worker, 1, body)
    handle.add_done_callback(lambda h: 1 / 0)
    handle.add_done_callback(lambda h: sys.exit(3))
    handle.add_done_callback(lambda h: seen.append(h.status))
    gate.set()
    assert handle.result(10) == "info"
    assert worker.drain(10)
    handle.add_done_callback(lambda h: seen.append("late"))
    assert seen == ["committed", "late"]
    assert "callback" in caplog.text


def test_result_times_out_without_ending_the_save():
    """A timeout of the waiter is not an outcome."""
    worker = Worker(encoders=1)
    gate, _, body = gated()
    handle = job_of(worker, 1, body)
    with pytest.raises(TimeoutError, match="step 1"):
        handle.result(0.01)
    gate.set()
    assert handle.result(10) == "info"
    assert worker.drain(10)


def test_no_thread_remains_when_there_is_no_work():
    """An idle checkpointer has no thread at all."""
    before = threading.active_count()
    worker = Worker(encoders=2)
    assert job_of(worker, 1, good).result(10) == "info"
    assert worker.drain(10)
    assert threading.active_count() == before


def test_a_forked_child_never_waits():
    """Case 70: in a forked child waiting returns or raises at once; nothing hangs."""
    worker = Worker(encoders=1)
    gate, entered, body = gated()
    handle = job_of(worker, 1, body)
    assert entered.wait(10)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert worker.drain(None)
            try:
                handle.result()
            except ClosedError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    gate.set()
    assert handle.result(10) == "info"
    assert worker.drain(10)


def test_a_thread_that_cannot_start_costs_one_save_only(monkeypatch):
    """If the system refuses a thread, that submit raises and its memory is given back; the next one works."""
    worker, discards = Worker(encoders=1), []
    real = threading.Thread.start

    def refuse(thread):
        monkeypatch.setattr(threading.Thread, "start", real)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="start new thread"):
        job_of(worker, 1, good, discards)
    assert discards == [1]
    assert job_of(worker, 2, good, discards).result(10) == "info"
    assert worker.drain(10)
