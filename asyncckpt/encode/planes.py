"""Elements to byte planes and back.

A float's exponent sits across its top two bytes. With the top 16 bits rotated left by one, the exponent (of float64:
its upper 8 bits) fills the top byte by itself, and the sign joins the mantissa in the byte below. Split into one plane
per byte, the top one has few distinct values and is worth coding; mantissa planes of trained weights are noise.

Bytes below the top two that are not worth coding stay together in planes of 2 or 4 bytes per element, which saves half
of the splitting. Which planes there are is a *layout*: bytes per element of each plane, lowest first.

Work goes in blocks that fit the L2 cache, by casts and shifts that the processor does on whole vectors: twice as fast
as strided copies of single bytes. Blocks are not smaller than that since every call has to get hold of the GIL again.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from asyncckpt.encode.scratch import Bytes, scratch

Words = npt.NDArray[np.unsignedinteger]
Layout = tuple[int, ...]
BLOCK = 1 << 19  # bytes of elements per block
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
COARSE: dict[int, Layout] = {2: (1, 1), 4: (2, 1, 1), 8: (4, 2, 1, 1)}
FINE: dict[int, Layout] = {width: (1,) * width for width in (2, 4, 8)}


def split(raw: Bytes, planes: Sequence[Bytes], layout: Layout) -> None:
    """Fill the planes (of layout[k] bytes per element) from whole elements."""
    width = sum(layout)
    elements = raw.view(UNSIGNED[width])
    for start, stop in _blocks(len(elements), width):
        block = elements[start:stop]
        for k, (first, size) in enumerate(_low_planes(layout)):
            _cut(block, first, size, planes[k].view(UNSIGNED[size])[start:stop])
        _split_top(_top_of(block), planes[-2][start:stop], planes[-1][start:stop])


def join(planes: Sequence[Bytes], raw: Bytes, layout: Layout) -> None:
    """The reverse: fill ``raw`` with elements."""
    width = sum(layout)
    elements = raw.view(UNSIGNED[width])
    for start, stop in _blocks(len(elements), width):
        block = elements[start:stop]
        for k, (first, size) in enumerate(_low_planes(layout)):
            _column(block, first, size)[:] = planes[k].view(UNSIGNED[size])[start:stop]
        _column(block, width - 2, 2)[:] = _join_top(planes[-2][start:stop], planes[-1][start:stop])


def _blocks(count: int, width: int) -> Iterator[tuple[int, int]]:
    step = BLOCK // width
    return ((start, min(start + step, count)) for start in range(0, count, step))


def _low_planes(layout: Layout) -> Iterator[tuple[int, int]]:
    """First byte in the element and size of each plane below the top two."""
    return ((sum(layout[:k]), size) for k, size in enumerate(layout[:-2]))


def _column(block: Words, first: int, size: int) -> Words:
    """The words of ``size`` bytes that start at byte ``first`` of each element; ``first`` is a multiple of ``size``."""
    return block.view(UNSIGNED[size])[first // size :: block.itemsize // size]


def _cut(block: Words, first: int, size: int, out: Words) -> None:
    if first == 0:
        np.copyto(out, block, casting="unsafe")  # cuts off what is above
    else:
        out[:] = _column(block, first, size)


def _top_of(block: Words) -> Words:
    """The upper 16 bits of each element, in scratch memory."""
    top = scratch("top", 2 * len(block)).view(np.uint16)
    shift = 8 * block.itemsize - 16
    if shift:
        np.right_shift(block, shift, out=top, casting="unsafe")
    else:
        top[:] = block
    return top


def _split_top(top: Words, low: Bytes, high: Bytes) -> None:
    """Rotate ``top`` left by one bit, in place, and cut it in two."""
    spare = scratch("spare", top.nbytes).view(np.uint16)
    np.add(top, top, out=spare)  # faster than a shift
    np.right_shift(top, 15, out=top)
    np.bitwise_or(top, spare, out=top)
    np.copyto(low, top, casting="unsafe")
    np.right_shift(top, 8, out=top)
    np.copyto(high, top, casting="unsafe")


def _join_top(low: Bytes, high: Bytes) -> Words:
    top = scratch("top", 2 * len(low)).view(np.uint16)
    spare = scratch("spare", top.nbytes).view(np.uint16)
    np.copyto(top, high)
    np.left_shift(top, 8, out=top)
    np.copyto(spare, low)
    np.bitwise_or(top, spare, out=top)
    np.right_shift(top, 1, out=spare)
    np.left_shift(top, 15, out=top)
    np.bitwise_or(top, spare, out=top)
    return top
