"""The library's own codec: float planes and zstd. docs/format-frames.md gives every byte of the stored form.

What is coded at all is decided from a sample, so noise costs little; a plane or frame that does not shrink after all
stays as it is.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asyncckpt.encode.base import RAW, Buffer, Codec, Kind, width_of
from asyncckpt.encode.pairs import decode_pairs, encode_pairs
from asyncckpt.encode.planes import COARSE, FINE, Layout, join, split
from asyncckpt.encode.scratch import Bytes, lent, scratch
from asyncckpt.encode.zstd import compress, compress_noise, decompress

_WHOLE, _COARSE, _FINE = 0, 1, 2  # modes of a frame
_AS_IS, _ZSTD, _PAIRS = 0, 1, 2  # codings of a plane
_ENTRY = struct.Struct("<BI")
_HIGHEST = 19
_LARGEST = 1 << 30  # bytes; lengths must fit 32 bits
_WORTH = 0.97  # what is coded must become this much smaller
_STRETCHES = 8  # places that a sample of floats is taken from
_STRETCH = 1024  # elements
_RUN = 16 << 10  # bytes at each of the three places that a sample of other data is taken from


@dataclass(frozen=True)
class Zstd:
    """Lossless coding with zstd; floats are split into byte planes first.

    Attributes:
        level: zstd's level, 1 to 19, for what is not a float. Float planes need none.
    """

    level: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.level, bool) or not isinstance(self.level, int) or not 1 <= self.level <= _HIGHEST:
            raise ValueError(f"Zstd(level={self.level!r}) must lie between 1 and {_HIGHEST}")

    @property
    def name(self) -> str:
        """``zstd``: the level is of no interest to readers."""
        return "zstd"

    def encode(self, raw: memoryview, kind: Kind) -> Sequence[Buffer] | None:
        """See ``Codec.encode``."""
        width = width_of(kind)
        if not 1 < len(raw) <= _LARGEST:
            return None
        data = np.frombuffer(raw, np.uint8)
        if kind[0] == "f" and 1 < width <= len(data):
            return _encode_planes(data, width)
        return _encode_whole(data, 0 if kind[0] == "f" else self.level)

    def decode(self, stored: memoryview, kind: Kind, into: memoryview) -> None:
        """See ``Codec.decode``."""
        if not len(stored) or not len(into):
            raise ValueError("an empty frame has no coded form")
        mode, width = stored[0], width_of(kind)
        if mode == _WHOLE:
            decompress(stored[1:], into)
        elif mode in {_COARSE, _FINE} and kind[0] == "f" and width > 1:
            _decode_planes(stored[1:], np.frombuffer(into, np.uint8), (COARSE if mode == _COARSE else FINE)[width])
        else:
            raise ValueError(f"unknown mode {mode} for a frame of kind {kind}")


def resolve_codec(compression: str | Codec) -> Codec | None:
    """``"zstd"``, ``"none"`` (None: frames are stored as they are) or a codec of the user's; else ``ValueError``."""
    if compression == "none":
        return None
    if compression == "zstd":
        return Zstd()
    if isinstance(compression, Codec) and not isinstance(compression, type) and compression.name != RAW:
        return compression
    raise ValueError(f'compression={compression!r} must be "zstd", "none", Zstd(level) or a Codec')


# ---- frames as a whole ---------------------------------------------------------------------------------------------


def _encode_whole(data: Bytes, level: int) -> Sequence[Buffer] | None:
    if len(data) > 6 * _RUN and _code(_runs(data), level) is None:
        return None
    coded = _code(data, level)
    return None if coded is None else [bytes([_WHOLE]), coded]


def _runs(data: Bytes) -> Bytes:
    middle = (len(data) - _RUN) // 2
    return np.concatenate([data[:_RUN], data[middle : middle + _RUN], data[-_RUN:]])


def _code(data: Bytes, level: int) -> bytes | None:
    """A zstd frame (level 0: Huffman only), if that is worth it."""
    coded = compress(data.data, level) if level else compress_noise(data.data)
    return coded if len(coded) < len(data) * _WORTH else None


