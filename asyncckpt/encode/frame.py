"""Single frames: raw bytes to their stored form with a checksum, and back."""

from collections.abc import Iterable, Mapping

import xxhash

from asyncckpt.encode.base import RAW, Buffer, Codec, EncodedFrame, Kind
from asyncckpt.encode.codec import Zstd


def encode_frame(codec: Codec | None, raw: memoryview, kind: Kind) -> EncodedFrame:
    """Code one frame, or take it as it is if the codec cannot make it smaller. Any thread."""
    parts = None if codec is None or not len(raw) else codec.encode(raw, kind)
    if codec is None or parts is None or (size := sum(map(len, parts))) >= len(raw):
        return EncodedFrame(RAW, (raw,), len(raw), digest_of([raw]))
    return EncodedFrame(codec.name, tuple(parts), size, digest_of(parts))


def decode_frame(stored: memoryview, encoding: str, kind: Kind, into: memoryview, codecs: Mapping[str, Codec]) -> None:
    """Fill ``into`` exactly; ``ValueError`` if ``stored`` is not the coded form of that many bytes. Any thread."""
    if encoding == RAW:
        if len(stored) != len(into):
            raise ValueError(f"a raw frame of {len(stored)} bytes, {len(into)} expected")
        into[:] = stored
        return
    codec = codecs.get(encoding)
    if codec is None:
        raise ValueError(f"unknown encoding {encoding!r}; known: {', '.join([RAW, *codecs])}")
    codec.decode(stored, kind, into)


def digest_of(parts: Iterable[Buffer]) -> bytes:
    """XXH3-128 of the parts joined, 16 bytes in canonical (big-endian) order."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.digest()


def known_codecs(extra: Iterable[Codec] = ()) -> dict[str, Codec]:
    """Codecs by name: ours and the given ones."""
    return {codec.name: codec for codec in (Zstd(), *extra)}
