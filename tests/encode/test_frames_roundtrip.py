import threading

import numpy as np
import pytest
from coded_values import kinds, mixtures, noise, there_and_back, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncckpt.encode import pairs, planes
from asyncckpt.encode.base import KINDS, RAW, Codec
from asyncckpt.encode.codec import Zstd, resolve_codec
from asyncckpt.encode.frame import decode_frame, digest_of, encode_frame, known_codecs


@settings(deadline=None)
@given(st.binary(max_size=600) | mixtures(), kinds)
def test_any_bytes_come_back(raw, kind):
    """Any bytes of any kind and length come back, and are never stored in more than their own length."""
    back, frame = there_and_back(raw, kind)
    assert back == raw
    assert frame.stored_bytes == sum(map(len, frame.parts)) <= len(raw)
    assert frame.digest == digest_of([b"".join(frame.parts)])


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize("extra", [b"", b"\x01", b"\x01\x02\x03"])
def test_frames_of_several_blocks(kind, extra):
    """Frames of several blocks and sections, of both signs or one, with and without bytes behind the end, come back."""
    both = np.frombuffer(weights(planes.BLOCK + pairs.SECTION + 12345, kind), np.uint8)
    one = both.copy()
    one[int(kind[1]) - 1 :: int(kind[1])] &= 0x7F
    for raw in (both.tobytes() + extra, one.tobytes() + extra):
        back, frame = there_and_back(raw, kind)
        assert back == raw
        assert frame.encoding == "zstd"


@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_all_bit_patterns(kind):
    """Every sign and exponent, infinities, denormals and NaN payloads come back bit by bit (case 60)."""
    every = np.arange(1 << 16, dtype=np.uint16)
    words = every if kind == "f2" else (every.astype(np.uint32) << 16) | np.arange(1 << 16, dtype=np.uint32)
    for order in (words, np.random.default_rng(0).permutation(words)):
        assert there_and_back(order.tobytes(), kind)[0] == order.tobytes()


def test_exponents_outside_the_window():
    """Elements whose exponents lie far off the others' come back: a few of them, many, at both ends of a frame."""
    for share in (0.0, 0.001, 0.05, 0.11, 0.3):
        values = np.frombuffer(weights(300_001), np.float32).copy()
        far = np.random.default_rng(1).random(len(values)) < share
        far[[0, -1]] = True
        values[far] *= np.float32(2.0) ** np.random.default_rng(2).integers(-90, 90, far.sum()).astype(np.float32)
        back, frame = there_and_back(values.tobytes(), "f4")
        assert back == values.tobytes()
        assert frame.encoding == "zstd"


@pytest.mark.parametrize("top", [0, 7, 14, 15, 240, 241, 254, 255])
def test_windows_at_the_edges(top):
    """A plane of few neighbouring values is coded as pairs wherever its values lie, in odd and even numbers."""
    for count in (1, 2, 9, 40_001, pairs.SECTION, 2 * pairs.SECTION + 77):
        plane = (top + np.random.default_rng(0).integers(-3, 4, count)).clip(0, 255).astype(np.uint8)
        assert_pairs_come_back(plane)


