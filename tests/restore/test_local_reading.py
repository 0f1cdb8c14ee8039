"""Large reads of local files: from the page cache, past it, and where that is refused."""

import asyncio
import errno
import os
import threading

import pytest
import torch
from checkpoint_by_hand import FOLDER, Hand

from asyncckpt.encode.codec import Zstd
from asyncckpt.encode.frame import known_codecs
from asyncckpt.errors import IntegrityError, PermanentStoreError
from asyncckpt.restore.load import Reader, load_tree
from asyncckpt.restore.pages import Room
from asyncckpt.store.base import PAGE, BlockingReads, single
from asyncckpt.store.local import LocalStore
from asyncckpt.testing import GateStore

CONTENT = os.urandom(5 * PAGE + 777)
RANGES = [(0, len(CONTENT)), (0, PAGE), (1, 10), (PAGE - 1, 2), (PAGE, 3 * PAGE), (5 * PAGE + 7, 770), (64, 4 * PAGE)]


@pytest.fixture
def store(tmp_path):
    store = LocalStore(tmp_path)
    asyncio.run(store.put("f/a", single(CONTENT)))
    return store


@pytest.fixture(params=["cached", "past the cache", "refused when opened", "refused when read", "unmappable"])
def way(request, monkeypatch):
    """Each way that a read can take."""
    if request.param != "cached":
        monkeypatch.setattr("asyncckpt.store.cached.Cache.holds", lambda *_: False)
    if request.param == "refused when opened":
        real = os.open

        def opening(path, flags, *rest, **keywords):
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no")
            return real(path, flags, *rest, **keywords)

        monkeypatch.setattr(os, "open", opening)
    if request.param == "refused when read":
        monkeypatch.setattr(os, "preadv", _only_small(os.preadv))
    if request.param == "unmappable":
        monkeypatch.setattr("mmap.mmap", _raising(OSError(errno.ENODEV, "no"), __import__("mmap").mmap))
    return request.param


def _only_small(real):
    """A ``preadv`` that refuses direct descriptors, as some file systems do only then."""
    import fcntl

    def preadv(fd, buffers, offset):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return real(fd, buffers, offset)

    return preadv


def _raising(error, real):
    def mapping(fd, *rest, **keywords):
        if fd >= 0:
            raise error
        return real(fd, *rest, **keywords)

    return mapping


def test_every_way_gives_the_same_bytes(store, way):
    """Whatever the way and the alignment, exactly the bytes asked for come back, in ``into`` or in the room."""
    with store.opened("f/a", shared=False) as file:
        for start, nbytes in RANGES:
            into, room = memoryview(bytearray(nbytes)), Room().take(nbytes + 2 * PAGE)
            found = file.fetch(start, nbytes, into, room)
            assert found == CONTENT[start : start + nbytes]
            assert found is into or not any(into)
            assert file.fetch(start, nbytes, None, room) == CONTENT[start : start + nbytes]


def test_what_is_not_there_is_told(store, way):
    """Missing, short and unreadable files give the errors of ``Store.read``."""
    room = Room().take(len(CONTENT) + 4 * PAGE)
    with store.opened("f/a", shared=False) as file, pytest.raises(EOFError):
        file.fetch(PAGE, len(CONTENT), None, room)
    with store.opened("f/b", shared=False) as file, pytest.raises(FileNotFoundError):
        file.fetch(0, 1, None, room)
    with store.opened("f", shared=False) as file, pytest.raises(PermanentStoreError):
        file.fetch(0, 1, None, room)


def test_shared_reads_fill_the_cache(store, monkeypatch):
    """What other processes are about to read as well is never read past the page cache."""
    flags = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, how, *rest, **k: flags.append(how) or real(path, how, *rest, **k))
    with store.opened("f/a", shared=True) as file:
        assert file.fetch(0, 10, None, Room().take(3 * PAGE)) == CONTENT[:10]
    assert flags
    assert not any(how & os.O_DIRECT for how in flags)


