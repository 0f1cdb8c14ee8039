"""Which bytes are read from a pack, and where each of them goes. Pure: no I/O, no torch.

A *want* is a range of the logical byte string and a place for it. Wants may overlap (one range, several places) and
leave gaps. The plan touches each frame that a want reaches into exactly once, and joins neighbouring frames into reads.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from asyncckpt.encode.base import RAW
from asyncckpt.manifest.format import FrameTable

READ_BYTES: Final = 16 << 20  # neighbouring frames are joined up to this many pack bytes: a distant store answers late
LOCAL_READ: Final = 4 << 20  # likewise where a call is cheap: what was read is still in the processor's cache


class Want(NamedTuple):
    """Bytes ``[start, start + nbytes)`` of the logical string go to byte ``at`` and on of target number ``target``."""

    start: int
    nbytes: int
    target: int
    at: int = 0


class Part(NamedTuple):
    """Bytes ``[source, source + nbytes)`` of one frame go to byte ``at`` and on of a target."""

    source: int
    nbytes: int
    target: int
    at: int


class FrameRead(NamedTuple):
    """One frame of a read: its number in the frame table, where it begins in the read, and where its bytes go."""

    number: int
    begin: int
    parts: Sequence[Part]


@dataclass(slots=True)
class Read:
    """One run of the pack, ``[start, start + nbytes)``.

    Attributes:
        frames: the frames in it, back to back.
        direct: where in a target the run goes just as it is, or None if it is to be decoded or cut up.
    """

    start: int
    nbytes: int
    frames: list[FrameRead] = field(default_factory=list)
    direct: tuple[int, int] | None = None


def plan_reads(
    frames: FrameTable, wants: Sequence[Want], direct: Collection[int] = (), *, limit: int = READ_BYTES
) -> list[Read]:
    """The reads that satisfy all wants, in order of the pack.

    Args:
        frames: the pack's frame table, checked.
        wants: ranges inside the logical string.
        direct: numbers of the targets that a store may write into.
        limit: most pack bytes in one read; a frame that is larger is a read of its own.
    """
    starts = [0, *accumulate(frames.stored)]
    reads: list[Read] = []
    for number, parts in sorted(_parts_by_frame(frames, wants).items()):
        straight = _straight(frames, number, parts, direct)
        begin, size = starts[number], frames.stored[number]
        if not reads or not _continues(reads[-1], begin, size, straight, limit):
            reads.append(Read(begin, 0, direct=straight))
        reads[-1].frames.append(FrameRead(number, reads[-1].nbytes, parts))
        reads[-1].nbytes += size
    return reads


def _parts_by_frame(frames: FrameTable, wants: Sequence[Want]) -> dict[int, list[Part]]:
    ends = list(accumulate(frames.raw))
    parts: dict[int, list[Part]] = {}
    for want in wants:
        position, stop = want.start, want.start + want.nbytes
        number = bisect_right(ends, position)
        while position < stop:
            begin, reach = ends[number] - frames.raw[number], min(stop, ends[number])
            part = Part(position - begin, reach - position, want.target, want.at + position - want.start)
            parts.setdefault(number, []).append(part)
            position, number = reach, number + 1
    return parts


def _straight(
    frames: FrameTable, number: int, parts: Sequence[Part], direct: Collection[int]
) -> tuple[int, int] | None:
    """Target and byte to which the stored frame goes as it is."""
    part = parts[0]
    whole = len(parts) == 1 and part.nbytes == frames.raw[number]
    return (part.target, part.at) if whole and frames.encodings[number] == RAW and part.target in direct else None


def _continues(last: Read, begin: int, size: int, straight: tuple[int, int] | None, limit: int) -> bool:
    expected = None if last.direct is None else (last.direct[0], last.direct[1] + last.nbytes)
    return last.start + last.nbytes == begin and last.nbytes + size <= limit and straight == expected
