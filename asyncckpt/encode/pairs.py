"""Exponents in pairs: two of them in a byte, ahead of the Huffman coder.

The exponents of a tensor lie in a narrow window, nearly all of them. As a difference to the window's base each fits
four bits; 15 stands for "outside", and the outside values follow by themselves, in order. zstd then has half the bytes
to go through, finds none of the short accidental repeats that take up its time, and codes two exponents with one
symbol, which comes closer to their entropy: a quarter of the time, 3 % smaller.

A plane is cut into sections, each with a window of its own. docs/format-frames.md gives every byte.
"""

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from asyncckpt.encode.scratch import Bytes, scratch
from asyncckpt.encode.zstd import compress_noise, decompress

Places = npt.NDArray[np.intp]
SECTION = 1 << 19  # exponents; part of the format
_OUTSIDE = 15
_HEAD = struct.Struct("<BIII")
_MANY = 8  # not worth it if more than one in so many lies outside
_LOOKED_AT = 2048  # exponents of a section that its window is chosen from
_FEW = 32  # see _places


def encode_pairs(plane: Bytes) -> bytes | None:
    """The stored form, or None if no narrow window holds the values of a section."""
    parts = []
    for section in _sections(plane):
        base = _base(section)
        if base is None:
            return None
        nibbles, where = _nibbles(section, base)
        if len(where) > len(section) // _MANY:
            return None
        outside = _outside_form(section[where])
        pairs = compress_noise(_paired(nibbles).data)
        parts += [_HEAD.pack(base, len(where), len(outside), len(pairs)), outside, pairs]
    return b"".join(parts)


def decode_pairs(stored: memoryview, plane: Bytes) -> None:
    """Fill the plane; ``ValueError`` if ``stored`` is not the coded form of that many exponents."""
    at = 0
    for section in _sections(plane):
        if len(stored) - at < _HEAD.size:
            raise ValueError("a plane of pairs that ends early")
        base, count, outside, pairs = _HEAD.unpack_from(stored, at)
        at += _HEAD.size
        values = _outside_values(stored[at : at + outside], count, len(section))
        _decode_section(stored[at + outside : at + outside + pairs], base, values, section)
        at += outside + pairs
    if at != len(stored):
        raise ValueError("a plane of pairs of another length")


def _sections(plane: Bytes) -> Iterator[Bytes]:
    return (plane[start : start + SECTION] for start in range(0, len(plane), SECTION))


def _base(section: Bytes) -> int | None:
    """The lowest value of the window that holds most of the section, judged by some of its values."""
    some = section[:: (len(section) // _LOOKED_AT) | 1]
    below = np.zeros(257 + _OUTSIDE, np.intp)
    np.cumsum(np.bincount(some, minlength=256 + _OUTSIDE), out=below[1:])
    inside = below[_OUTSIDE:257] - below[: 257 - _OUTSIDE]
    base = int(np.argmax(inside))
    return base if len(some) - inside[base] <= len(some) // _MANY else None


def _nibbles(section: Bytes, base: int) -> tuple[Bytes, Places]:
    """Differences to the base, 15 where that is too much (and where that is); one zero more if they are odd."""
    nibbles = scratch("nibbles", len(section) + len(section) % 2)
    nibbles[-1] = 0
    part = np.subtract(section, np.uint8(base), out=nibbles[: len(section)])
    where = _places(np.greater_equal(part, np.uint8(_OUTSIDE), out=_flags(part)))
    part[where] = _OUTSIDE
    return nibbles, where


def _flags(nibbles: Bytes) -> npt.NDArray[np.bool_]:
    return scratch("flags", len(nibbles)).view(np.bool_)


def _places(flags: npt.NDArray[np.bool_]) -> Places:
    """Where a flag is set. That is rare, so eight are looked at at once first: np.flatnonzero takes its time."""
    whole = len(flags) // 8 * 8
    eights = np.flatnonzero(flags[:whole].view(np.uint64) != 0)
    if len(eights) * _FEW > whole:
        return np.flatnonzero(flags)
    near = (eights[:, None] * 8 + np.arange(8)).ravel()
    return np.concatenate([near[flags[near]], whole + np.flatnonzero(flags[whole:])])


def _outside_form(values: Bytes) -> bytes:
    coded = compress_noise(values.data)
    return coded if len(coded) < len(values) else values.tobytes()


def _outside_values(stored: memoryview, count: int, most: int) -> Bytes:
    if count > most:
        raise ValueError("more outside values than exponents in a plane of pairs")
    if len(stored) == count:
        return np.frombuffer(stored, np.uint8)
    values = scratch("outside", count)
    decompress(stored, values.data)
    return values


def _paired(nibbles: Bytes) -> Bytes:
    """The first of two nibbles in the lower half of a byte."""
    pairs = scratch("pairs", len(nibbles) // 2)
    twos = nibbles.view(np.uint16)
    spare = scratch("spare", len(nibbles)).view(np.uint16)
    np.right_shift(twos, 4, out=spare)
    np.bitwise_or(twos, spare, out=spare)
    np.copyto(pairs, spare, casting="unsafe")  # cuts off the upper half
    return pairs


def _unpaired(pairs: Bytes) -> Bytes:
    nibbles = scratch("nibbles", 2 * len(pairs))
    twos = nibbles.view(np.uint16)
    spare = scratch("spare", len(nibbles)).view(np.uint16)
    np.copyto(twos, pairs)
    np.left_shift(twos, 4, out=spare)
    np.bitwise_or(twos, spare, out=twos)
    np.bitwise_and(twos, np.uint16(0x0F0F), out=twos)
    return nibbles


def _decode_section(stored: memoryview, base: int, values: Bytes, section: Bytes) -> None:
    pairs = scratch("pairs", (len(section) + 1) // 2)
    decompress(stored, pairs.data)
    nibbles = _unpaired(pairs)[: len(section)]
    where = _places(np.equal(nibbles, np.uint8(_OUTSIDE), out=_flags(nibbles)))
    if len(where) != len(values):
        raise ValueError("a wrong number of outside values in a plane of pairs")
    np.add(nibbles, np.uint8(base), out=section)
    section[where] = values
