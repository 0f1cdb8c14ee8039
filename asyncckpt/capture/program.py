"""Which copies fill which buffer: computed once for a layout and a buffer size, for all snapshots of that outline."""

import itertools
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncckpt.capture.layout import Layout

Ints = npt.NDArray[np.int64]
PART: Final = 8 << 20  # bytes; what one thread copies before it looks for more, some milliseconds


class Pieces(NamedTuple):
    """Copies to a buffer, in order: ``nbytes`` bytes from ``skip`` of a region go to ``start`` of the buffer."""

    regions: Ints
    skips: Ints
    starts: Ints
    nbytes: Ints

    def where(self, mask: npt.NDArray[np.bool_]) -> "Pieces":
        """Some of them."""
        return self if mask.all() else Pieces(*(column[mask] for column in self))

    @property
    def total(self) -> int:
        """Bytes of all."""
        return int(self.nbytes.sum())

    def moved(self, by: int) -> "Pieces":
        """The same, ``by`` bytes further on in the buffer."""
        return self._replace(starts=self.starts + by)


class Part(NamedTuple):
    """A stretch of at most ``PART`` bytes of one buffer, and what goes there.

    Attributes:
        buffer: its number.
        host: stretches of host memory.
        others: everything else: tensors on devices, and those with holes.
        gaps: ``(start, stop)``, to be zeroed.
    """

    buffer: int
    host: Pieces
    others: Pieces
    gaps: list[tuple[int, int]]


def parts_of(layout: Layout, sizes: Ints, in_host: npt.NDArray[np.bool_], size: int) -> list[Part]:
    """What fills buffers, in order.

    Args:
        layout: of the regions.
        sizes: bytes of each region.
        in_host: which regions are stretches of host memory.
        size: bytes of a buffer.
    """
    part = min(size, PART)
    numbers, pieces = _split(np.array(layout.offsets, np.int64), sizes, part)
    simple = in_host[pieces.regions]
    count = -(-layout.nbytes // part)
    bounds = np.searchsorted(numbers, np.arange(count + 1)).tolist()
    gaps = _gaps(layout.gaps, part, count)
    parts = []
    for i, (lo, hi) in enumerate(itertools.pairwise(bounds)):
        buffer, at = divmod(i * part, size)
        mine, plain = Pieces(*(column[lo:hi] for column in pieces)).moved(at), simple[lo:hi]
        parts.append(Part(buffer, mine.where(plain), mine.where(~plain), [(a + at, b + at) for a, b in gaps[i]]))
    return parts


def _split(offsets: Ints, nbytes: Ints, size: int) -> tuple[Ints, Pieces]:
    """Every region's pieces, one for each stretch of ``size`` that it reaches into, in order; and those' numbers."""
    filled = np.flatnonzero(nbytes)
    filled = filled[np.argsort(offsets[filled], kind="stable")]
    first, last = offsets[filled] // size, (offsets[filled] + nbytes[filled] - 1) // size
    counts = last - first + 1
    regions = np.repeat(filled, counts)
    numbers = np.arange(len(regions)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    begin = np.maximum(offsets[regions], numbers * size)
    end = np.minimum(offsets[regions] + nbytes[regions], (numbers + 1) * size)
    return numbers, Pieces(regions, begin - offsets[regions], begin - numbers * size, end - begin)


def _gaps(gaps: list[tuple[int, int]], size: int, count: int) -> list[list[tuple[int, int]]]:
    """The same gaps by stretch of ``size``, as places in it."""
    parts: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for start, stop in gaps:
        at = start
        while at < stop:
            i = at // size
            end = min(stop, (i + 1) * size)
            parts[i].append((at - i * size, end - i * size))
            at = end
    return parts
