"""Timed pieces that touch the bytes: admission to the pool, coding a frame, decoding it.

python -m pytest benchmarks --benchmark-only
"""

import threading

import numpy as np
import pytest
import zstandard

from asyncckpt.capture.pool import Pool
from asyncckpt.encode.codec import Zstd
from asyncckpt.encode.frame import decode_frame, encode_frame

FRAME = 4 << 20


@pytest.fixture(scope="module")
def weights():
    """One frame of fp32 numbers that are spread like weights."""
    return memoryview((np.random.default_rng(0).standard_normal(FRAME // 4, np.float32) * 0.02).view(np.uint8))


@pytest.fixture(scope="module")
def target():
    return memoryview(np.ones(FRAME, np.uint8))  # touched, as the pool's memory is


@pytest.mark.benchmark(group="admit and release")
def test_pool(benchmark):
    """The right to hold a snapshot, one buffer taken, all given back."""
    pool = Pool(host_memory=None, max_in_flight=2)

    def once():
        admission = pool.admit(FRAME)
        admission.buffer(0)
        admission.release()

    benchmark(once)
    assert pool.usage().bytes_in_use == 0
    pool.close()


@pytest.mark.benchmark(group="admit and release")
def test_pool_reference(benchmark):
    """A semaphore, which counts no bytes."""
    slots = threading.Semaphore(2)

    def once():
        slots.acquire()
        slots.release()

    benchmark(once)


@pytest.mark.benchmark(group="encode a frame of 4 MiB")
@pytest.mark.parametrize("codec", [Zstd(), None], ids=["zstd", "none"])
def test_encode_frame(benchmark, weights, codec):
    """Coded and checksummed; "none" is the checksum alone."""
    assert benchmark(encode_frame, codec, weights, "f4").stored_bytes <= FRAME


@pytest.mark.benchmark(group="encode a frame of 4 MiB")
@pytest.mark.parametrize("how", ["copy", "zstd level 1"])
def test_encode_frame_reference(benchmark, weights, target, how):
    """A copy into touched memory, and plain zstd."""
    if how == "copy":
        benchmark(target.__setitem__, slice(None), weights)
    else:
        assert benchmark(zstandard.ZstdCompressor(level=1).compress, weights)


@pytest.mark.benchmark(group="decode a frame of 4 MiB")
def test_decode_frame(benchmark, weights, target):
    """Straight into its place."""
    coded, codec = encode_frame(Zstd(), weights, "f4"), Zstd()
    stored = memoryview(b"".join(coded.parts))
    benchmark(decode_frame, stored, coded.encoding, "f4", target, {codec.name: codec})
    assert target == weights


@pytest.mark.benchmark(group="decode a frame of 4 MiB")
def test_decode_frame_reference(benchmark, weights):
    """Plain zstd, of the same bytes coded by plain zstd."""
    stored = zstandard.ZstdCompressor(level=1).compress(weights)
    assert benchmark(zstandard.ZstdDecompressor().decompress, stored) == weights
