"""A shard: frames encoded ahead, written in order, given back exactly once."""

import asyncio
import threading
import zlib

import pytest

from asyncckpt.encode.frame import digest_of
from asyncckpt.errors import PermanentStoreError
from asyncckpt.events import Phases
from asyncckpt.manifest.format import decode_index
from asyncckpt.publish.shard import write_shard
from asyncckpt.publish.verify import verify_shard
from asyncckpt.testing import Fault, FaultyStore
from asyncckpt.testing.blocks import ListBlocks

NAME = "0123456789ab-00000-of-00001"


class Deflate:
    """A codec in two parts."""

    name = "deflate"

    def encode(self, raw, kind):
        data = zlib.compress(raw)
        return (data[:3], data[3:]) if len(data) < len(raw) else None

    def decode(self, stored, kind, into):
        into[:] = zlib.decompress(stored)


def frames(count, size=1000):
    return [bytes([i % 251]) * (size + i) for i in range(count)]


def exactly_once(blocks):
    """Every frame that was read was released once, and no other."""
    return blocks.reads == blocks.releases and max(blocks.reads, default=0) <= 1


def test_a_shard_is_a_pack_and_an_index_that_agree(root):
    """The pack holds the stored frames in order; the index tells their lengths, kinds, encodings and digests."""
    raw = [*frames(3), bytes(range(50))]
    blocks = ListBlocks(raw, kind="b1", tree=["list", 1, 2])
    shard = root.shard(blocks, codec=Deflate(), step=7)
    pack = root.store.objects["step-000000000007/" + shard.pack]
    stored_index = root.store.objects["step-000000000007/" + shard.index]
    index = decode_index(stored_index, file=f"step-000000000007/{shard.index}", entry=shard, step=7)
    assert (shard.pack, shard.index) == (f"{NAME}.pack", f"{NAME}.index")
    assert index.frames.raw == [len(f) for f in raw]
    assert index.frames.encodings == ["deflate"] * 3 + ["raw"]
    assert (index.raw_bytes, index.pack_bytes) == (sum(map(len, raw)), len(pack))
    assert index.tree == ["list", 1, 2]
    start = 0
    for i, n in enumerate(index.frames.stored):
        stored = pack[start : start + n]
        assert digest_of([stored]) == index.frames.digest(i)
        assert (zlib.decompress(stored) if i < 3 else stored) == raw[i]
        start += n
    assert exactly_once(blocks)
    asyncio.run(verify_shard(root.store, "step-000000000007", shard))


def test_an_empty_state_is_an_empty_pack(root):
    """No frames: a pack of no bytes and an index with the tree."""
    shard = root.shard(ListBlocks([], tree=["dict"]))
    assert shard.pack_bytes == 0
    assert root.store.objects[f"step-000000000001/{shard.pack}"] == b""


def test_the_pack_is_whole_before_the_index_is_begun(root):
    """Write order: no part of an index is asked for before the put of the pack has returned."""
    store = FaultyStore(root.store)
    seen = []

    class Watching:
        def __getattr__(self, name):
            return getattr(store, name)

        async def put(self, key, parts):
            seen.append(("begin", key.rsplit(".")[-1]))
            size = await store.put(key, parts)
            seen.append(("end", key.rsplit(".")[-1]))
            return size

    root.shard(ListBlocks(frames(5)), store=Watching())
    assert seen == [("begin", "pack"), ("end", "pack"), ("begin", "index"), ("end", "index")]


def test_phases_are_timed(root):
    """Encoding, writing and syncing are told apart."""
    phases = Phases()
    root.shard(ListBlocks(frames(5)), phases=phases)
    assert set(phases.seconds()) == {"encode", "write", "sync"}
    assert all(seconds >= 0 for seconds in phases.seconds().values())


@pytest.mark.parametrize("look_ahead", [1, 3])
def test_the_look_ahead_is_bounded(root, look_ahead):
    """While the store holds a part, no more than the look-ahead is in memory; a frame is given back when it moves on."""
    blocks = ListBlocks(frames(20))
    held = []

    class Slow:
        async def put(self, key, parts):
            size = 0
            async for part in parts:
                held.append(blocks.held())
                assert bytes(part) == bytes([size % 251]) * len(part) or key.endswith("index")
                size += 1 if key.endswith("pack") else len(part)
            return sum(map(len, frames(20))) if key.endswith("pack") else size

    root.shard(blocks, store=Slow(), look_ahead=look_ahead)
    assert max(held) <= look_ahead
    assert exactly_once(blocks)


