"""Where things lie: regions never overlap, frames cover everything and never straddle buffers."""

import itertools

import hypothesis.strategies as st
from hypothesis import given

from asyncckpt.capture.layout import Group, cut, lay_out
from asyncckpt.encode.base import KINDS, width_of

groups = st.sampled_from([Group(kind, name) for kind in KINDS for name in ("a", "b")])
regions = st.lists(st.tuples(groups, st.integers(0, 3000)), max_size=40)


@given(regions, st.sampled_from([64, 1024, 4096, 1 << 20]))
def test_layout_and_frames(sizes, frame_size):
    """Regions and gaps tile the string; groups are aligned; frames are of one kind, gapless and cut where they must."""
    sizes = [(group, nbytes * width_of(group.kind)) for group, nbytes in sizes]
    layout = lay_out(sizes)
    pieces = sorted([(o, o + n) for o, (_, n) in zip(layout.offsets, sizes, strict=True) if n] + layout.gaps)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    assert not pieces or (pieces[0][0], pieces[-1][1]) == (0, layout.nbytes)
    for offset, (group, _) in zip(layout.offsets, sizes, strict=True):
        assert offset % width_of(group.kind) == 0
    frames = cut(layout, frame_size)
    assert sum(frame.nbytes for frame in frames) == layout.nbytes
    at = 0
    for frame in frames:
        assert frame.offset == at
        assert frame.nbytes > 0
        assert frame.offset // frame_size == (frame.offset + frame.nbytes - 1) // frame_size
        at += frame.nbytes
    for offset, (group, nbytes) in zip(layout.offsets, sizes, strict=True):
        touched = {f.kind for f in frames if f.offset < offset + nbytes and offset < f.offset + f.nbytes and nbytes}
        assert touched <= {group.kind}


def test_large_states_are_laid_out_in_pages():
    """Frames of a large state begin at whole pages, so that raw ones can be written straight from memory."""
    layout = lay_out([(Group("f4", "a"), 5_000_000), (Group("b8", "b"), 8_000)])
    assert all(frame.offset % 4096 == 0 for frame in cut(layout, 4 << 20))
