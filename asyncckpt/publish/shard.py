"""One rank's part of a checkpoint: its pack, then its index.

Order: every frame of the pack, durable; then the index, durable. So an index that exists speaks of a whole pack.

How the frames get there: pipeline.py.
"""

import asyncio
import time
from concurrent.futures import Executor
from contextlib import aclosing
from typing import Final

from asyncckpt.encode.base import Codec
from asyncckpt.errors import SaveError
from asyncckpt.events import Phases
from asyncckpt.manifest.documents import VERSION, IndexDocument, ShardEntry
from asyncckpt.manifest.format import encode_index, file_digest
from asyncckpt.manifest.names import part_name
from asyncckpt.publish.blocks import Blocks
from asyncckpt.publish.pipeline import Frames
from asyncckpt.store.base import Store, single

LOOK_AHEAD: Final = 3  # two in the encoder threads and one that is ready
RAW_BATCH: Final = 8  # frames stored as they are cost little: a thread takes some at a time
RAW_AHEAD: Final = 16  # they take no memory of their own; so many keep two threads busy and a run ready


async def write_shard(
    store: Store,
    folder: str,
    blocks: Blocks,
    *,
    save_id: str,
    step: int,
    rank: int = 0,
    world: int = 1,
    codec: Codec | None,
    encoders: Executor,
    phases: Phases,
    look_ahead: int | None = None,
) -> ShardEntry:
    """Write one rank's pack and index; both are durable on return.

    Args:
        store: the root.
        folder: the step's folder.
        blocks: the snapshot. Every frame that is read is released exactly once, also when this fails.
        save_id: the attempt's id; no file of this name exists yet.
        step: for the index.
        rank: ours.
        world: number of ranks.
        codec: None stores every frame as it is.
        encoders: threads that read, encode and digest; they must take calls in order.
        phases: ``encode``, ``write`` and ``sync`` are added.
        look_ahead: most frames that are being encoded or wait to be written; None: ``RAW_AHEAD`` without a codec, else
            ``LOOK_AHEAD``, one more than the encoder threads.

    Raises:
        StoreError: the store refused; whatever reading or encoding a frame raised comes through as it is.
    """
    ahead, batch = (RAW_AHEAD, RAW_BATCH) if codec is None else (LOOK_AHEAD, 1)
    frames = Frames(blocks, codec, encoders, phases, look_ahead or ahead, batch)
    pack = part_name(save_id, rank, world, "pack")
    async with aclosing(frames.parts()) as parts:
        pack_bytes = await store.put(f"{folder}/{pack}", parts)
    phases.add("sync", time.perf_counter() - frames.drained)
    table = frames.table()
    if pack_bytes != sum(table.stored):
        raise SaveError(f"{folder}/{pack}: {sum(table.stored)} bytes were given to the store, it took {pack_bytes}")
    document = IndexDocument(
        version=VERSION,
        step=step,
        save_id=save_id,
        rank=rank,
        world=world,
        raw_bytes=blocks.raw_bytes,
        pack_bytes=pack_bytes,
        frames=table,
        tree=blocks.tree,
    )
    return await _write_index(store, folder, pack, document, encoders, phases)


async def _write_index(
    store: Store, folder: str, pack: str, document: IndexDocument, encoders: Executor, phases: Phases
) -> ShardEntry:
    name = part_name(document.save_id, document.rank, document.world, "index")
    with phases("encode"):
        data, raw_bytes = await asyncio.get_running_loop().run_in_executor(encoders, encode_index, document)
    with phases("write"):
        await store.put(f"{folder}/{name}", single(data))
    return ShardEntry(
        pack=pack,
        pack_bytes=document.pack_bytes,
        index=name,
        index_bytes=len(data),
        index_raw_bytes=raw_bytes,
        index_digest=file_digest(data),
    )