# ---- frames of floats ----------------------------------------------------------------------------------------------


def _encode_planes(data: Bytes, width: int) -> Sequence[Buffer] | None:
    whole = len(data) // width * width
    sample = _sampled(data[:whole], width)
    worth = [_code(plane, 0) is not None for plane in sample]
    if not any(worth):
        return None
    fine = any(worth[:-2])
    layout = (FINE if fine else COARSE)[width]
    coded = worth if fine else [False] * (len(layout) - 2) + worth[-2:]
    planes = list(_plane_memory(whole // width, layout, coded))
    split(data[:whole], planes, layout)
    entries = [
        _encode_plane(plane, top=k == len(planes) - 1) if coded[k] else (_AS_IS, plane.data)
        for k, plane in enumerate(planes)
    ]
    parts: list[Buffer] = [part for _, part in entries]
    if sum(map(len, parts)) > whole * _WORTH:
        return None
    head = b"".join(_ENTRY.pack(coding, len(part)) for coding, part in entries)
    return [bytes([_FINE if fine else _COARSE]) + head, *parts, data[whole:].tobytes()]


def _sampled(data: Bytes, width: int) -> list[Bytes]:
    """The planes, byte by byte, of some elements all over the frame."""
    elements = data.reshape(-1, width)
    if len(elements) > 2 * _STRETCHES * _STRETCH:
        starts = np.linspace(0, len(elements) - _STRETCH, _STRETCHES).astype(int)
        elements = np.concatenate([elements[start : start + _STRETCH] for start in starts])
    planes = [np.empty(len(elements), np.uint8) for _ in range(width)]
    split(elements.reshape(-1), planes, FINE[width])
    return planes


def _plane_memory(count: int, layout: Layout, coded: Sequence[bool]) -> Iterator[Bytes]:
    """Memory to give away for planes that go out as they are, else memory that this thread's next frame overwrites."""
    for k, size in enumerate(layout):
        yield scratch(f"plane {k}", count * size) if coded[k] else lent(count * size)


def _encode_plane(plane: Bytes, *, top: bool) -> tuple[int, Buffer]:
    pairs = encode_pairs(plane) if top else None
    if pairs is not None and len(pairs) < len(plane) * _WORTH:
        return _PAIRS, pairs
    coded = _code(plane, 0)
    return (_AS_IS, plane.tobytes()) if coded is None else (_ZSTD, coded)


def _decode_planes(stored: memoryview, raw: Bytes, layout: Layout) -> None:
    count, tail = divmod(len(raw), sum(layout))
    at = _ENTRY.size * len(layout)
    if len(stored) < at:
        raise ValueError("a frame of floats without its table of planes")
    planes = []
    for k, (coding, size) in enumerate(_ENTRY.iter_unpack(stored[:at])):
        part = stored[at : at + size]
        at += size
        if len(part) != size:
            raise ValueError("a frame of floats that ends early")
        planes.append(_decode_plane(part, coding, count * layout[k], k))
    if len(stored) - at != tail:
        raise ValueError(f"{len(stored) - at} bytes behind the planes, {tail} expected")
    join(planes, raw[: len(raw) - tail], layout)
    raw[len(raw) - tail :] = np.frombuffer(stored[at:], np.uint8)


def _decode_plane(part: memoryview, coding: int, nbytes: int, k: int) -> Bytes:
    if coding == _AS_IS:
        if len(part) != nbytes:
            raise ValueError(f"a plane of {len(part)} bytes, {nbytes} expected")
        return np.frombuffer(part, np.uint8)
    if coding not in {_ZSTD, _PAIRS}:
        raise ValueError(f"unknown coding {coding} of a plane")
    plane = scratch(f"plane {k}", nbytes)
    if coding == _PAIRS:
        decode_pairs(part, plane)
    else:
        decompress(part, plane.data)
    return plane
