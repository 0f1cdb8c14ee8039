"""The documents of a checkpoint, their names, versions and digests. docs/format.md is the prose of this file.

A step folder holds, for each rank, a *pack* (frames back to back) and its *index* (what is in the pack), and one
*manifest*, which exists if and only if the checkpoint exists. Documents are read strictly: unknown fields, unknown
versions, and numbers that do not add up are refused by name. Reading a document never executes anything.
"""

import re
import secrets
from typing import Any, Final

import msgspec

VERSION: Final = 1
MANIFEST_NAME: Final = "MANIFEST.json"
MAX_INDEX_BYTES: Final = 1 << 30  # an index may never claim more than this when decompressed
MAX_MANIFEST_BYTES: Final = 64 << 20
_UNSIGNED: Final = "0" * 32
_STEP = re.compile(r"step-(\d+)")
_PART = re.compile(r"([0-9a-f]{12})-(\d{5,})-of-(\d{5,})\.(pack|index)")
_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp")

Node = Any  # a JSON value built by manifest/tree.py


# ---- names ---------------------------------------------------------------------------------------------------------


def new_save_id() -> str:
    """A fresh attempt's id: 12 random hex digits."""
    return secrets.token_hex(6)


def step_folder(step: int) -> str:
    """``step-000000001000`` for 1000. The width is for people's eyes; readers take any."""
    return f"step-{step:012d}"


def parse_step_folder(name: str) -> int | None:
    """The step of a folder name of ours, whatever its zero padding; None for a foreign name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and name.isascii() else None


def part_name(save_id: str, rank: int, world: int, suffix: str) -> str:
    """File name of one rank's ``pack`` or ``index``."""
    return f"{save_id}-{rank:05d}-of-{world:05d}.{suffix}"


def attempt_of(name: str) -> str | None:
    """The save_id of a pack or index name, also of its temporary form; None for a manifest or a foreign name."""
    base = _TEMPORARY.fullmatch(name)
    match = _PART.fullmatch(base[1] if base else name)
    return match[1] if match else None


def is_temporary_manifest(name: str) -> bool:
    """True for what a cut-short write of a manifest leaves behind."""
    base = _TEMPORARY.fullmatch(name)
    return base is not None and base[1] == MANIFEST_NAME


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
