"""Host memory for snapshots: capped, reused, given back."""

import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from asyncckpt.capture.pool import Pool

MB = 1 << 20


def take_all(admission, nbytes):
    count = -(-nbytes // admission.buffer_size)
    return [admission.buffer(i) for i in range(count)]


def test_memory_is_reused_and_given_back():
    """The second snapshot of a size allocates nothing; ``close`` frees everything."""
    pool = Pool(host_memory=None, max_in_flight=2)
    seen = set()
    for _ in range(3):
        admission = pool.admit(20 * MB, timeout=0)
        seen |= {buffer.tensor.data_ptr() for buffer in take_all(admission, 20 * MB)}
        admission.release()
        allocated = pool.usage().bytes_allocated
    assert len(seen) * admission.buffer_size == allocated
    assert pool.usage().bytes_in_use == 0
    pool.close()
    assert pool.usage().bytes_allocated == 0


def test_buffers_are_page_aligned_and_of_one_power_of_two():
    """What is written straight to disk must be aligned."""
    pool = Pool(host_memory=None, max_in_flight=1)
    admission = pool.admit(100 * MB, timeout=0)
    assert admission.buffer_size & (admission.buffer_size - 1) == 0
    for buffer in take_all(admission, 100 * MB):
        assert buffer.tensor.data_ptr() % 4096 == 0
        assert buffer.tensor.numel() == admission.buffer_size
    admission.release()
    pool.close()


def test_no_more_snapshots_than_allowed():
    """``max_in_flight`` holds even for empty states; a release makes room."""
    pool = Pool(host_memory=None, max_in_flight=2)
    first, second = pool.admit(0, timeout=0), pool.admit(0, timeout=0)
    assert pool.admit(0, timeout=0.01) is None
    assert pool.usage().in_flight == 2
    first.release()
    first.release()
    assert pool.usage().in_flight == 1
    assert pool.admit(0, timeout=0) is not None
    second.release()
    pool.close()


def test_a_waiter_gets_room_when_it_comes():
    """A blocked ``admit`` goes on as soon as another snapshot ends."""
    pool = Pool(host_memory=8 * MB, max_in_flight=9)
    first = pool.admit(6 * MB, timeout=0)
    got = []
    waiter = threading.Thread(target=lambda: got.append(pool.admit(6 * MB)))
    waiter.start()
    assert pool.admit(6 * MB, timeout=0) is None
    first.release()
    waiter.join(30)
    assert len(got) == 1
    got[0].release()
    pool.close()


def test_a_streamed_state_goes_through_in_turns():
    """A state larger than the cap is admitted alone; its buffers wait for those that come back."""
    pool = Pool(host_memory=4 * MB, max_in_flight=4)
    admission = pool.admit(64 * MB, timeout=0)
    assert admission.streamed
    assert pool.admit(64 * MB, timeout=0) is None
    count = 4 * MB // admission.buffer_size
    for i in range(count):
        admission.buffer(i)
    got = threading.Event()
    waiter = threading.Thread(target=lambda: (admission.buffer(count), got.set()))
    waiter.start()
    assert not got.is_set()
    admission.give_back(0)
    waiter.join(30)
    assert got.is_set()
    assert pool.usage().peak_bytes <= 4 * MB
    admission.release()
    assert pool.usage().bytes_in_use == 0
    pool.close()


def test_preparing_allocates_all_that_the_first_saves_need():
    """After ``prepare`` two snapshots of the size allocate nothing more."""
    pool = Pool(host_memory=None, max_in_flight=2)
    pool.prepare(20 * MB)
    before = pool.usage().bytes_allocated
    for admission in [pool.admit(20 * MB, timeout=0) for _ in range(2)]:
        take_all(admission, 20 * MB)
    assert pool.usage().bytes_allocated == before
    pool.close()


def test_a_cap_must_be_of_some_size():
    """Less than 1 MiB is refused."""
    with pytest.raises(ValueError, match="1 MiB"):
        Pool(host_memory=1000, max_in_flight=1)


def test_an_interrupted_waiter_holds_nothing(monkeypatch):
    """An interrupt ends a wait for room at once and leaves the figures as they were."""
    pool = Pool(host_memory=8 * MB, max_in_flight=2)
    first = pool.admit(6 * MB, timeout=0)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool._changed, "wait", interrupt)
    before = pool.usage()
    with pytest.raises(KeyboardInterrupt):
        pool.admit(6 * MB)
    assert pool.usage() == before
    first.release()
    assert pool.admit(6 * MB, timeout=0) is not None


def test_memory_in_use_at_close_is_freed_when_it_comes_back():
    """``close`` while a snapshot is held frees the rest now and that snapshot's part at its end."""
    pool = Pool(host_memory=None, max_in_flight=2)
    pool.prepare(20 * MB)
    admission = pool.admit(20 * MB, timeout=0)
    buffers = take_all(admission, 20 * MB)
    pool.close()
    assert pool.usage().bytes_allocated == len(buffers) * admission.buffer_size
    buffers[0].tensor.fill_(1)
    admission.release()
    assert pool.usage().bytes_allocated == 0


def test_a_far_larger_state_gets_larger_buffers_and_its_own_cap():
    """Buffers grow once nothing is in flight; without ``host_memory`` the cap is what the largest state needs."""
    pool = Pool(host_memory=None, max_in_flight=2)
    pool.admit(MB, timeout=0).release()
    small = pool.buffer_size
    admission = pool.admit(100 * MB, timeout=0)
    assert admission.buffer_size > small
    assert 200 * MB <= pool.usage().cap <= 1.3 * 200 * MB
    admission.release()
    pool.admit(MB, timeout=0).release()
    assert pool.usage().cap >= 200 * MB
    pool.close()


def test_buffers_keep_their_size_while_one_is_still_being_filled():
    """A snapshot that has ended, but for the buffer its thread still fills, holds up a change of size."""
    pool = Pool(host_memory=None, max_in_flight=2)
    admission = pool.admit(MB, timeout=0)
    admission.buffer(0)
    admission.release(keep={0})
    size = pool.buffer_size
    pool.admit(100 * MB, timeout=0).release()
    assert pool.buffer_size == size
    admission.give_back(0)
    pool.admit(100 * MB, timeout=0).release()
    assert pool.buffer_size > size
    pool.close()


@given(st.lists(st.tuples(st.integers(0, 9 * MB), st.booleans()), max_size=12), st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_never_more_than_the_cap(requests, limit):
    """Whatever is asked for and given back: memory stays below the cap, and snapshots below their number."""
    pool, held = Pool(host_memory=4 * MB, max_in_flight=limit), []
    for nbytes, ends in requests:
        admission = pool.admit(nbytes, timeout=0)
        if admission is not None:
            held.append(admission)
            if not admission.streamed:
                take_all(admission, nbytes)
        usage = pool.usage()
        assert usage.bytes_in_use <= usage.bytes_allocated <= usage.cap <= 4 * MB
        assert usage.in_flight == len(held) <= limit
        if ends and held:
            held.pop(0).release()
    for admission in held:
        admission.release()
    assert (pool.usage().in_flight, pool.usage().bytes_in_use) == (0, 0)
    assert pool.admit(4 * MB, timeout=0) is not None
    pool.close()
