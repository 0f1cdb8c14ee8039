"""The documents of a checkpoint as typed values. docs/format.md is the prose of this file; checks.py has the rules."""

from typing import Any, Final

import msgspec

VERSION: Final = 1
MAX_INDEX_BYTES: Final = 1 << 30  # an index may never claim more than this when decompressed
MAX_MANIFEST_BYTES: Final = 64 << 20
MAX_FRAME_BYTES: Final = 64 << 20  # raw length of a frame

Node = Any  # a JSON value built by manifest/tree.py


# ---- leaves: what the nodes of a tree say of values that lie in the pack ------------------------------------------


class TensorLeaf(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A dense tensor. Bytes are counted in the rank's logical byte string.

    Attributes:
        dtype: torch's name without the prefix, ``float32``.
        shape: element counts.
        strides: in elements, or None for contiguous.
        region: first byte of the region that the tensor's storage range was stored as.
        region_bytes: its length. Tensors of one region share memory when loaded.
        offset: byte of element 0, counted from the region's start.
        device: where it was when saved, ``cpu`` or ``cuda:0``.
        flags: any of ``p`` (nn.Parameter), ``g`` (requires_grad), in this order.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    region: int
    region_bytes: int
    offset: int
    device: str
    flags: str = ""


class ArrayLeaf(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A numpy array. ``dtype`` is numpy's ``dtype.str``, or its ``descr`` for structured ones; ``order`` C or F."""

    dtype: Any
    shape: tuple[int, ...]
    order: str
    region: int
    region_bytes: int


class BytesLeaf(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A long ``bytes``, ``bytearray`` or pickled value."""

    region: int
    region_bytes: int


# ---- index ---------------------------------------------------------------------------------------------------------


class FrameTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The frames of a pack, in order, as columns.

    Frame i holds ``raw[i]`` bytes of the logical string, following frame i-1's, and takes ``stored[i]`` bytes of the
    pack, following frame i-1's.

    Attributes:
        raw: raw lengths in bytes.
        stored: stored lengths in bytes.
        kinds: element kinds.
        encodings: ``raw`` or a codec's name.
        digests: XXH3-128 of the stored bytes, 32 hex digits a frame, joined.
    """

    raw: list[int]
    stored: list[int]
    kinds: list[str]
    encodings: list[str]
    digests: str

    def digest(self, i: int) -> bytes:
        """Digest of frame i, 16 bytes."""
        return bytes.fromhex(self.digests[32 * i : 32 * i + 32])


class IndexDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="asyncckpt-index"):
    """What is in one rank's pack. Stored as JSON in one zstd frame.

    Attributes:
        raw_bytes: length of the logical byte string.
        pack_bytes: length of the pack file.
        tree: the state, see manifest/tree.py; its leaves name byte ranges of the logical string.
    """

    version: int
    step: int
    save_id: str
    rank: int
    world: int
    raw_bytes: int
    pack_bytes: int
    frames: FrameTable
    tree: Node


# ---- manifest ------------------------------------------------------------------------------------------------------


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank's files as the manifest names them. Sizes in bytes; digest: XXH3-128 of the index file, hex."""

    pack: str
    pack_bytes: int
    index: str
    index_bytes: int
    index_raw_bytes: int
    index_digest: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="asyncckpt"):
    """The commit record: it exists if and only if the checkpoint exists.

    Attributes:
        version: of the format.
        digest: XXH3-128 (hex) of this file with the digest's own 32 digits replaced by zeros.
        created: seconds since the epoch, UTC.
        metrics: name -> tree node of a float.
        metadata: tree node of the user's dict.
        raw_bytes: bytes of all logical strings together.
        stored_bytes: bytes of all packs and indexes together.
        timings: seconds by phase, up to the moment the manifest was written.
        versions: of asyncckpt, torch and python.
    """

    version: int
    digest: str
    step: int
    save_id: str
    created: float
    metrics: dict[str, Node]
    metadata: Node
    raw_bytes: int
    stored_bytes: int
    timings: dict[str, float]
    versions: dict[str, str]
    shards: list[ShardEntry]
