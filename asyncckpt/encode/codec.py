"""The library's own codec: float planes and zstd.

Stored form: one byte of mode, then

* mode 0: one zstd frame of the whole;
* mode 1 (floats; +2 if elements were rotated: mode 3): one byte of width, then per plane, lowest byte first, an
  unsigned 32-bit little-endian length whose top bit says "zstd"; then the planes, back to back, raw or as one zstd
  frame each; then the bytes behind the last whole element, as they are.

Exponent bytes hold no repeats, only skewed frequencies, so zstd's match search is switched off and what remains is a
Huffman coder. A plane or frame is coded only if a sample of it shrinks.
"""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from asyncckpt.encode.base import Buffer, Codec, Kind, width_of
from asyncckpt.encode.planes import Bytes, join, split

_WHOLE, _PLANES, _ROTATED = 0, 1, 2
_CODED = 1 << 31
_SAMPLE = 16 << 10
_HIGHEST = 19
_WORTH = 0.97  # a coded plane or frame must be this much smaller
_local = threading.local()


@dataclass(frozen=True)
class Zstd:
    """Lossless coding with zstd; floats are split into byte planes first.

    Attributes:
        level: zstd's level, 1 to 19, for what is not a float. Float planes need none.
    """

    level: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.level, bool) or not isinstance(self.level, int) or not 1 <= self.level <= _HIGHEST:
            raise ValueError(f"Zstd(level={self.level!r}) must lie between 1 and 19")

    @property
    def name(self) -> str:
        """``zstd``: the level is of no interest to readers."""
        return "zstd"

    def encode(self, raw: memoryview, kind: Kind) -> Sequence[Buffer] | None:
        """See ``Codec.encode``."""
        data = np.frombuffer(raw, np.uint8)
        width = width_of(kind)
        if kind[0] == "f" and width > 1 and len(data) >= width:
            return _encode_planes(data, width)
        matcher = kind[0] == "b"
        if not _shrinks(data, self.level, matcher):
            return None
        coded = _compressor(self.level, matcher).compress(data)
        return [bytes([_WHOLE]), coded] if len(coded) + 1 < len(data) * _WORTH else None

    def decode(self, stored: memoryview, kind: Kind, into: memoryview) -> None:
        """See ``Codec.decode``."""
        if not len(stored):
            raise ValueError("empty frame")
        mode = stored[0]
        if mode == _WHOLE:
            _decompress(stored[1:], into)
        elif mode in {_PLANES, _PLANES | _ROTATED} and kind[0] == "f":
            _decode_planes(stored[1:], width_of(kind), into, rotated=bool(mode & _ROTATED))
        else:
            raise ValueError(f"unknown mode {mode} for a frame of kind {kind}")


def resolve_codec(compression: str | Codec) -> Codec | None:
    """``"zstd"``, ``"none"`` (None: frames are stored as they are) or a codec of the user's; else ``ValueError``."""
    if compression == "none":
        return None
    if compression == "zstd":
        return Zstd()
    if isinstance(compression, Codec) and not isinstance(compression, str) and compression.name != "raw":
        return compression
    raise ValueError(f'compression={compression!r} must be "zstd", "none", Zstd(level) or a Codec')


# ---- planes --------------------------------------------------------------------------------------------------------


def _encode_planes(data: Bytes, width: int) -> Sequence[Buffer] | None:
    count = len(data) // width
    planes = _plane_memory(width, count)
    split(data[: count * width], planes, rotate=True)
    lengths, parts, total = [], [], 0
    for plane in planes:
        coded = _encode_plane(plane)
        parts.append(plane.tobytes() if coded is None else coded)
        lengths.append(count if coded is None else len(coded) | _CODED)
        total += len(parts[-1])
    if total > len(data) * _WORTH:
        return None
    header = struct.pack(f"<BB{width}I", _PLANES | _ROTATED, width, *lengths)
    return [header, *parts, data[count * width :].tobytes()]


def _encode_plane(plane: Bytes) -> bytes | None:
    if not _shrinks(plane, 1, matcher=False):
        return None
    coded: bytes = _compressor(1, matcher=False).compress(plane)
    return coded if len(coded) < len(plane) * _WORTH else None


def _decode_planes(stored: memoryview, width: int, into: memoryview, *, rotated: bool) -> None:
    head = 1 + 4 * width
    if len(stored) < head or stored[0] != width:
        raise ValueError("broken plane header")
    count, tail = divmod(len(into), width)
    raw = np.frombuffer(into, np.uint8)
    planes, at = [], head
    memory = _plane_memory(width, count)
    for k, length in enumerate(struct.unpack_from(f"<{width}I", stored, 1)):
        size = length & ~_CODED
        part = stored[at : at + size]
        at += size
        if len(part) != size or (not length & _CODED and size != count):
            raise ValueError("broken plane length")
        planes.append(_decode_plane(part, memory[k]) if length & _CODED else np.frombuffer(part, np.uint8))
    if len(stored) - at != tail:
        raise ValueError("broken tail")
    if count:
        join(planes, raw[: count * width], rotated=rotated)
    raw[count * width :] = np.frombuffer(stored[at:], np.uint8)


def _decode_plane(part: memoryview, memory: Bytes) -> Bytes:
    _decompress(part, memory.data)
    return memory


def _plane_memory(width: int, count: int) -> Bytes:
    """A (width, count) array that this thread's next call overwrites."""
    memory: Bytes = getattr(_local, "planes", np.empty(0, np.uint8))
    if len(memory) < width * count:
        _local.planes = memory = np.empty(width * count, np.uint8)
    return memory[: width * count].reshape(width, count)


# ---- zstd ----------------------------------------------------------------------------------------------------------


def _shrinks(data: Bytes, level: int, matcher: bool) -> bool:
    """Whether a sample from three places of the data gets smaller."""
    if len(data) <= 3 * _SAMPLE:
        return len(data) > 0
    middle = (len(data) - _SAMPLE) // 2
    sample = np.concatenate([data[:_SAMPLE], data[middle : middle + _SAMPLE], data[-_SAMPLE:]])
    return len(_compressor(level, matcher).compress(sample)) < len(sample) * _WORTH


def _compressor(level: int, matcher: bool) -> Any:
    """This thread's compressor; compressors are never shared."""
    made: dict[tuple[int, bool], Any] = _local.__dict__.setdefault("compressors", {})
    key = (level, matcher)
    if key not in made:
        made[key] = zstandard.ZstdCompressor(compression_params=_parameters(level, matcher))
    return made[key]


def _parameters(level: int, matcher: bool) -> Any:
    if matcher:
        return zstandard.ZstdCompressionParameters.from_level(level, write_checksum=0, write_content_size=1)
    return zstandard.ZstdCompressionParameters.from_level(
        1,
        strategy=zstandard.STRATEGY_FAST,
        min_match=7,
        hash_log=6,
        target_length=0,
        write_checksum=0,
        write_content_size=1,
    )


def _decompress(stored: memoryview, into: memoryview) -> None:
    """Fill ``into`` from one zstd frame of exactly that content; memory beyond it is zstd's window only."""
    try:
        if zstandard.frame_content_size(stored) != len(into):
            raise ValueError("a zstd frame of another length")
        decompressor = _local.__dict__.setdefault("decompressor", zstandard.ZstdDecompressor())
        with decompressor.stream_reader(stored) as reader:
            done = 0
            while done < len(into) and (got := reader.readinto(into[done:])):
                done += got
    except zstandard.ZstdError as error:
        raise ValueError(f"broken zstd frame: {error}") from error
    if done != len(into):
        raise ValueError("a zstd frame that ends early")
