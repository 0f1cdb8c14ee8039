"""Raw frames that lie back to back in memory go to the store together."""

import mmap

import pytest
from test_shard import Deflate

from asyncckpt.encode.base import FrameSpec
from asyncckpt.manifest.format import decode_index
from asyncckpt.publish.pipeline import RUN
from asyncckpt.publish.shard import RAW_AHEAD
from asyncckpt.threads import InPlace

FRAME = 1 << 20


class Neighbours:
    """Frames cut from a few buffers, ``per_buffer`` of them back to back in each."""

    tree = None

    def __init__(self, count, per_buffer):
        self.per_buffer, self.raw_bytes = per_buffer, count * FRAME
        self.frames = [FrameSpec(i * FRAME, FRAME, "b1") for i in range(count)]
        self.buffers = [mmap.mmap(-1, per_buffer * FRAME) for _ in range(-(-count // per_buffer))]
        self.released = []
        for i in range(count):
            self.read(i)[:] = bytes([i]) * FRAME

    def read(self, i):
        start = i % self.per_buffer * FRAME
        return memoryview(self.buffers[i // self.per_buffer])[start : start + FRAME]

    def release(self, i):
        self.released.append(i)


class Taking:
    """A store that notes what it is given, and lets nobody but the encoders run meanwhile."""

    def __init__(self, store, blocks):
        self.store, self.blocks = store, blocks
        self.sizes, self.known, self.released, self.data = [], [], [], b""

    async def put(self, key, parts):
        if key.endswith(".index"):
            return await self.store.put(key, parts)
        self.known.append(parts.nbytes)
        async for part in parts:
            self.sizes.append(len(part))
            self.released.append(list(self.blocks.released))
            self.data += part
        return len(self.data)


def pack(root, blocks, **keywords):
    taking = Taking(root.store, blocks)
    shard = root.shard(blocks, store=taking, **keywords)
    key = f"step-000000000001/{shard.index}"
    return taking, decode_index(root.store.objects[key], file=key, entry=shard).frames


@pytest.mark.parametrize("per_buffer", [1, 3, 24])
def test_neighbours_in_memory_go_out_together(root, per_buffer):
    """No part is longer than its buffer or a run; bytes, frames and their order are as ever; memory goes back after."""
    blocks = Neighbours(24, per_buffer)
    taking, table = pack(root, blocks)
    assert taking.data == b"".join(bytes([i]) * FRAME for i in range(24))
    assert table.stored == [FRAME] * 24
    assert max(taking.sizes) <= min(RUN, per_buffer * FRAME, RAW_AHEAD * FRAME)
    assert blocks.released == list(range(24))
    before = 0
    for size, released in zip(taking.sizes, taking.released, strict=True):
        assert released == list(range(before // FRAME))
        before += size


def test_frames_that_are_ready_make_one_part(root):
    """While the store is busy the encoders go on, so that it gets more at a time: here everything they may do."""
    root.encoders = InPlace()  # each call is done when submitted, so all that may be ahead is ready
    taking, _ = pack(root, Neighbours(2 * RAW_AHEAD + 1, 64))
    assert taking.sizes == [RAW_AHEAD * FRAME, RAW_AHEAD * FRAME, FRAME]


def test_the_store_is_told_the_size_of_a_raw_pack_only(root):
    """Without a codec the pack's size is known beforehand; with one it is not."""
    assert pack(root, Neighbours(3, 3))[0].known == [3 * FRAME]
    taking, table = pack(root, Neighbours(3, 3), codec=Deflate())
    assert taking.known == [None]
    assert sum(table.stored) == len(taking.data) < FRAME


def test_coded_frames_stay_apart(root):
    """Only raw frames lie in the snapshot's memory; a coded one between them parts the run."""

    class Second(Deflate):
        def encode(self, raw, kind):
            return super().encode(raw, kind) if raw[0] == 1 else None

    taking, table = pack(root, Neighbours(3, 3), codec=Second())
    assert table.encodings == ["raw", "deflate", "raw"]
    assert [size for size in taking.sizes if size >= FRAME] == [FRAME, FRAME]
