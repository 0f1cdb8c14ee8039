"""A cancelled call of a local store waits for its thread and leaves nothing."""

import asyncio
import os
import threading

import pytest

OLD, NEW = b"old" * 1000, b"new" * 2000


def test_cancelling_waits_for_the_running_write(store, root, monkeypatch, ops):
    """A cancelled put returns only when no thread touches its part any more, and leaves nothing."""
    real, entered, go_on, returned = os.write, threading.Event(), threading.Event(), []

    def write(fd, data):
        entered.set()
        go_on.wait()
        count = real(fd, data)
        returned.append(count)
        return count

    async def parts():
        yield bytes(3 << 20)
        raise AssertionError("not asked for")

    async def main():
        task = asyncio.create_task(store.put("f/a", parts()))
        await asyncio.to_thread(entered.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert returned

    monkeypatch.setattr("asyncckpt.store.direct._address", lambda part: 0)  # straight from the part's memory
    monkeypatch.setattr("asyncckpt.store.direct.DataFile._set_direct", lambda self, on: False)
    monkeypatch.setattr(os, "write", write)
    asyncio.run(main())
    assert ops.names(root / "f") == []


@pytest.mark.parametrize("replacing", [False, True])
def test_cancelling_at_the_last_moment_takes_the_new_name_back(store, root, monkeypatch, ops, replacing):
    """A put that is cancelled while its rename runs ends as if it had not been."""
    if replacing:
        ops.put(store, "f/a", OLD)
    real, entered, go_on = os.replace, threading.Event(), threading.Event()

    def replace(source, target):
        entered.set()
        go_on.wait()
        real(source, target)

    async def main():
        task = asyncio.create_task(store.put("f/a", iterate()))
        await asyncio.to_thread(entered.wait)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def iterate():
        yield NEW

    monkeypatch.setattr(os, "replace", replace)
    asyncio.run(main())
    assert ops.names(root / "f") == (["a"] if replacing else [])
    assert not replacing or ops.get(store, "f/a", len(OLD)) == OLD


def test_cancelling_a_read_waits_for_it(store, monkeypatch, ops):
    """A cancelled read returns only when nothing fills the caller's memory any more."""
    ops.put(store, "f/a", OLD)
    real, entered, go_on, returned = os.preadv, threading.Event(), threading.Event(), []

    def preadv(fd, buffers, offset):
        entered.set()
        go_on.wait()
        returned.append(count := real(fd, buffers, offset))
        return count

    async def main():
        task = asyncio.create_task(store.read("f/a", 0, memoryview(bytearray(10))))
        await asyncio.to_thread(entered.wait)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert returned

    monkeypatch.setattr(os, "preadv", preadv)
    asyncio.run(main())