@pytest.mark.parametrize("count", [pairs.SECTION - 1, pairs.SECTION, 3 * pairs.SECTION + 129])
def test_values_outside_at_every_kind_of_place(count):
    """Values outside the window come back from either half of a pair, the ends, next to each other, in any section."""
    plane = np.random.default_rng(0).integers(100, 116, count).astype(np.uint8)
    plane[[0, 1, 2, 5, 64, 8191, 8192, count // 2, count - 2, count - 1]] = [0, 255, 99, 116, 3, 250, 98, 117, 0, 255]
    plane[::997] ^= 0xFF
    assert_pairs_come_back(plane)


def assert_pairs_come_back(plane):
    sections = np.arange(len(plane)) // pairs.SECTION
    pairing = pairs.Pairing(plane.copy(), pairs.windows(plane, sections, sections[-1] + 1))
    for start in range(0, len(plane), 2 * pairs.SECTION):
        pairing.add(start, min(start + 2 * pairs.SECTION, len(plane)))
    into = np.zeros_like(plane)
    pairs.decode_pairs(memoryview(pairing.finish()), into)
    assert np.array_equal(into, plane)


@pytest.mark.parametrize("kind", KINDS)
def test_unaligned_memory(kind):
    """Raw, stored and target memory may begin at any address."""
    raw = memoryview(bytearray(b"x" + weights(30_000)))[1:]
    frame = encode_frame(Zstd(), raw, kind)
    stored = memoryview(b"xyz" + b"".join(frame.parts))[3:]
    into = memoryview(bytearray(len(raw) + 1))[1:]
    decode_frame(stored, frame.encoding, kind, into, known_codecs())
    assert into == raw


@pytest.mark.parametrize("kind", KINDS)
def test_constant_frames_are_nearly_nothing(kind):
    """A frame of zeros or of one repeated element takes under a thousandth of its size."""
    for element in (bytes(8), bytes(range(1, 9)) if kind[1] == "8" else bytes([0, 63] * 4)):
        back, frame = there_and_back(element * (1 << 17), kind)
        assert back == element * (1 << 17)
        assert frame.stored_bytes < len(back) / 1000


@pytest.mark.parametrize(("kind", "most"), [("f4", 0.84), ("f2", 0.68), ("f8", 0.92)])
def test_sizes_of_weights(kind, most):
    """Weight-like values shrink to the sizes that we promise."""
    raw = weights(1 << 19, kind)
    assert encode_frame(Zstd(), memoryview(raw), kind).stored_bytes <= most * len(raw)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_stays_as_it_is(kind):
    """Random bytes are stored raw, without a copy."""
    raw = memoryview(noise(1 << 20))
    frame = encode_frame(Zstd(), raw, kind)
    assert (frame.encoding, frame.stored_bytes) == (RAW, len(raw))
    assert frame.parts[0] is raw


def test_values_cast_from_narrower_floats():
    """fp32 values that once were bf16 or fp16 take no more than the narrow ones would."""
    wide = np.frombuffer(weights(1 << 18), np.float32)
    from_bf16 = (wide.view(np.uint32) & 0xFFFF0000).tobytes()
    from_fp16 = wide.astype(np.float16).astype(np.float32).tobytes()
    for raw in (from_bf16, from_fp16):
        back, frame = there_and_back(raw, "f4")
        assert back == raw
        assert frame.stored_bytes < 0.45 * len(raw)


def test_results_are_not_overwritten_by_later_frames():
    """Parts stay as they are while later frames are coded, as long as anyone refers to them."""
    raws = [weights(1 << 18, seed=seed) for seed in range(12)]
    frames = [encode_frame(Zstd(), memoryview(raw), "f4") for raw in raws]
    for raw, frame in zip(raws, frames, strict=True):
        assert digest_of(frame.parts) == frame.digest
        into = bytearray(len(raw))
        decode_frame(memoryview(b"".join(frame.parts)), "zstd", "f4", memoryview(into), known_codecs())
        assert into == raw


def test_a_slice_of_a_part_keeps_its_memory():
    """A slice alone of a part is enough to keep that part's memory from being lent again."""
    frame = encode_frame(Zstd(), memoryview(weights(1 << 18)), "f4")
    piece = memoryview(max(frame.parts, key=len))[10:5000]
    before = bytes(piece)
    del frame
    for seed in range(1, 4):
        encode_frame(Zstd(), memoryview(weights(1 << 18, seed=seed)), "f4")
    assert piece == before


def test_many_threads_at_once():
    """One codec serves several threads at the same time."""
    wrong = []

    def work(seed):
        raw = weights(100_000 + seed, "f2", seed)
        wrong.extend(seed for _ in range(5) if there_and_back(raw, "f2")[0] != raw)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Backwards:
    """A codec of a user's: bytes in reverse, without the last one if it is zero."""

    name = "backwards"

    def encode(self, raw, kind):
        return None if raw[-1] else [bytes(raw[-2::-1])]

    def decode(self, stored, kind, into):
        if len(stored) + 1 != len(into):
            raise ValueError("wrong length")
        into[:] = bytes(stored[::-1]) + b"\0"


def test_a_codec_of_the_users():
    """A user's codec stands under its own name, may decline a frame, and is found by readers who know it."""
    codec = resolve_codec(Backwards())
    assert isinstance(codec, Codec)
    assert there_and_back(b"abc\0", "b1", codec)[0] == b"abc\0"
    assert encode_frame(codec, memoryview(b"abc\0"), "b1").encoding == "backwards"
    assert encode_frame(codec, memoryview(b"abcd"), "b1").encoding == RAW
    assert list(known_codecs([codec])) == ["zstd", "backwards"]
    with pytest.raises(ValueError, match="unknown encoding 'backwards'"):
        decode_frame(memoryview(b"cba"), "backwards", "b1", memoryview(bytearray(4)), known_codecs())


def test_no_codec_and_empty_frames():
    """Without a codec, and without bytes, a frame is stored raw."""
    assert encode_frame(None, memoryview(bytes(100)), "f4").encoding == RAW
    assert there_and_back(b"", "f4")[0] == b""


def test_choices_of_compression():
    """``compression=`` takes two names or a codec, and says so when it gets something else."""
    assert resolve_codec("none") is None
    assert resolve_codec("zstd") == Zstd(1)
    assert resolve_codec(Zstd(5)) == Zstd(5)
    for wrong in ("gzip", "", None, 3, Zstd):
        with pytest.raises(ValueError, match=r'must be "zstd", "none", Zstd\(level\) or a Codec'):
            resolve_codec(wrong)


@pytest.mark.parametrize("level", [0, 20, -1, True, 1.5, "3"])
def test_levels_out_of_range(level):
    """Levels are ints between 1 and 19."""
    with pytest.raises(ValueError, match="between 1 and 19"):
        Zstd(level)


@pytest.mark.parametrize("level", [1, 3, 19])
def test_every_level_is_read_by_the_same_codec(level):
    """The level is the writer's affair: any ``Zstd`` decodes what any other coded."""
    raw = b"all work and no play " * 1000
    back, frame = there_and_back(raw, "b1", Zstd(level))
    assert (back, frame.encoding) == (raw, "zstd")
