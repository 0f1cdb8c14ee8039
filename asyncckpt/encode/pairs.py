"""Exponents in pairs: two of them in a byte, ahead of the Huffman coder.

The exponents of a tensor lie in a narrow window, nearly all of them. As a difference to the window's base each fits
four bits; the few outside are listed with their places. zstd then has half the bytes to go through, finds none of the
short accidental repeats that take up its time, and codes two exponents with one symbol, which comes closer to their
entropy: half the time, all in all, and 3 % smaller.

A plane is cut into sections, each with a window of its own, and worked on in stretches of whole sections while these
are in the processor's cache. docs/format-frames.md gives every byte.
"""

import numpy as np
import numpy.typing as npt

from asyncckpt.encode.scratch import Bytes, scratch
from asyncckpt.encode.zstd import compress_noise, decompress

Places = npt.NDArray[np.intp]
SECTION = 1 << 16  # exponents; part of the format
MANY = 64  # at most one in so many lies outside; part of the format
_STRETCH = 1 << 17  # exponents that are decoded at once
_WINDOW = 16
_ROWS = 8
_LANES = SECTION // 8 // _ROWS  # a section's words of eight bytes, in rows
_UPPER_HALVES = np.uint64(0xF0F0F0F0F0F0F0F0)  # of eight differences, which must be below 16


def windows(some: Bytes, sections: npt.NDArray[np.intp], count: int) -> Bytes | None:
    """The base of each section's window, the one that holds most of its values; None if too many lie outside.

    Args:
        some: values from all over the plane.
        sections: to which section each of them belongs.
        count: number of sections.
    """
    below = np.zeros((count, 257), np.intp)
    histogram = np.bincount(sections * 256 + some, minlength=256 * count)
    np.cumsum(histogram.reshape(count, 256), axis=1, out=below[:, 1:])
    inside = below[:, _WINDOW:] - below[:, :-_WINDOW]
    outside = len(some) - int(inside.max(axis=1).sum())
    return None if outside * MANY > len(some) else inside.argmax(axis=1).astype(np.uint8)


