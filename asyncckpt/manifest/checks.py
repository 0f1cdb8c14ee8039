"""The rules that documents must obey beyond their types. Numbers are Python ints, so no sum here can overflow.

Every broken rule is a ``FormatError`` whose ``defect`` names it.
"""

import math
import re
from typing import Final, NoReturn

from asyncckpt.encode.base import KINDS, RAW
from asyncckpt.errors import FormatError
from asyncckpt.manifest.documents import (
    MAX_FRAME_BYTES,
    MAX_INDEX_BYTES,
    ArrayLeaf,
    BytesLeaf,
    FrameTable,
    IndexDocument,
    Manifest,
    ShardEntry,
    TensorLeaf,
)
from asyncckpt.manifest.names import Part, part_name

MAX_BYTES: Final = 2**63 - 1
MAX_DIMENSIONS: Final = 64
FRAME_SLACK: Final = 64  # a coded frame may be this much longer than its raw form
_YEAR_10000: Final = 253402300800.0
_DIGEST = re.compile(r"[0-9a-f]{32}")
_SAVE_ID = re.compile(r"[0-9a-f]{12}")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]{1,4})?")
_FLAGS: Final = frozenset({"", "p", "g", "pg"})


def refuse(what: str, defect: str) -> NoReturn:
    """A document breaks a rule."""
    raise FormatError(f"{what} breaks the format's rules: {defect}", defect=defect)


def _require(rule: object, what: str, defect: str) -> None:
    if not rule:
        refuse(what, defect)


# ---- index ---------------------------------------------------------------------------------------------------------


def check_index(index: IndexDocument, file: str, part: Part | None, step: int | None) -> None:
    """What an index says of itself must agree with the name of its file and the manifest's step, and add up."""
    own = (index.save_id, index.rank, index.world)
    _require(_SAVE_ID.fullmatch(index.save_id), file, "save_id is not 12 hex digits")
    _require(0 <= index.rank < index.world, file, "rank is not below world")
    _require(0 <= index.step <= MAX_BYTES, file, "step out of range")
    _require(part is None or own == part[:3], file, "it is the index of another save or rank")
    _require(step is None or step == index.step, file, f"it is the index of step {index.step}")
    _check_frames(index.frames, file)
    _require(sum(index.frames.raw) == index.raw_bytes, file, "the frames' raw lengths do not add up to raw_bytes")
    _require(sum(index.frames.stored) == index.pack_bytes, file, "the frames' stored lengths do not add up")
    _require(index.raw_bytes <= MAX_BYTES, file, "raw_bytes out of range")


def _check_frames(frames: FrameTable, file: str) -> None:
    raw, stored = frames.raw, frames.stored
    columns = {len(raw), len(stored), len(frames.kinds), len(frames.encodings)}
    _require(columns == {len(raw)}, file, "the columns of the frame table differ in length")
    _require(len(frames.digests) == 32 * len(raw), file, "a digest of 32 digits is needed for each frame")
    _require(not frames.digests.strip("0123456789abcdef"), file, "digests are not hex")
    _require(all(0 < n <= MAX_FRAME_BYTES for n in raw), file, "a frame's raw length is out of range")
    _require(
        all(0 < n <= m + FRAME_SLACK for n, m in zip(stored, raw, strict=True)), file, "a stored length is out of range"
    )
    _require(all(kind in KINDS for kind in frames.kinds), file, "unknown kind of frame")
    _require(all(0 < len(name) <= MAX_DIMENSIONS for name in set(frames.encodings)), file, "a bad encoding name")
    _require(
        all(n == m for n, m, name in zip(stored, raw, frames.encodings, strict=True) if name == RAW),
        file,
        "a raw frame whose lengths differ",
    )


# ---- manifest ------------------------------------------------------------------------------------------------------


