"""Limits on what is in flight, and what happens when they are reached."""

import _thread
import gc
import threading
import weakref

import pytest
import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer, BackpressureError, SaveSkippedError
from asyncckpt.capture.copying import Copier

MB = 1 << 20


def filled(value, mb=2):
    return {"w": torch.full((mb * MB // 4,), float(value))}


def test_waiting_is_the_default_and_is_counted(gate):
    """Case 11: with two in flight the third save waits until one is written; the wait is reported."""
    with AsyncCheckpointer(gate.store, max_in_flight=2) as ck:
        handles = [ck.save(step, filled(step)) for step in (1, 2)]
        assert gate.entered.wait(30)
        assert ck.statistics().in_flight == 2
        late = []
        waiter = threading.Thread(target=lambda: late.append(ck.save(3, filled(3))))
        waiter.start()
        waiter.join(0.3)
        assert waiter.is_alive()
        assert ck.statistics().in_flight == 2
        gate.open()
        waiter.join(30)
        assert [h.result(30).step for h in handles + late] == [1, 2, 3]
        assert ck.statistics().stalled_backpressure > 0.2
    assert asyncckpt.load(gate.root, step=3)["w"][0] == 3


def test_skip_never_looks_successful(gate, caplog):
    """Case 11: a skipped save says so in its handle, the log and the statistics, and writes nothing."""
    caplog.set_level("INFO", "asyncckpt")
    with AsyncCheckpointer(gate.store, max_in_flight=1, when_full="skip") as ck:
        first = ck.save(1, filled(1))
        second = ck.save(2, filled(2))
        assert second.status == "skipped"
        assert second.done()
        with pytest.raises(SaveSkippedError, match="step 2"):
            second.result()
        gate.open()
        first.result(30)
        assert ck.statistics().skipped == 1
        ck.wait()  # a skip is no error to be raised later
    assert "outcome=skipped" in caplog.text
    assert asyncckpt.inspect(gate.root).step == 1


def test_supersede_drops_the_newest_unwritten(gate):
    """The save that has not begun gives way to the newest; the one being written is finished."""
    with AsyncCheckpointer(gate.store, max_in_flight=2, when_full="supersede") as ck:
        first = ck.save(1, filled(1))
        assert gate.entered.wait(30)
        second = ck.save(2, filled(2))
        third = ck.save(3, filled(3))
        assert second.status == "superseded"
        with pytest.raises(SaveSkippedError, match="step 3"):
            second.result()
        gate.open()
        assert [first.result(30).step, third.result(30).step] == [1, 3]
        assert ck.statistics().superseded == 1
        assert ck.steps() == [1, 3]


def test_raise_says_what_is_full(gate):
    """``when_full="raise"``: a BackpressureError, which is a TimeoutError, in the caller."""
    with AsyncCheckpointer(gate.store, max_in_flight=1, when_full="raise") as ck:
        ck.save(1, filled(1))
        with pytest.raises(BackpressureError, match="step 2") as caught:
            ck.save(2, filled(2))
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.step == 2
        gate.open()
        ck.wait()
        assert ck.steps() == [1]


def test_interrupting_a_blocked_save_leaks_nothing(gate):
    """Case 23: Ctrl-C reaches a save that waits for room; its slot is free again and nothing of it is written."""
    with AsyncCheckpointer(gate.store, max_in_flight=1) as ck:
        ck.save(1, filled(1))
        assert gate.entered.wait(30)
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            ck.save(2, filled(2))
        timer.join()
        gate.open()
        ck.save(3, filled(3)).result(30)
        assert ck.steps() == [1, 3]
        assert ck.statistics().in_flight == 0


def test_the_cap_on_host_memory_is_hard(gate):
    """Snapshots never hold more than ``host_memory`` bytes, whatever ``max_in_flight`` allows."""
    with AsyncCheckpointer(gate.store, max_in_flight=8, host_memory="8MiB", when_full="skip") as ck:
        handles = [ck.save(step, filled(step, 3)) for step in range(4)]
        assert [h.status == "skipped" for h in handles] == [False, False, True, True]
        gate.open()
        ck.wait()
        assert ck.statistics().pool_peak_bytes <= 8 * MB
        assert ck.statistics().pool_bytes <= 8 * MB


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_state_larger_than_the_cap_streams_through_it(tmp_path, caplog, compression):
    """A 24 MiB state goes through 4 MiB of host memory and comes back whole; the log says so."""
    state = {f"layer{i}": torch.randn(3 * MB // 4) for i in range(8)}
    caplog.set_level("INFO", "asyncckpt")
    with AsyncCheckpointer(tmp_path, host_memory=4 * MB, compression=compression) as ck:
        handles = [ck.save(step, state) for step in (1, 2)]
        assert [h.result(60).step for h in handles] == [1, 2]
        assert ck.statistics().pool_peak_bytes <= 4 * MB
    loaded = asyncckpt.load(tmp_path)
    assert all(torch.equal(loaded[k], v) for k, v in state.items())
    assert "stream" in caplog.text


def test_memory_comes_back_after_failures_too(tmp_path, faulty):
    """Case 12: 40 saves, half of them failing: memory in use returns to zero and no source is kept alive."""
    sources, first = [], 0
    with AsyncCheckpointer(faulty.store) as ck:
        for step in range(40):
            faulty.failing = step % 2 == 1
            state = filled(step, 1)
            sources.append(weakref.ref(state["w"]))
            handle = ck.save(step, state)
            assert (handle.exception(30) is not None) == faulty.failing
            allocated = ck.statistics().pool_bytes
            first = first or allocated
            assert allocated == first
        faulty.failing = False
        del state
        gc.collect()
        assert ck.statistics().in_flight_bytes == 0
        assert sum(ref() is not None for ref in sources) == 0
        assert ck.statistics().failed == 20


def test_sizes_are_read_as_people_write_them(tmp_path):
    """``host_memory`` takes bytes and text; nonsense is refused by name."""
    AsyncCheckpointer(tmp_path, host_memory="1.5GiB").close()
    AsyncCheckpointer(tmp_path, host_memory=64 * MB).close()
    for bad in ("lots", "-1GB", 0, -5, 1.5, True):
        with pytest.raises(ValueError, match="host_memory"):
            AsyncCheckpointer(tmp_path, host_memory=bad)


def test_a_streamed_save_that_fails_half_way_gives_everything_back(faulty):
    """The disk fills while a state larger than the cap is still being copied: the handle says so, the next one works."""
    state = {f"layer{i}": torch.randn(MB) for i in range(8)}
    with AsyncCheckpointer(faulty.store, host_memory=4 * MB) as ck:
        faulty.failing = True
        handle = ck.save(1, state)
        assert isinstance(handle.exception(30), OSError)
        faulty.failing = False
        ck.save(2, state).result(60)
        assert ck.statistics().in_flight_bytes == 0
        assert ck.statistics().pool_peak_bytes <= 4 * MB
        assert ck.steps() == [2]


def test_a_save_in_the_middle_of_a_save_never_waits_for_itself(tmp_path, monkeypatch):
    """A signal handler that saves while ``save()`` copies gets an error if the room it needs is held by that save."""
    outcomes = []

    def interrupted(*args):
        if not outcomes:
            outcomes.append(None)
            with pytest.raises(BackpressureError, match="middle of another"):
                ck.save(99, filled(9))
        return real(*args)

    real = Copier.host
    monkeypatch.setattr(Copier, "host", interrupted)
    with AsyncCheckpointer(tmp_path, max_in_flight=1) as ck:
        ck.save(1, filled(1)).result(30)
        assert ck.steps() == [1]
    assert outcomes == [None]
