"""The library's own codec: float planes and zstd. docs/format-frames.md gives every byte of the stored form.

What is coded at all is decided from a sample, so noise costs little; a plane or frame that does not shrink after all
stays as it is.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asyncckpt.encode.base import RAW, Buffer, Codec, Kind, width_of
from asyncckpt.encode.pairs import Pairing, decode_pairs
from asyncckpt.encode.planes import Layout, join, layout_of, split
from asyncckpt.encode.scratch import Bytes, lent, scratch
from asyncckpt.encode.survey import survey
from asyncckpt.encode.zstd import compress, compress_noise, decompress

_WHOLE, _PLANES = 0, 1  # modes of a frame: 1 to 4 are planes, one more for fine ones, two more for plain ones
_AS_IS, _ZSTD, _PAIRS = 0, 1, 2  # codings of a plane
_ENTRY = struct.Struct("<BI")
_HIGHEST = 19
_LARGEST = 1 << 30  # bytes; lengths must fit 32 bits
_WORTH = 0.97  # what is coded must become this much smaller
_SAME = 64  # a frame of one value all over, as of moments before the first step, becomes that many times smaller
_RUN = 16 << 10  # bytes at each of the three places that a sample of data that are no floats is taken from


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
        elif _PLANES <= mode < _PLANES + 4 and kind[0] == "f" and width > 1:
            plain, fine = divmod(mode - _PLANES, 2)
            layout = layout_of(width, fine=bool(fine), rotated=not plain)
            _decode_planes(stored[1:], np.frombuffer(into, np.uint8), layout)
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
    found = survey(data[:whole], width)
    worth = [share < _WORTH for share in found.shares]
    if not any(worth):
        return None
    if not any(found.shares) and (small := _code(data, 1)) is not None and len(small) * _SAME < len(data):
        return [bytes([_WHOLE]), small]
    fine = any(worth[:-2])
    layout = layout_of(width, fine=fine, rotated=found.rotated)
    coded = worth if fine else [False] * (len(layout.sizes) - 2) + worth[-2:]
    planes = list(_plane_memory(whole // width, layout.sizes, coded))
    pairs = _split(data[:whole], planes, layout, found.bases if worth[-1] else None)
    entries = [
        (_AS_IS, plane.data) if not code else (_PAIRS, pairs) if pairs and plane is planes[-1] else _encode_plane(plane)
        for plane, code in zip(planes, coded, strict=True)
    ]
    parts: list[Buffer] = [part for _, part in entries]
    if sum(map(len, parts)) > whole * _WORTH:
        return None
    head = b"".join(_ENTRY.pack(coding, len(part)) for coding, part in entries)
    return [bytes([_PLANES + fine + 2 * (not found.rotated)]) + head, *parts, data[whole:].tobytes()]


def _plane_memory(count: int, sizes: Sequence[int], coded: Sequence[bool]) -> Iterator[Bytes]:
    """Memory to give away for planes that go out as they are, else memory that this thread's next frame overwrites."""
    for k, size in enumerate(sizes):
        yield scratch(f"plane {k}", count * size) if coded[k] else lent(count * size)


def _split(data: Bytes, planes: Sequence[Bytes], layout: Layout, bases: Bytes | None) -> bytes | None:
    """Fill the planes; the top one's pairs, unless it has no narrow windows."""
    if bases is not None:
        pairing = Pairing(planes[-1], bases)
        split(data, planes, layout, pairing.add)
        pairs = pairing.finish()
        if pairs is not None and len(pairs) < len(planes[-1]) * _WORTH:
            return pairs
    split(data, planes, layout)
    return None


def _encode_plane(plane: Bytes) -> tuple[int, Buffer]:
    if (coded := _code(plane, 0)) is not None:
        return _ZSTD, coded
    given = lent(len(plane))
    given[:] = plane
    return _AS_IS, given.data


def _decode_planes(stored: memoryview, raw: Bytes, layout: Layout) -> None:
    count, tail = divmod(len(raw), sum(layout.sizes))
    at = _ENTRY.size * len(layout.sizes)
    if len(stored) < at:
        raise ValueError("a frame of floats without its table of planes")
    planes = []
    for k, (coding, size) in enumerate(_ENTRY.iter_unpack(stored[:at])):
        part = stored[at : at + size]
        at += size
        if len(part) != size:
            raise ValueError("a frame of floats that ends early")
        planes.append(_decode_plane(part, coding, count * layout.sizes[k], k))
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
