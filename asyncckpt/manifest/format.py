"""Documents to bytes and back. docs/format.md is the prose of this file.

A step folder holds, for each rank, a *pack* (frames back to back) and its *index* (what is in the pack), and one
*manifest*, which exists if and only if the checkpoint exists. Reading goes: digest, version, types, rules. Damage is an
``IntegrityError``; an intact document that breaks a rule, or is of an unknown version, is a ``FormatError``. Memory is
bounded before it is taken. Reading a document never executes anything.
"""

import posixpath
import re
from typing import Any, Final, TypeVar

import msgspec
import xxhash
import zstandard

from asyncckpt.errors import FormatError, IntegrityError
from asyncckpt.manifest.checks import check_index, check_leaf, check_manifest
from asyncckpt.manifest.documents import (
    MAX_FRAME_BYTES,
    MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES,
    VERSION,
    ArrayLeaf,
    BytesLeaf,
    FrameTable,
    IndexDocument,
    Manifest,
    Node,
    ShardEntry,
    TensorLeaf,
)
from asyncckpt.manifest.names import (
    MANIFEST_NAME,
    attempt_of,
    is_temporary_manifest,
    new_save_id,
    parse_part,
    parse_step_folder,
    part_name,
    step_folder,
)
from asyncckpt.threads import collector_paused

__all__ = [
    "MANIFEST_NAME", "MAX_FRAME_BYTES", "MAX_INDEX_BYTES", "MAX_MANIFEST_BYTES", "VERSION", "ArrayLeaf", "BytesLeaf",
    "FrameTable", "IndexDocument", "Manifest", "Node", "ShardEntry", "TensorLeaf", "attempt_of", "check_leaf",
    "decode_index", "decode_manifest", "encode_index", "encode_manifest", "file_digest", "is_temporary_manifest",
    "new_save_id", "parse_part", "parse_step_folder", "part_name", "read_leaf", "step_folder",
]  # fmt: skip

_UNSIGNED: Final = "0" * 32
_DIGEST = re.compile(rb'"digest": "([0-9a-f]{32})"')
_INDEX_LEVEL: Final = 1
T = TypeVar("T")
LeafT = TypeVar("LeafT", TensorLeaf, ArrayLeaf, BytesLeaf)


class _Header(msgspec.Struct):
    """What every version of every document of ours has."""

    format: str
    version: int


def file_digest(data: bytes | bytearray | memoryview) -> str:
    """XXH3-128 as 32 hex digits, the form in which documents carry digests."""
    return xxhash.xxh3_128_hexdigest(data)


# ---- index ---------------------------------------------------------------------------------------------------------


def encode_index(document: IndexDocument) -> tuple[bytes, int]:
    """The index file's bytes, and the length of the JSON in them."""
    check_index(document, part_name(document.save_id, document.rank, document.world, "index"), None, None)
    raw = msgspec.json.encode(document)
    if len(raw) > MAX_INDEX_BYTES:
        raise ValueError(f"the index of {len(raw)} bytes exceeds the limit of {MAX_INDEX_BYTES}")
    compressor = zstandard.ZstdCompressor(level=_INDEX_LEVEL, write_checksum=True, write_content_size=True)
    return compressor.compress(raw), len(raw)


def decode_index(
    stored: bytes | bytearray | memoryview, *, file: str, entry: ShardEntry | None, step: int | None = None
) -> IndexDocument:
    """The index in a file's bytes.

    Args:
        stored: the whole file.
        file: its key, for errors; its last part is the file's name, and must agree with the document.
        entry: what the manifest says of it, if there is a manifest yet.
        step: the manifest's step, likewise.

    Raises:
        IntegrityError: damaged.
        FormatError: intact, but not by the rules or of an unknown version.
    """
    if entry is not None:
        _check_against(entry, stored, file)
    raw = _decompressed(bytes(stored), file, None if entry is None else entry.index_raw_bytes)
    document = _decoded(raw, IndexDocument, file)
    check_index(document, file, parse_part(posixpath.basename(file)), step)
    if entry is not None and document.pack_bytes != entry.pack_bytes:
        raise FormatError(f"{file} and the manifest differ about the pack's size", defect="pack_bytes differ")
    return document


