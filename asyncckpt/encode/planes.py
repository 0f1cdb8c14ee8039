"""Elements to byte planes and back.

A float's exponent sits across its top two bytes. With the top 16 bits rotated left by one, the exponent (of float64:
its upper 8 bits) fills the top byte by itself, and the sign joins the mantissa in the byte below. Split into one plane
per byte, the top one has few distinct values and is worth coding; mantissa planes of trained weights are noise. Where
every sign is the same, as in second moments, the top byte stays as it is: it then holds the sign at no cost, and the
exponent's last bit, nearly as good as random, goes to the byte below.

Bytes below the top two that are not worth coding stay together in planes of 2 or 4 bytes per element, which saves half
of the splitting. Which planes there are is a *layout*: bytes per element of each plane, lowest first.

Work goes in blocks that fit the L2 cache, by casts, sums and shifts to the right that numpy does on whole vectors (it
does not so with shifts to the left): twice as fast as strided copies of single bytes. Blocks are not smaller than that
since every call has to get hold of the GIL again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from asyncckpt.encode.scratch import Bytes, scratch

Words = npt.NDArray[np.unsignedinteger]
Sizes = tuple[int, ...]
BLOCK = 1 << 17  # elements per block
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_COARSE: dict[int, Sizes] = {2: (1, 1), 4: (2, 1, 1), 8: (4, 2, 1, 1)}


class Layout(NamedTuple):
    """How elements are split: bytes per element of each plane, lowest first, and whether the top 16 bits rotate."""

    sizes: Sizes
    rotated: bool


def layout_of(width: int, *, fine: bool, rotated: bool) -> Layout:
    """One plane per byte, or low bytes together."""
    return Layout((1,) * width if fine else _COARSE[width], rotated)


def split(raw: Bytes, planes: Sequence[Bytes], layout: Layout, then: Callable[[int, int], None] | None = None) -> None:
    """Fill the planes (of ``layout.sizes[k]`` bytes per element) from whole elements.

    After each block of ``BLOCK`` elements ``then(start, stop)`` may work on what it brought, still in the cache.
    """
    elements = raw.view(UNSIGNED[sum(layout.sizes)])
    split_top = _split_rotated if layout.rotated else _split_plain
    for start in range(0, len(elements), BLOCK):
        block = elements[start : start + BLOCK]
        stop = start + len(block)
        for k, (first, size) in enumerate(_low_planes(layout.sizes)):
            _cut(block, first, size, planes[k].view(UNSIGNED[size])[start:stop])
        split_top(_top_of(block), planes[-2][start:stop], planes[-1][start:stop])
        if then:
            then(start, stop)


def join(planes: Sequence[Bytes], raw: Bytes, layout: Layout) -> None:
    """The reverse: fill ``raw`` with elements."""
    elements = raw.view(UNSIGNED[sum(layout.sizes)])
    join_top = _join_rotated if layout.rotated else _join_plain
    for start in range(0, len(elements), BLOCK):
        block = elements[start : start + BLOCK]
        stop = start + len(block)
        for k, (first, size) in enumerate(_low_planes(layout.sizes)):
            _paste(planes[k].view(UNSIGNED[size])[start:stop], first, block)
        _paste_top(join_top(planes[-2][start:stop], planes[-1][start:stop]), block)


def _low_planes(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """First byte in the element and size of each plane below the top two."""
    return ((sum(sizes[:k]), size) for k, size in enumerate(sizes[:-2]))


def _column(block: Words, first: int, size: int) -> Words:
    """The words of ``size`` bytes that start at byte ``first`` of each element; ``first`` is a multiple of ``size``."""
    return block.view(UNSIGNED[size])[first // size :: block.itemsize // size]


def _cut(block: Words, first: int, size: int, out: Words) -> None:
    if first == 0:
        np.copyto(out, block, casting="unsafe")  # cuts off what is above
    else:
        out[:] = _column(block, first, size)


def _paste(plane: Words, first: int, block: Words) -> None:
    if first == 0:
        np.copyto(block, plane)  # zeros above, which are filled next
    else:
        _column(block, first, plane.itemsize)[:] = plane


def _paste_top(top: Words, block: Words) -> None:
    _column(block, block.itemsize - 2, 2)[:] = top


def _top_of(block: Words) -> Words:
    """The upper 16 bits of each element; not to be written to."""
    shift = 8 * block.itemsize - 16
    if not shift:
        return block
    top = _words("top", len(block))
    np.right_shift(block, shift, out=top, casting="unsafe")
    return top


def _words(name: str, count: int) -> Words:
    return scratch(name, 2 * count).view(np.uint16)


def _split_rotated(top: Words, low: Bytes, high: Bytes) -> None:
    np.copyto(low, top, casting="unsafe")
    np.add(low, low, out=low)
    np.less(top.view(np.int16), 0, out=high.view(np.bool_))  # the sign
    np.bitwise_or(low, high, out=low)
    np.right_shift(top, 7, out=high, casting="unsafe")


def _join_rotated(low: Bytes, high: Bytes) -> Words:
    top, spare = _words("top", len(low)), _words("spare", len(low))
    np.copyto(spare, low)
    np.right_shift(spare, 1, out=top)
    np.multiply(spare, 1 << 15, out=spare)  # the sign
    np.bitwise_or(top, spare, out=top)
    np.copyto(spare, high)
    np.multiply(spare, 1 << 7, out=spare)
    np.bitwise_or(top, spare, out=top)
    return top


def _split_plain(top: Words, low: Bytes, high: Bytes) -> None:
    np.copyto(low, top, casting="unsafe")
    np.right_shift(top, 8, out=high, casting="unsafe")


def _join_plain(low: Bytes, high: Bytes) -> Words:
    top, spare = _words("top", len(low)), _words("spare", len(low))
    np.copyto(top, low)
    np.copyto(spare, high)
    np.multiply(spare, 1 << 8, out=spare)
    np.bitwise_or(top, spare, out=top)
    return top
