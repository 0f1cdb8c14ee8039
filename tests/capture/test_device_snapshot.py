"""Snapshots of device memory: every ordering, with streams that go on only when the test says so.

Each ordering has a test in which it is taken out, and which then sees wrong values: so the others have teeth.
"""

import gc
import threading

import numpy as np
import pytest
import torch

from asyncckpt.capture import memory, snapshot
from asyncckpt.capture.plan import plan_snapshot
from asyncckpt.capture.pool import Pool
from asyncckpt.capture.snapshot import Snapshot
from asyncckpt.capture.streams import CopyStreams, wait_for

COUNT = 1000
BOTH = pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])


def values_of(taken):
    """All that a snapshot of float32 holds, read and released."""
    pieces = [np.frombuffer(taken.read(i), np.float32).copy() for i in range(len(taken.frames))]
    for i in range(len(taken.frames)):
        taken.release(i)
    return np.concatenate(pieces)


def overwrite(state, device):
    state["x"].fill_(2)


def free_and_reuse(state, device):
    """Free the source; another stream, which nothing holds up, takes its memory and writes to it."""
    del state["x"]
    gc.collect()
    with torch.Stream(device=device) as other:
        state["others"] = [torch.full((COUNT,), 3.0, device=device) for _ in range(64)]
        other.synchronize()


def finish(fake):
    """Let everything that is queued run to its end."""
    fake.resume()
    for device in range(2):
        torch.accelerator.synchronize(device)


@pytest.fixture
def pool(fake):
    """Pinned memory for one snapshot; whatever the test stalled goes on before it is freed."""
    pool = Pool(host_memory=None, max_in_flight=1)
    yield pool
    finish(fake)
    pool.close()
    assert pool.usage().bytes_allocated == 0


@pytest.fixture
def take(fake, pool):
    """Capture ``x``, which its stream makes ones late, and do something else at once. Gives the snapshot."""
    kept = []  # what is written or read late must live as long: the queue of a device keeps nothing alive

    def go(after=overwrite, *, device=0, side=False, wrap=lambda x: x, stalled="producer"):
        where = torch.device("fake", device)
        state = {"x": torch.zeros(COUNT, device=where)}
        ones = torch.ones(COUNT, device=where)
        kept.extend([state, ones])
        copies = pool.streams.of(where)
        torch.accelerator.synchronize(device)
        stream = torch.Stream(device=where) if side else torch.accelerator.current_stream(where)
        with stream:
            if stalled == "producer":
                fake.stall(device)
            state["x"].copy_(ones, non_blocking=True)
            if stalled == "copies":
                stream.synchronize()
                with copies:
                    fake.stall(device)
            fake.reset_stats()
            plan = plan_snapshot({"x": wrap(state["x"])})
            taken = Snapshot(plan, pool.admit(plan.raw_bytes, pinned=True))
            del plan
            taken.capture()
            go.host_waits = fake.stats().get("host waits", 0)
            after(state, where)
        go.copies, go.caller = copies, stream
        return taken

    yield go
    finish(fake)


@BOTH
@pytest.mark.parametrize("stalled", ["producer", "copies"])
@pytest.mark.parametrize("after", [overwrite, free_and_reuse])
def test_a_snapshot_holds_the_values_of_the_call(fake, take, after, side, stalled):
    """Cases 1 and 6: producer late or copies late, source overwritten or freed, on any stream; the host never waits."""
    taken = take(after, side=side, stalled=stalled)
    assert take.host_waits == 0
    fake.resume()
    assert (values_of(taken) == 1).all()


def test_copies_are_late_indeed(fake, take):
    """While the copy stream is stalled nothing has reached host memory: the other tests test something."""
    taken = take(stalled="copies")
    assert not taken._slots[0].buffer.array[: COUNT * 4].any()
    fake.resume()
    assert (values_of(taken) == 1).all()


@BOTH
def test_without_following_the_caller_older_values_are_read(fake, take, monkeypatch, side):
    """Teeth (a): a copy stream that does not wait for the producer copies what was there before."""
    monkeypatch.setattr(CopyStreams, "follow", lambda *args: None)
    taken = take(side=side)
    take.copies.synchronize()
    fake.resume()
    assert (values_of(taken) == 0).all()


@BOTH
def test_without_holding_up_the_caller_later_values_are_read(fake, take, monkeypatch, side):
    """Teeth (b): a caller's stream that does not wait for the copies overwrites what they are to read."""
    monkeypatch.setattr(CopyStreams, "hold_up", lambda *args: None)
    taken = take(side=side, stalled="copies")
    take.caller.synchronize()
    fake.resume()
    assert (values_of(taken) == 2).all()


def test_without_waiting_for_the_event_unfinished_copies_are_read(take, monkeypatch):
    """Teeth (c): a reader that does not wait for the copies' event reads a buffer that is not filled yet."""
    monkeypatch.setattr(snapshot, "wait_for", lambda *args: None)
    assert (values_of(take(stalled="copies")) == 0).all()


def test_without_references_freed_sources_are_read(fake, take, monkeypatch):
    """Teeth (d): a snapshot that lets go of its sources copies what their memory holds by then."""
    monkeypatch.setattr(Snapshot, "sources", lambda *args: [])
    taken = take(free_and_reuse, stalled="copies")
    fake.resume()
    assert not (values_of(taken) == 1).all()