def _check_against(entry: ShardEntry, stored: bytes | bytearray | memoryview, file: str) -> None:
    if len(stored) != entry.index_bytes:
        raise IntegrityError(f"{file} has {len(stored)} bytes, {entry.index_bytes} expected", file=file)
    if file_digest(stored) != entry.index_digest:
        raise IntegrityError(f"{file} is damaged: its digest is not the one in the manifest", file=file)


def _decompressed(stored: bytes, file: str, expected: int | None) -> bytes:
    try:
        size = zstandard.get_frame_parameters(stored).content_size
    except zstandard.ZstdError as error:
        raise IntegrityError(f"{file} is damaged: it is not a zstd frame", file=file) from error
    limit = MAX_INDEX_BYTES if expected is None else expected
    if size > limit or (expected is not None and size != expected):
        raise FormatError(f"{file} claims {size} bytes, {limit} expected or allowed", defect="index too large")
    try:
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"{file} is damaged: {error}", file=file) from error


# ---- manifest ------------------------------------------------------------------------------------------------------


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's bytes: indented JSON, with its own digest filled in whatever ``manifest.digest`` says."""
    check_manifest(manifest, MANIFEST_NAME)
    unsigned = msgspec.structs.replace(manifest, digest=_UNSIGNED)
    data = msgspec.json.format(msgspec.json.encode(unsigned), indent=2) + b"\n"
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"a manifest of {len(data)} bytes exceeds the limit of {MAX_MANIFEST_BYTES}")
    return _with_digest(data, file_digest(data))


def decode_manifest(data: bytes, *, file: str) -> Manifest:
    """The manifest in a file's bytes; ``IntegrityError`` or ``FormatError`` as for ``decode_index``.

    The nodes in it (metrics, metadata) are not looked into; ``catalog.info_of`` does that.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise FormatError(f"{file} has {len(data)} bytes, {MAX_MANIFEST_BYTES} allowed", defect="manifest too large")
    match = _DIGEST.search(data)
    if match is None:
        raise IntegrityError(f"{file} is damaged: there is no digest in it", file=file)
    if file_digest(_with_digest(data, _UNSIGNED)) != match[1].decode():
        raise IntegrityError(f"{file} is damaged: its digest is wrong", file=file)
    manifest = _decoded(data, Manifest, file)
    if manifest.digest != match[1].decode():
        raise FormatError(f"{file}: the digest stands in the wrong place", defect="digest in the wrong place")
    check_manifest(manifest, file)
    return manifest


def _with_digest(data: bytes, digest: str) -> bytes:
    return _DIGEST.sub(f'"digest": "{digest}"'.encode(), data, count=1)


# ---- both ----------------------------------------------------------------------------------------------------------


def _decoded(raw: bytes, kind: type[T], file: str) -> T:
    """A document of this version, by its types."""
    try:
        _check_header(msgspec.json.decode(raw, type=_Header), kind, file)
        with collector_paused():
            return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise FormatError(f"{file} is not a document of this format: {error}", defect="bad document") from error


def _check_header(header: _Header, kind: type[Any], file: str) -> None:
    expected = kind.__struct_config__.tag
    if header.format != expected:
        raise FormatError(f"{file} is not of the format {expected!r}", defect="unknown format")
    if header.version > VERSION:
        raise FormatError(
            f"{file} was written by a newer asyncckpt: version {header.version}, this one reads {VERSION}",
            defect=f"unknown version {header.version}",
        )
    if header.version != VERSION:
        raise FormatError(f"{file} has the unknown version {header.version}", defect="unknown version")


def read_leaf(kind: type[LeafT], args: list[Any], what: str) -> LeafT:
    """A leaf from the arguments of its node, by its types; ``what`` is its key path, for the ``FormatError``."""
    try:
        return msgspec.convert(args, kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"{what}: a malformed leaf: {error}", defect="malformed leaf") from error
