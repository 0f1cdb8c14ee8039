"""Where everything lies in the logical byte string. Pure: no torch, no memory.

Regions of one group (element kind and dtype) lie back to back, so each is aligned to its own element. Groups start at
multiples of 64 bytes, in states of some size at whole pages, so that frames stored raw can be written straight from
aligned memory. Frames are cut at multiples of the frame size and wherever the kind changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncckpt.encode.base import KINDS, FrameSpec, Kind

PAGE = 4096
LINE = 64
LARGE = 4 << 20  # from this size on a few padding bytes do not matter
FRAME = 4 << 20


class Group(NamedTuple):
    """What is coded alike: an element kind, and the dtype's name to keep neighbours similar."""

    kind: Kind
    dtype: str


class Layout(NamedTuple):
    """The result: each region's offset, in the order given; where kinds change; gaps to be zeroed; the total."""

    offsets: list[int]
    borders: list[tuple[int, Kind]]
    gaps: list[tuple[int, int]]
    nbytes: int


def lay_out(regions: Sequence[tuple[Group, int]]) -> Layout:
    """Give each region of ``(group, bytes)`` its place."""
    sizes = np.fromiter((nbytes for _, nbytes in regions), np.int64, len(regions))
    step = PAGE if sizes.sum() >= LARGE else LINE
    groups = sorted({group for group, _ in regions}, key=lambda group: (KINDS.index(group.kind), group.dtype))
    number = {group: i for i, group in enumerate(groups)}
    numbers = np.fromiter((number[group] for group, _ in regions), np.int64, len(regions))
    offsets, borders, gaps = np.zeros(len(regions), np.int64), list[tuple[int, Kind]](), list[tuple[int, int]]()
    at = 0
    for i, group in enumerate(groups):
        start = -(-at // step) * step
        gaps += [(at, start)] if start > at else []
        if not borders or borders[-1][1] != group.kind:
            borders.append((start, group.kind))
        members = np.flatnonzero(numbers == i)
        ends = start + np.cumsum(sizes[members])
        offsets[members] = ends - sizes[members]
        at = int(ends[-1])
    return Layout(offsets.tolist(), borders, gaps, at)


def cut(layout: Layout, frame_size: int) -> list[FrameSpec]:
    """The frames of a layout, in order, without gaps."""
    frames = []
    ends = [start for start, _ in layout.borders[1:]] + [layout.nbytes]
    for (start, kind), end in zip(layout.borders, ends, strict=False):
        while start < end:
            stop = min(end, (start // frame_size + 1) * frame_size)
            frames.append(FrameSpec(start, stop - start, kind))
            start = stop  # noqa: PLW2901 - walks from border to border
    return frames
