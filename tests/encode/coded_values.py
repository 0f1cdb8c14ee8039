"""Bytes of many shapes for the tests of this folder."""

import numpy as np
from hypothesis import strategies as st

from asyncckpt.encode.base import KINDS, RAW
from asyncckpt.encode.codec import Zstd
from asyncckpt.encode.frame import decode_frame, encode_frame

kinds = st.sampled_from(KINDS)


def weights(count, kind="f4", seed=0):
    """Values as of trained tensors, as bytes."""
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32) * 0.02
    if kind == "f2":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # bfloat16
    return values.astype({"f4": np.float32, "f8": np.float64}[kind]).tobytes()


def noise(nbytes, seed=0):
    return np.random.default_rng(seed).bytes(nbytes)


def there_and_back(raw, kind, codec=None):
    """The raw bytes after coding and decoding, and the coded frame; fails if a byte outside is written."""
    codec = codec or Zstd()
    frame = encode_frame(codec, memoryview(raw), kind)
    stored = b"".join(frame.parts)
    memory = bytearray(b"\xa5" * (len(raw) + 32))
    decode_frame(memoryview(stored), frame.encoding, kind, memoryview(memory)[16 : 16 + len(raw)], {codec.name: codec})
    assert memory[:16] == memory[-16:] == b"\xa5" * 16
    return bytes(memory[16 : 16 + len(raw)]), frame


def coded(raw, kind):
    """The stored form by our codec, of bytes that shrink."""
    frame = encode_frame(Zstd(), memoryview(raw), kind)
    assert frame.encoding != RAW
    return b"".join(frame.parts)


@st.composite
def mixtures(draw):
    """Stretches of runs, noise, weights and small bytes in any order, of any length."""
    stretches = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3000), st.integers(0, 255)), max_size=6))
    makers = (
        lambda n, seed: bytes([seed]) * n,
        noise,
        lambda n, seed: weights(n // 4 + 1, "f4", seed)[:n],
        lambda n, seed: weights(n // 2 + 1, "f2", seed)[:n],
        lambda n, seed: bytes(np.random.default_rng(seed).integers(0, 3, n, np.uint8)),
    )
    return b"".join(makers[which](n, seed) for which, n, seed in stretches)
