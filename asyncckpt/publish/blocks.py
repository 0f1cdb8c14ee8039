"""What publish needs of a snapshot: a logical byte string cut into frames, and the tree that gives it meaning."""

from collections.abc import Sequence
from typing import Any, Protocol

from asyncckpt.encode.base import FrameSpec


class Blocks(Protocol):
    """A snapshot as publish sees it. A list of bytearrays can satisfy it as well."""

    @property
    def frames(self) -> Sequence[FrameSpec]:
        """In logical order, without gaps, covering ``[0, raw_bytes)``."""
        ...

    @property
    def raw_bytes(self) -> int:
        """Length of the logical byte string."""
        ...

    @property
    def tree(self) -> Any:
        """The node that goes into the index."""
        ...

    def read(self, i: int) -> memoryview:
        """The raw bytes of frame i. Called once per frame, in order or nearly so, from encoder threads.

        Blocks until that frame has been captured. Raises what capturing raised, if it failed.
        """
        ...

    def release(self, i: int) -> None:
        """Frame i has been written (or given up): its memory may be used again. Any thread, once per read frame."""
        ...
