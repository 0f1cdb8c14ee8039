"""The contestants of codec.py: each codes one frame of floats and gives it back."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import zstandard

from asyncckpt.encode.codec import Zstd
from asyncckpt.encode.frame import decode_frame, encode_frame

WIDTHS = {"f2": 2, "f4": 4, "f8": 8, "b1": 1, "b2": 2, "b4": 4, "b8": 8}


class Ours:
    """The codec of this package, with its checksums' cost of coding."""

    label = "asyncckpt"
    whole = False

    def __init__(self) -> None:
        self._codec = Zstd()

    def prepare(self, raw: memoryview, _kind: str) -> Any:
        return raw

    def encode(self, prepared: Any, kind: str) -> Any:
        return encode_frame(self._codec, prepared, kind)

    def size(self, coded: Any) -> int:
        return coded.stored_bytes

    def received(self, coded: Any) -> Any:
        """As a reader gets it."""
        return coded.encoding, memoryview(b"".join(coded.parts))

    def decode(self, received: Any, kind: str, into: memoryview) -> memoryview:
        encoding, stored = received
        decode_frame(stored, encoding, kind, into, {self._codec.name: self._codec})
        return into


class Plain:
    """zstd at level 1 on the bytes as they are."""

    label = "zstd -1"
    whole = False

    def prepare(self, raw: memoryview, _kind: str) -> Any:
        return raw

    def encode(self, prepared: Any, _kind: str) -> Any:
        return zstandard.ZstdCompressor(level=1).compress(prepared)

    def size(self, coded: Any) -> int:
        return len(coded)

    def received(self, coded: Any) -> Any:
        return coded

    def decode(self, received: Any, _kind: str, into: memoryview) -> memoryview:
        with zstandard.ZstdDecompressor().stream_reader(received) as reader:
            reader.readinto(into)  # type: ignore[arg-type]
        return into


class ZipNN(Plain):
    """ZipNN, told the dtype, with one thread. It writes into its input: a copy, which is not timed."""

    label = "ZipNN"

    def prepare(self, raw: memoryview, kind: str) -> Any:
        import zipnn

        dtype = {"f2": "bfloat16", "f4": "float32"}[kind]
        self._coder = zipnn.ZipNN(input_format="byte", bytearray_dtype=dtype, threads=1)
        return bytearray(raw)

    def encode(self, prepared: Any, _kind: str) -> Any:
        return self._coder.compress(prepared)

    def decode(self, received: Any, _kind: str, _into: memoryview) -> memoryview:
        return memoryview(self._coder.decompress(received))


class ZipNNWhole(ZipNN):
    """The same with all bytes in one call."""

    label = "ZipNN whole"
    whole = True


class Blosc2(Plain):
    """blosc2: bytes shuffled in blocks, then its zstd at level 1, with one thread."""

    label = "blosc2"

    def encode(self, prepared: Any, kind: str) -> Any:
        import blosc2

        blosc2.set_nthreads(1)
        shuffle = blosc2.Filter.SHUFFLE
        return blosc2.compress2(prepared, typesize=WIDTHS[kind], codec=blosc2.Codec.ZSTD, clevel=1, filters=[shuffle])

    def decode(self, received: Any, _kind: str, into: memoryview) -> memoryview:
        import blosc2

        blosc2.decompress2(received, dst=np.frombuffer(into, np.uint8))
        return into


CONTESTANTS: Mapping[str, Callable[[], Any]] = {
    "ours": Ours,
    "ZipNN": ZipNN,
    "ZipNN_whole": ZipNNWhole,
    "plain": Plain,
    "blosc2": Blosc2,
}


def available(kind: str) -> dict[str, Any]:
    """The contestants that are installed and know this kind of frame."""
    found = {"ours", "plain"}
    if kind in {"f2", "f4"} and importlib.util.find_spec("zipnn"):
        found |= {"ZipNN", "ZipNN_whole"}
    if importlib.util.find_spec("blosc2"):
        found.add("blosc2")
    return {name: make() for name, make in CONTESTANTS.items() if name in found}