def test_a_tensor_with_holes_is_made_contiguous_behind_its_producer(fake, take):
    """Elements of a view with holes are gathered on the copy stream; the gathered copy lives as long as it is read."""
    taken = take(free_and_reuse, wrap=lambda x: x.view(50, 20)[:, ::2])
    fake.resume()
    values = values_of(taken)
    assert len(values) == COUNT // 2
    assert (values == 1).all()


def test_memory_is_not_given_back_while_a_device_writes_to_it(fake, take, pool):
    """A snapshot that is given up in the middle of its copies waits for them before its buffers are free."""
    taken = take(stalled="copies")
    taken.abort(RuntimeError("given up"))
    ending = threading.Thread(target=taken.release_all)
    ending.start()
    assert pool.usage().bytes_in_use > 0
    fake.resume()
    ending.join(60)
    assert pool.usage().bytes_in_use == 0
    assert pool.usage().in_flight == 0
    with pytest.raises(RuntimeError, match="given up"):
        taken.read(0)


@pytest.mark.parametrize("call", ["wait_captured", "read", "release_all"])
def test_waiting_leaves_the_current_device_alone(fake, take, call):
    """Case 74: a caller's thread that waits for copies from device 1 goes on with the device that it had."""
    taken = take(device=1)
    fake.resume()
    {"wait_captured": taken.wait_captured, "read": lambda: taken.read(0), "release_all": taken.release_all}[call]()
    assert torch.accelerator.current_device_index() == 0
    taken.release_all()


def test_a_thread_waits_with_the_device_of_the_event(fake):
    """Case 74: new threads begin with device 0; they wait for an event with the event's device current."""
    seen = []

    class Event:
        def synchronize(self):
            seen.append(torch.accelerator.current_device_index())

    thread = threading.Thread(target=wait_for, args=(torch.device("fake:1"), Event()))
    thread.start()
    thread.join(60)
    assert seen == [1]


def test_a_stream_per_device_in_one_snapshot(fake, pool):
    """Case 74: with device 1 current, tensors of both devices are copied behind their own producers."""
    state = {f"x{i}": torch.zeros(COUNT, device=f"fake:{i}") for i in range(2)}
    torch.accelerator.set_device_index(1)
    fake.stall(0)
    fake.stall(1)
    for i, x in enumerate(state.values()):
        x.fill_(i + 1)
    plan = plan_snapshot(state)
    taken = Snapshot(plan, pool.admit(plan.raw_bytes, pinned=True))
    fake.reset_stats()
    taken.capture()
    assert "host waits" not in fake.stats()
    for x in state.values():
        x.fill_(-1)
    fake.resume()
    assert values_of(taken).tolist() == [1.0] * COUNT + [2.0] * COUNT
    finish(fake)
    assert torch.accelerator.current_device_index() == 1


def test_host_and_device_tensors_in_one_buffer(fake, pool):
    """A buffer filled from both sides is complete for readers only when the device's part is."""
    state = {
        "host": torch.full((COUNT,), 5.0),
        "device": torch.zeros(COUNT, device="fake"),
        "end": torch.full((3,), 7.0),
    }
    torch.accelerator.synchronize()
    fake.stall(0)
    state["device"].fill_(6)
    plan = plan_snapshot(state)
    taken = Snapshot(plan, pool.admit(plan.raw_bytes, pinned=True))
    taken.capture()
    for x in state.values():
        x.fill_(-1)
    fake.resume()
    assert values_of(taken).tolist() == [5.0] * COUNT + [6.0] * COUNT + [7.0] * 3
    finish(fake)


def test_a_pool_that_began_pageable_becomes_pinned(fake, pool):
    """States of host tensors take pageable memory; once one comes from a device, buffers are pinned."""
    pool.prepare(1 << 20)
    assert not pool._free[0].pinned
    pool.prepare(1 << 20, pinned=True)
    assert all(buffer.pinned and buffer.tensor.is_pinned() for buffer in pool._free)
    assert all(buffer.tensor.data_ptr() % 4096 == 0 for buffer in pool._free)


def test_closing_gives_pinned_memory_back_to_the_system(fake, pool, monkeypatch):
    """Case 13: freed pinned memory would stay in torch's cache; ``close`` empties that, where there is one."""
    emptied = []
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: emptied.append(1))
    pool.prepare(1 << 20)
    pool.close()
    pool.prepare(1 << 20, pinned=True)
    pool.close()
    assert emptied == []
    monkeypatch.setattr(memory, "CACHING", {"fake"})
    pool.prepare(1 << 20, pinned=True)
    pool.close()
    assert emptied == [1]


def test_host_tensors_need_no_device(fake, pool):
    """With an accelerator present, a state of host tensors neither pins memory nor touches a device."""
    fake.reset_stats()
    plan = plan_snapshot({"x": torch.ones(COUNT)})
    assert not plan.devices
    taken = Snapshot(plan, pool.admit(plan.raw_bytes, pinned=bool(plan.devices)))
    taken.capture()
    assert (values_of(taken) == 1).all()
    assert fake.stats() == {}
