"""zstd as the planes need it: one compressor or decompressor per thread, never shared.

Exponents hold no repeats, only skewed frequencies: for them zstd's match search is cut down to almost nothing, and what
remains is a Huffman coder. Its blocks are kept small, since each has a table of its own and tensors differ.

Decoding goes into memory of the declared size, never into memory that a header asks for.
"""

import threading
from typing import Any

import zstandard

from asyncckpt.encode.base import Buffer

_WINDOW = 1 << 27  # bytes; what a decoder may be asked to keep, though never more than the content


class _Tools(threading.local):
    """This thread's compressors, by level (0: Huffman only), and its decompressor."""

    def __init__(self) -> None:
        self.compressors: dict[int, Any] = {}
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)


_tools = _Tools()


def compress_noise(data: Buffer) -> bytes:
    """One zstd frame of data without repeats (runs are still found)."""
    return _compress(0, data)


def compress(data: Buffer, level: int) -> bytes:
    """One zstd frame, searched for repeats."""
    return _compress(level, data)


def decompress(stored: memoryview, into: memoryview) -> None:
    """Fill ``into`` from one zstd frame of exactly that content and nothing behind it, or raise ``ValueError``."""
    try:
        if zstandard.frame_content_size(stored) != len(into):
            raise ValueError("a zstd frame of another length")
        with _tools.decompressor.stream_reader(stored, read_across_frames=True) as reader:
            done = 0
            while done < len(into) and (got := reader.readinto(into[done:])):
                done += got
            if done != len(into) or reader.read(1):
                raise ValueError("a zstd frame that does not end where it should")
    except (zstandard.ZstdError, MemoryError) as error:
        raise ValueError(f"broken zstd frame: {error}") from error


def _compress(level: int, data: Buffer) -> bytes:
    if level not in _tools.compressors:
        _tools.compressors[level] = zstandard.ZstdCompressor(compression_params=_parameters(level))
    coded: bytes = _tools.compressors[level].compress(data)
    return coded


def _parameters(level: int) -> Any:
    huffman = {
        "strategy": zstandard.STRATEGY_FAST,
        "min_match": 7,
        "hash_log": 6,
        "target_length": 0,  # more would switch the coding of literals off
        "window_log": 15,
    }
    chosen = {"write_checksum": 0, "write_content_size": 1} | ({} if level else huffman)
    return zstandard.ZstdCompressionParameters.from_level(level or 1, **chosen)