class Pairing:
    """Codes one plane in stretches. What it works in is this thread's scratch memory: one at a time."""

    def __init__(self, plane: Bytes, bases: Bytes) -> None:
        """Begin. The caller fills ``plane`` stretch by stretch; it is used up."""
        self._plane = plane
        self._bases = bases
        self._pairs = scratch("pairs", (len(plane) + 1) // 2)
        self._lanes = scratch("lanes", len(plane) // SECTION * _LANES * 8).view(np.uint64).reshape(-1, _LANES)

    def add(self, start: int, stop: int) -> None:
        """Take over a stretch that the caller has filled: whole sections, or up to the end of the plane."""
        first, last = start // SECTION, stop // SECTION
        stretch = self._plane[start:stop]
        _shift(np.subtract, stretch, self._bases[first:], stretch)
        words = stretch[: (last - first) * SECTION].view(np.uint64).reshape(-1, _ROWS, _LANES)
        np.bitwise_or.reduce(words, axis=1, out=self._lanes[first:last])
        _pair(stretch, self._pairs[start // 2 : (stop + 1) // 2])

    def finish(self) -> bytes | None:
        """The stored form, or None if too many values lie outside."""
        where = _outside(self._plane, self._lanes)
        if len(where) * MANY > len(self._plane):
            return None
        values = self._plane[where]
        self._mend(where)
        sections, places = np.divmod(where, SECTION)
        counts = np.bincount(sections, minlength=len(self._bases))
        table = [self._bases, counts.astype("<u2"), places.astype("<u2"), values]
        return b"".join([*(part.tobytes() for part in table), compress_noise(self._pairs.data)])

    def _mend(self, where: Places) -> None:
        """Pair outside values again, as zeros."""
        self._plane[where] = 0
        first = where & ~1
        second = np.minimum(first + 1, len(self._plane) - 1)  # behind an odd number of values: see _pair
        lone = second == first
        self._pairs[first // 2] = self._plane[first] | np.where(lone, 0, self._plane[second] << 4)


def decode_pairs(stored: memoryview, plane: Bytes) -> None:
    """Fill the plane; ``ValueError`` if ``stored`` is not the coded form of that many values."""
    bases, where, values, coded = _parts(stored, len(plane))
    pairs = scratch("pairs", (len(plane) + 1) // 2)
    decompress(coded, pairs.data)
    for start in range(0, len(plane), _STRETCH):
        stretch = plane[start : start + _STRETCH]
        differences = _unpaired(pairs[start // 2 : (start + _STRETCH) // 2])[: len(stretch)]
        _shift(np.add, differences, bases[start // SECTION :], stretch)
    plane[where] = values + bases[where // SECTION]


def _parts(stored: memoryview, count: int) -> tuple[Bytes, Places, Bytes, memoryview]:
    """Bases, places and values of what lies outside, and the coded pairs."""
    sections = -(-count // SECTION)
    if len(stored) < 3 * sections:
        raise ValueError("a plane of pairs that ends early")
    counts = np.frombuffer(stored[sections : 3 * sections], "<u2")
    outside = int(counts.sum())
    places_end = 3 * sections + 2 * outside
    if outside * MANY > count or len(stored) < places_end + outside:
        raise ValueError(f"{outside} outside values in a plane of {count} values, {len(stored)} bytes")
    places = np.frombuffer(stored[3 * sections : places_end], "<u2")
    where = np.repeat(np.arange(sections) * SECTION, counts) + places
    if outside and where.max() >= count:
        raise ValueError("an outside value behind the end of a plane of pairs")
    values = np.frombuffer(stored[places_end : places_end + outside], np.uint8)
    return np.frombuffer(stored[:sections], np.uint8), where, values, stored[places_end + outside :]


def _shift(by: np.ufunc, values: Bytes, bases: Bytes, out: Bytes) -> None:
    """Subtract each section's base from its values, or add it."""
    whole = len(values) // SECTION
    end = whole * SECTION
    if whole:
        by(values[:end].reshape(whole, SECTION), bases[:whole, None], out=out[:end].reshape(whole, SECTION))
    if end < len(values):
        by(values[end:], bases[whole], out=out[end:])


def _outside(differences: Bytes, lanes: npt.NDArray[np.uint64]) -> Places:
    """Where a difference takes more than four bits; ``lanes`` are the differences of whole sections, rows or'ed."""
    flags = (lanes & _UPPER_HALVES) != 0  # numpy looks through these several times as fast as through words
    sections, columns = np.divmod(np.flatnonzero(flags), _LANES)
    end = len(lanes) * SECTION
    words = (sections * _ROWS * _LANES + columns)[:, None] + np.arange(_ROWS) * _LANES
    near = differences[:end].view(np.uint64)[words.ravel()].view(np.uint8)
    hits = np.flatnonzero(near >= _WINDOW)
    where = words.ravel()[hits // 8] * 8 + hits % 8
    where.sort()
    return np.concatenate([where, end + np.flatnonzero(differences[end:] >= _WINDOW)])


def _pair(differences: Bytes, out: Bytes) -> None:
    """The first of two in the lower half of a byte, the other above; behind an odd number of them nothing."""
    whole = len(differences) // 2 * 2
    twos = differences[:whole].view(np.uint16)
    spare = scratch("spare", whole).view(np.uint16)
    np.right_shift(twos, 4, out=spare)
    np.bitwise_or(twos, spare, out=out[: whole // 2], casting="unsafe")  # cuts off the upper half
    out[whole // 2 :] = differences[whole:]


def _unpaired(pairs: Bytes) -> Bytes:
    nibbles = scratch("nibbles", 2 * len(pairs))
    twos = nibbles.view(np.uint16)
    spare = scratch("spare", len(nibbles)).view(np.uint16)
    np.copyto(twos, pairs)
    np.multiply(twos, 16, out=spare)  # numpy is slow to shift to the left
    np.bitwise_or(twos, spare, out=twos)
    np.bitwise_and(twos, np.uint16(0x0F0F), out=twos)
    return nibbles