@pytest.mark.parametrize("k", range(1, 12))
def test_a_failing_store_gets_every_frame_given_back(root, k):
    """At whichever operation the store fails: its error comes through, frames read are released once, nothing is left."""
    blocks = ListBlocks(frames(8))
    with pytest.raises(PermanentStoreError, match="injected"):
        root.shard(blocks, store=FaultyStore(root.store, Fault(at=k)))
    assert exactly_once(blocks)
    assert not [key for key in root.store.objects if key.endswith(".index")]


class Breaking(Deflate):
    """A codec that fails at frame ``at``; frames are told apart by their first byte."""

    def __init__(self, at, error):
        self.at, self.error = at, error

    def encode(self, raw, kind):
        if raw[0] == self.at:
            raise self.error
        return super().encode(raw, kind)


@pytest.mark.parametrize("error", [ZeroDivisionError("codec"), MemoryError()])
@pytest.mark.parametrize("at", [0, 4, 7])
def test_a_failing_encoder_ends_the_save(root, at, error):
    """The encoder's own error comes through unchanged, frames are given back, and no pack appears."""
    blocks = ListBlocks(frames(8))
    with pytest.raises(type(error)) as caught:
        root.shard(blocks, codec=Breaking(at, error))
    assert caught.value is error
    assert exactly_once(blocks)
    assert root.store.objects == {}


def test_a_failing_capture_ends_the_save(root):
    """A frame that could not be captured raises its error; it was never read, so it is not released."""

    class Torn(ListBlocks):
        def read(self, i):
            if i == 3:
                raise RuntimeError("capture failed")
            return super().read(i)

    blocks = Torn(frames(8))
    with pytest.raises(RuntimeError, match="capture"):
        root.shard(blocks)
    assert blocks.releases[3] == 0
    assert exactly_once(blocks)


class Stuck(Deflate):
    """A codec that holds frame ``at`` until it is let go."""

    def __init__(self, at):
        self.at, self.entered, self.gate = at, threading.Event(), threading.Event()

    def encode(self, raw, kind):
        if raw[0] == self.at:
            self.entered.set()
            assert self.gate.wait(30)
            assert set(raw) == {self.at}, "the frame was given back while it was being read"
        return super().encode(raw, kind)


def test_cancelling_waits_for_the_frame_that_is_being_encoded(root):
    """A cancelled save ends only when no thread reads the snapshot any more, however often it is cancelled."""
    blocks, codec = ListBlocks(frames(8)), Stuck(1)

    async def main():
        task = asyncio.create_task(
            write_shard(
                root.store, "f", blocks, save_id="0123456789ab", step=1, codec=codec, encoders=root.encoders,
                phases=Phases(),
            )
        )  # fmt: skip
        await asyncio.to_thread(codec.entered.wait, 30)
        for _ in range(3):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        codec.gate.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert exactly_once(blocks)
    assert root.store.objects == {}


def test_memory_goes_back_before_later_frames_are_waited_for(root):
    """A failed save cannot hang: frames are given back in order, so that a capture that needs their memory goes on."""
    room = threading.Semaphore(2)

    class Streamed(ListBlocks):
        def read(self, i):
            assert room.acquire(timeout=30), "the memory of earlier frames did not come back"
            return super().read(i)

        def release(self, i):
            super().release(i)
            room.release()

    blocks = Streamed(frames(8))
    with pytest.raises(PermanentStoreError):
        root.shard(blocks, store=FaultyStore(root.store, Fault(at=3)))
    assert exactly_once(blocks)


def test_a_store_that_loses_bytes_is_found_out(root):
    """The size that the store tells must be the size of what it was given."""
    from asyncckpt.errors import SaveError

    class Lossy:
        async def put(self, key, parts):
            return sum([len(part) async for part in parts]) - 1

    with pytest.raises(SaveError, match="it took"):
        root.shard(ListBlocks(frames(2)), store=Lossy())
