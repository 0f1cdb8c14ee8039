"""However a snapshot ends, its memory comes back: released by frames, given up, interrupted, or failed on both sides."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from asyncckpt import AsyncCheckpointer
from asyncckpt.capture.copying import Copier
from asyncckpt.capture.plan import plan_snapshot
from asyncckpt.capture.pool import Pool
from asyncckpt.capture.snapshot import CaptureEndedError, Snapshot

MB = 1 << 20


@pytest.fixture
def pool():
    """4 MiB at most; all of it must have come back at the end."""
    pool = Pool(host_memory=4 * MB, max_in_flight=2)
    yield pool
    usage = pool.usage()
    assert (usage.in_flight, usage.bytes_in_use) == (0, 0)
    assert usage.peak_bytes <= 4 * MB
    pool.close()
    assert pool.usage().bytes_allocated == 0


@pytest.fixture
def start(pool):
    """A snapshot of so many MiB, whose float32 count up; not captured yet."""

    def go(megabytes):
        plan = plan_snapshot({"x": torch.arange(megabytes * MB // 4, dtype=torch.float32)})
        return Snapshot(plan, pool.admit(plan.raw_bytes, timeout=0))

    return go


def capturing(taken):
    """Capture in a thread of its own; gives the thread and what it raised."""
    raised = []

    def run():
        try:
            taken.capture()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_buffers_come_back_with_their_last_frame(start, pool):
    """Releasing frame by frame gives memory back before the snapshot has ended."""
    taken = start(3)
    taken.capture()
    assert pool.usage().bytes_in_use == 3 * MB
    for i, frame in enumerate(taken.frames):
        assert np.frombuffer(taken.read(i), np.float32)[0] == frame.offset // 4
        taken.release(i)
    assert pool.usage().bytes_in_use == 0
    assert pool.usage().in_flight == 1
    taken.release_all()
    taken.release_all()


def test_a_streamed_snapshot_is_whole(start):
    """A state of three times the cap is read in order while it is being captured."""
    taken = start(12)
    thread, raised = capturing(taken)
    pieces = []
    for i in range(len(taken.frames)):
        pieces.append(np.frombuffer(taken.read(i), np.float32).copy())
        taken.release(i)
    thread.join(60)
    assert raised == []
    assert np.array_equal(np.concatenate(pieces), np.arange(3 * MB, dtype=np.float32))
    assert taken.wait_captured(0)
    taken.release_all()


def test_a_streamed_snapshot_released_midway_ends_the_capture(start):
    """A save that fails while its state is still being copied lets the capturing thread go."""
    taken = start(12)
    thread, raised = capturing(taken)
    taken.read(0)
    taken.release_all()
    thread.join(60)
    assert [type(error) for error in raised] == [CaptureEndedError]


def test_an_aborted_capture_ends_its_readers(start):
    """Readers that wait for frames, and callers that wait for the capture, get the error of the abort."""
    taken = start(12)
    assert not taken.wait_captured(0)
    thread, raised = capturing(taken)
    taken.read(0)
    taken.abort(RuntimeError("given up"))
    thread.join(60)
    assert len(raised) == 1
    for call in (lambda: taken.read(len(taken.frames) - 1), taken.wait_captured):
        with pytest.raises(RuntimeError, match="given up"):
            call()
    taken.release_all()


def test_a_copy_that_fails_while_the_snapshot_is_released(start, monkeypatch):
    """Both sides fail at once: the buffer that was being filled comes back all the same."""
    taken = start(12)
    copy = Copier.host
    done = []

    def failing(*args):
        done.append(1)
        if len(done) == 2:
            taken.release_all()
            raise KeyboardInterrupt
        return copy(*args)

    monkeypatch.setattr(Copier, "host", failing)
    with pytest.raises(KeyboardInterrupt):
        taken.capture()


def test_sources_are_let_go_by_the_capture(pool):
    """Host sources are not referenced any longer than the copy takes."""
    array = np.arange(1000.0)
    gone = weakref.ref(array)
    plan = plan_snapshot({"x": torch.from_numpy(array)})
    taken = Snapshot(plan, pool.admit(plan.raw_bytes))
    del plan, array
    assert gone() is not None
    taken.capture()
    gc.collect()
    assert gone() is None
    taken.release_all()


def test_a_save_keeps_nothing_of_the_state(tmp_path):
    """Memory that the caller lets go of after a save is free once that is durable."""
    array = np.arange(1000.0)
    gone = weakref.ref(array)
    gc.disable()
    try:
        with AsyncCheckpointer(tmp_path) as ck:
            ck.save(1, {"x": torch.from_numpy(array)}).result(60)
            del array
            gc.collect()
            assert gone() is None
    finally:
        gc.enable()