def on_disk(tmp_path, hand):
    """A checkpoint that was written by hand, in a local store."""
    store = LocalStore(tmp_path)
    for key, data in hand.store.objects.items():
        asyncio.run(store.put(key, single(data)))
    return store


@pytest.mark.parametrize("codec", [None, Zstd()], ids=["raw", "zstd"])
def test_checkpoints_are_restored_on_every_way(tmp_path, way, codec):
    """Large tensors in place, new ones, parts of frames: all come back from a local store on every way."""
    state = {"a": torch.randn(3, 5 << 10) * 0.02, "b": torch.randn(7 << 10), "c": torch.randn(33), "d": b"x" * 5000}
    hand = Hand(frame_size=3 * PAGE, codec=codec).write(state)
    store = on_disk(tmp_path, hand)
    assert isinstance(store, BlockingReads)
    live = torch.zeros(3, 5 << 10)

    async def go():
        reader = Reader(store, FOLDER, hand.manifest, codecs=known_codecs())
        await reader.open()
        return await reader.read(destinations={("a",): live})

    loaded = asyncio.run(go())
    assert loaded["a"] is live
    assert all(torch.equal(loaded[key], state[key]) for key in "abc")
    assert loaded["d"] == state["d"]


def test_damage_is_found_on_every_way(tmp_path, way):
    """A flipped bit in the pack is an IntegrityError however it was read; so is a pack that is gone."""
    hand = Hand(frame_size=PAGE).write({"a": torch.randn(4 << 10)})
    store = on_disk(tmp_path, hand)
    bad = bytearray(hand.store.objects[hand.pack_key])
    bad[-1] ^= 4
    asyncio.run(store.put(hand.pack_key, single(bytes(bad))))
    with pytest.raises(IntegrityError, match="damaged"):
        asyncio.run(load_tree(store, FOLDER, hand.manifest, codecs=known_codecs()))
    asyncio.run(store.delete([hand.pack_key]))
    with pytest.raises(IntegrityError, match="missing"):
        asyncio.run(load_tree(store, FOLDER, hand.manifest, codecs=known_codecs()))


def test_a_cancelled_restore_leaves_no_thread_and_no_read():
    """Cancelled while its reads hang, a restore ends them, and nothing is written afterwards."""
    hand = Hand(frame_size=1 << 15).write({"a": torch.randn(1 << 16)})
    gate = GateStore(hand.store, ["read"], suffix=".pack")
    live = torch.zeros(1 << 16)

    async def go():
        reader = Reader(gate, FOLDER, hand.manifest, codecs=known_codecs())
        await reader.open()
        task = asyncio.create_task(reader.read(destinations={("a",): live}))
        await asyncio.to_thread(gate.entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(thread.name.startswith("asyncckpt-restore") for thread in threading.enumerate())
        gate.open()
        return [other for other in asyncio.all_tasks() if other is not asyncio.current_task()]

    assert asyncio.run(go()) == []
    assert not live.any()


def test_one_failed_read_ends_the_others():
    """The first error comes out at once, although other reads hang for ever."""
    hand = Hand(frame_size=17 << 20)
    hand.write({"a": torch.zeros(9 << 20), "b": torch.zeros(9 << 20)})
    gate = GateStore(hand.store, ["read"], suffix=".pack")
    real = gate.read

    async def read(key, start, into):
        if key.endswith(".pack") and start == 0:
            raise EOFError("cut short")
        await real(key, start, into)

    gate.read = read
    with pytest.raises(IntegrityError):
        asyncio.run(load_tree(gate, FOLDER, hand.manifest, codecs=known_codecs()))


def test_rooms_are_page_aligned_and_reused():
    """A room lies on a page, keeps its memory while it is large enough, and grows when it is not."""
    import numpy as np

    room = Room()
    address = lambda view: np.frombuffer(view, np.uint8).ctypes.data  # noqa: E731
    first = address(room.take(10))
    assert first % PAGE == 0
    assert address(room.take(3 * PAGE)) == first
    large = room.take(9 << 20)
    assert len(large) == 9 << 20
    assert address(large) % PAGE == 0
