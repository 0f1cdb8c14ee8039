"""Planning reads, without I/O."""

import random

import pytest

from asyncckpt.manifest.format import FrameTable
from asyncckpt.restore.plan import Want, plan_reads


def table(raw, stored=None, encodings=None):
    return FrameTable(raw, stored or raw, ["b1"] * len(raw), encodings or ["raw"] * len(raw), "0" * 32 * len(raw))


def satisfied(frames, wants, direct, limit):
    """Carry a plan out on a logical string whose byte i is i % 251, and give the targets."""
    logical = bytes(i % 251 for i in range(sum(frames.raw)))
    starts = [sum(frames.raw[:i]) for i in range(len(frames.raw))]
    targets = [bytearray(want.nbytes) for want in wants]
    seen = []
    for read in plan_reads(frames, wants, direct, limit=limit):
        assert read.nbytes == sum(frames.stored[f.number] for f in read.frames)
        assert read.nbytes <= limit or len(read.frames) == 1
        assert read.start == sum(frames.stored[: read.frames[0].number])
        for frame in read.frames:
            seen.append(frame.number)
            assert read.start + frame.begin == sum(frames.stored[: frame.number])
            raw = logical[starts[frame.number] :][: frames.raw[frame.number]]
            if read.direct is not None:
                number, at = read.direct
                targets[number][at + frame.begin : at + frame.begin + len(raw)] = raw
                continue
            for part in frame.parts:
                targets[part.target][part.at : part.at + part.nbytes] = raw[part.source : part.source + part.nbytes]
    assert len(seen) == len(set(seen))
    for want, target in zip(wants, targets, strict=True):
        assert bytes(target) == logical[want.start : want.start + want.nbytes]
    return seen


@pytest.mark.parametrize("seed", range(30))
def test_every_want_is_satisfied_and_no_frame_is_read_twice(seed):
    """Whatever the wants (overlapping, with gaps, across frames), each gets its bytes; each frame is read once."""
    dice = random.Random(seed)
    raw = [dice.randint(1, 40) for _ in range(dice.randint(1, 20))]
    names = [dice.choice(["raw", "zstd"]) for _ in raw]
    stored = [n if name == "raw" else max(1, n - 1) for n, name in zip(raw, names, strict=True)]
    total, wants = sum(raw), []
    for i in range(dice.randint(1, 8)):
        start = dice.randrange(total)
        wants.append(Want(start, dice.randint(1, total - start), i))
    direct = {i for i in range(len(wants)) if dice.random() < 0.5}
    frames = table(raw, stored, names)
    seen = satisfied(frames, wants, direct, dice.choice([1, 30, 1000]))
    begins = [sum(raw[:i]) for i in range(len(raw))]
    needed = {
        i
        for i, (begin, n) in enumerate(zip(begins, raw, strict=True))
        if any(w.start < begin + n and begin < w.start + w.nbytes for w in wants)
    }
    assert set(seen) == needed


def test_neighbours_are_joined_up_to_the_limit():
    """Neighbouring frames are one read; a gap, the limit, or another way of placing them begins a new one."""
    frames = table([10] * 8)
    reads = plan_reads(frames, [Want(0, 35, 0), Want(60, 20, 1)], limit=20)
    assert [(r.start, r.nbytes) for r in reads] == [(0, 20), (20, 20), (60, 20)]


def test_raw_frames_that_go_to_one_place_are_direct():
    """A raw frame that lands whole in one target is read straight into it, and neighbours with it."""
    frames = table([10] * 6, encodings=["raw"] * 5 + ["zstd"])
    reads = plan_reads(frames, [Want(0, 60, 0), Want(35, 2, 1)], direct={0})
    assert [(r.direct, r.nbytes) for r in reads] == [((0, 0), 30), (None, 10), ((0, 40), 10), (None, 10)]
