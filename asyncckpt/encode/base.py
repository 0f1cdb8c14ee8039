"""The words that encoders share: element kinds, codecs, frames.

A *kind* tells an encoder how the bytes of a frame are built, as one letter and the element's width in bytes: ``f`` for
IEEE-like floats (sign, exponent, mantissa from the top bit down), ``b`` for all else. A complex number is two floats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

Buffer = bytes | bytearray | memoryview
Kind = Literal["f8", "f4", "f2", "f1", "b8", "b4", "b2", "b1"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RAW = "raw"  # the encoding of a frame that is stored as it is


def width_of(kind: Kind) -> int:
    """Bytes of one element."""
    return int(kind[1])


class FrameSpec(NamedTuple):
    """One frame of the logical byte string: where it starts, its raw length in bytes, how its elements are built."""

    offset: int
    nbytes: int
    kind: Kind


@runtime_checkable
class Codec(Protocol):
    """A frozen value that codes single frames. Called from several encoder threads at once.

    ``name`` stands in the index beside each frame coded with it, so it must never change its meaning. It may not be
    ``"raw"``.
    """

    @property
    def name(self) -> str:
        """Name of the encoding on disk."""
        ...

    def encode(self, raw: memoryview, kind: Kind) -> Sequence[Buffer] | None:
        """The stored form in one or more parts, fresh memory owned by the caller; None if it would not be smaller."""
        ...

    def decode(self, stored: memoryview, kind: Kind, into: memoryview) -> None:
        """Fill ``into`` exactly, or raise ``ValueError`` if ``stored`` is not the coded form of that many bytes.

        Never takes more memory than ``into`` plus a small constant, whatever ``stored`` claims.
        """
        ...


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """One frame as it goes to the pack.

    Attributes:
        encoding: ``"raw"`` or the codec's name.
        parts: the stored bytes, in order. For ``"raw"`` this is the caller's own memory, not a copy.
        stored_bytes: their total length.
        digest: XXH3-128 of the stored bytes, 16 bytes, big-endian (canonical) order.
    """

    encoding: str
    parts: tuple[Buffer, ...]
    stored_bytes: int
    digest: bytes
