import struct
import tracemalloc

import pytest
import zstandard
from coded_values import coded, mixtures, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncckpt.encode.base import KINDS, RAW
from asyncckpt.encode.codec import Zstd
from asyncckpt.encode.frame import decode_frame, known_codecs

GOOD = {
    "f2": (coded(weights(9001, "f2") + b"!", "f2"), 18003),
    "f4": (coded(weights(5000), "f4"), 20000),
    "f8": (coded(weights(4000, "f8"), "f8"), 32000),
    "b1": (coded(b"some words, over and over " * 300, "b1"), 7800),
    "f1": (coded(b"\x01\x02\x03\x02" * 3000, "f1"), 12000),
}


def decode(stored, kind, nbytes, encoding="zstd"):
    """What lands in memory of ``nbytes``; fails if anything outside of it is written."""
    memory = bytearray(b"\xa5" * (nbytes + 64))
    try:
        decode_frame(memoryview(stored), encoding, kind, memoryview(memory)[32 : 32 + nbytes], known_codecs())
    finally:
        assert memory[:32] == memory[-32:] == b"\xa5" * 32
    return bytes(memory[32:-32])


@pytest.mark.parametrize("kind", GOOD)
def test_every_cut_is_refused(kind):
    """A stored frame that lost bytes at its end is a ValueError, wherever it was cut; so is one with bytes added."""
    stored, nbytes = GOOD[kind]
    decode(stored, kind, nbytes)
    for cut in {*range(120), *range(0, len(stored), 97), len(stored) - 1}:
        with pytest.raises(ValueError):
            decode(stored[: min(cut, len(stored) - 1)], kind, nbytes)
    for more in (b"\0", b"x" * 40):
        with pytest.raises(ValueError):
            decode(stored + more, kind, nbytes)


@pytest.mark.parametrize("kind", GOOD)
def test_wrong_lengths_are_refused(kind):
    """A frame does not decode into memory of another length."""
    stored, nbytes = GOOD[kind]
    for other in (0, 1, nbytes - 8, nbytes - 1, nbytes + 1, nbytes + 8, 2 * nbytes):
        with pytest.raises(ValueError):
            decode(stored, kind, other)


@pytest.mark.parametrize("kind", GOOD)
@settings(deadline=None)
@given(data=st.data())
def test_mutated_frames(kind, data):
    """Changed bytes of a stored frame give a ValueError or other values, never a crash or a write outside."""
    stored, nbytes = GOOD[kind]
    broken = bytearray(stored)
    near_head = st.integers(0, min(80, len(stored) - 1)) | st.integers(0, len(stored) - 1)
    for at, value in data.draw(st.lists(st.tuples(near_head, st.integers(0, 255)), min_size=1, max_size=6)):
        broken[at] = value
    try:
        decode(bytes(broken), kind, nbytes)
    except ValueError:
        decode(stored, kind, nbytes)  # the thread's tools still work


@settings(deadline=None)
@given(st.binary(max_size=300) | mixtures(), st.sampled_from(KINDS), st.integers(0, 5000))
def test_any_bytes_as_a_stored_frame(stored, kind, nbytes):
    """Bytes that no encoder wrote give a ValueError or some values, never anything else."""
    try:
        decode(stored, kind, nbytes)
    except ValueError:
        return


def test_frames_of_another_kind():
    """A frame of floats is refused where the index says that there are none, or of another width."""
    stored, nbytes = GOOD["f4"]
    for kind in ("b4", "b1", "f1", "f2", "f8"):
        with pytest.raises(ValueError):
            decode(stored, kind, nbytes)


def test_unknown_modes_and_codings():
    """Modes and codings of later versions are refused by number."""
    with pytest.raises(ValueError, match="unknown mode 9"):
        decode(b"\x09" + bytes(50), "f4", 40)
    with pytest.raises(ValueError, match="unknown coding 7"):
        decode(b"\x01" + struct.pack("<BI", 7, 20) + struct.pack("<BI", 0, 10) * 2 + bytes(40), "f4", 40)


def test_raw_frames_of_another_length():
    """A raw frame must have the length that the index says."""
    with pytest.raises(ValueError, match="a raw frame of 3 bytes, 4 expected"):
        decode(b"abc", "b1", 4, RAW)


def _bomb(declared):
    return zstandard.ZstdCompressor(write_content_size=declared).compress(bytes(200 << 20))


@pytest.mark.parametrize("declared", [True, False])
def test_bombs_take_no_memory(declared):
    """A frame that would unfold to 200 MB is refused without taking that memory, whether it says so or not."""
    bomb = b"\x00" + _bomb(declared)
    tracemalloc.start()
    with pytest.raises(ValueError):
        decode(bomb, "b1", 4096)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def _frame_of_pairs(count, plane):
    table = struct.pack("<BI", 0, 2 * count) + struct.pack("<BI", 0, count) + struct.pack("<BI", 2, len(plane))
    return b"\x01" + table + bytes(3 * count) + plane


def test_a_claim_of_many_outside_values_is_refused():
    """A plane of pairs lists at most one outside value in 64, each within the plane and all of them there."""
    pairs = zstandard.ZstdCompressor().compress(bytes(500))
    good = _frame_of_pairs(1000, struct.pack("<BHHB", 100, 1, 999, 7) + pairs)
    assert decode(good, "f4", 4000)[-1] == 53  # 107, rotated back
    for outside in (struct.pack("<BH", 100, 0xFFFF), struct.pack("<BH", 100, 16) + bytes(48)):
        with pytest.raises(ValueError, match="outside values in a plane of 1000 values"):
            decode(_frame_of_pairs(1000, outside + pairs), "f4", 4000)
    with pytest.raises(ValueError, match="outside values in a plane"):
        decode(_frame_of_pairs(1000, struct.pack("<BHH", 100, 15, 0)), "f4", 4000)
    with pytest.raises(ValueError, match="behind the end"):
        decode(_frame_of_pairs(1000, struct.pack("<BHHB", 100, 1, 1000, 7) + pairs), "f4", 4000)
    with pytest.raises(ValueError, match="ends early"):
        decode(_frame_of_pairs(1000, b"d"), "f4", 4000)


def test_a_codec_that_decodes_nothing():
    """The codec itself refuses an empty stored form."""
    with pytest.raises(ValueError, match="no coded form"):
        Zstd().decode(memoryview(b""), "f4", memoryview(bytearray(4)))
