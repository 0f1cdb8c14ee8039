"""Reading a shard back and comparing it with its digests, before its checkpoint counts as committed."""

from asyncckpt.encode.frame import digest_of
from asyncckpt.errors import IntegrityError
from asyncckpt.manifest.documents import ShardEntry
from asyncckpt.manifest.format import decode_index
from asyncckpt.store.base import Store, read_all


async def verify_shard(store: Store, folder: str, shard: ShardEntry) -> None:
    """Read index and pack as they are stored; ``IntegrityError`` names the file and frame that differ."""
    index_key, pack_key = f"{folder}/{shard.index}", f"{folder}/{shard.pack}"
    index = decode_index(await read_all(store, index_key, shard.index_bytes), file=index_key, entry=shard)
    scratch = bytearray(max(index.frames.stored, default=0))
    start = 0
    for i, stored in enumerate(index.frames.stored):
        view = memoryview(scratch)[:stored]
        await store.read(pack_key, start, view)
        if digest_of([view]) != index.frames.digest(i):
            raise IntegrityError(
                f"{pack_key} differs from what was written, in frame {i} at byte {start}", file=pack_key
            )
        start += stored