def check_manifest(manifest: Manifest, file: str) -> None:
    """What a manifest says must agree with itself."""
    _require(0 <= manifest.step <= MAX_BYTES, file, "step out of range")
    _require(_SAVE_ID.fullmatch(manifest.save_id), file, "save_id is not 12 hex digits")
    _require(0 <= manifest.created < _YEAR_10000, file, "created is no time")
    _require(0 <= manifest.raw_bytes <= MAX_BYTES, file, "raw_bytes out of range")
    _require(all(map(math.isfinite, manifest.timings.values())), file, "a timing is not a finite number")
    _require(manifest.shards, file, "no shards")
    for rank, shard in enumerate(manifest.shards):
        _check_shard(shard, (manifest.save_id, rank, len(manifest.shards)), file)
    total = sum(shard.pack_bytes + shard.index_bytes for shard in manifest.shards)
    _require(manifest.stored_bytes == total, file, "the shards' sizes do not add up to stored_bytes")


def _check_shard(shard: ShardEntry, owner: tuple[str, int, int], file: str) -> None:
    names = (part_name(*owner, "pack"), part_name(*owner, "index"))
    _require((shard.pack, shard.index) == names, file, f"rank {owner[1]}'s files are not named {names[0]}, {names[1]}")
    _require(0 <= shard.pack_bytes <= MAX_BYTES, file, "pack_bytes out of range")
    _require(0 < shard.index_bytes <= MAX_BYTES, file, "index_bytes out of range")
    _require(0 < shard.index_raw_bytes <= MAX_INDEX_BYTES, file, "index_raw_bytes out of range")
    _require(_DIGEST.fullmatch(shard.index_digest), file, "index_digest is not 32 hex digits")


# ---- leaves --------------------------------------------------------------------------------------------------------


def check_leaf(
    leaf: TensorLeaf | ArrayLeaf | BytesLeaf, raw_bytes: int, *, itemsize: int = 1, what: str = "a leaf of the tree"
) -> None:
    """Refuse a leaf that reaches outside its region, or whose region reaches outside the logical byte string.

    Args:
        leaf: as it came from the file.
        raw_bytes: length of the logical byte string.
        itemsize: bytes of one element of the leaf's dtype.
        what: the leaf's key path, for the error.
    """
    _require(leaf.region >= 0 and leaf.region_bytes >= 0, what, "negative region")
    _require(leaf.region + leaf.region_bytes <= raw_bytes, what, "its region reaches beyond raw_bytes")
    if isinstance(leaf, BytesLeaf):
        return
    numel = _count(leaf.shape, what)
    _require(numel * itemsize <= MAX_BYTES, what, "too many elements")
    if isinstance(leaf, ArrayLeaf):
        _require(leaf.order in {"C", "F"}, what, "order is neither C nor F")
        _require(numel * itemsize == leaf.region_bytes, what, "its region is not as long as the array")
    else:
        _check_tensor(leaf, numel, itemsize, what)


def _count(shape: tuple[int, ...], what: str) -> int:
    _require(len(shape) <= MAX_DIMENSIONS, what, "too many dimensions")
    _require(all(0 <= n <= MAX_BYTES for n in shape), what, "a dimension is out of range")
    return math.prod(shape)


def _check_tensor(leaf: TensorLeaf, numel: int, itemsize: int, what: str) -> None:
    _require(leaf.flags in _FLAGS, what, "unknown flags")
    _require(_DEVICE.fullmatch(leaf.device), what, "a bad device")
    _require(leaf.offset >= 0, what, "negative offset")
    reach = leaf.offset + (_extent(leaf, numel, what) * itemsize if numel else 0)
    _require(reach <= leaf.region_bytes, what, "it reaches beyond its region")


def _extent(leaf: TensorLeaf, numel: int, what: str) -> int:
    """Elements from the first to the last in memory, both included, of a tensor that is not empty."""
    if leaf.strides is None:
        return numel
    _require(len(leaf.strides) == len(leaf.shape), what, "shape and strides differ in length")
    _require(all(0 <= n <= MAX_BYTES for n in leaf.strides), what, "a stride is out of range")
    return 1 + sum((n - 1) * stride for n, stride in zip(leaf.shape, leaf.strides, strict=True))
