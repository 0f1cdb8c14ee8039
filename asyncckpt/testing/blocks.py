"""A snapshot that is a list of byte strings, to test publishing without torch."""

import threading
from collections.abc import Sequence
from typing import Any

from asyncckpt.encode.base import FrameSpec, Kind

SCRUBBED = 0xDD


class ListBlocks:
    """Satisfies ``asyncckpt.publish.blocks.Blocks``. Any thread.

    A released frame is overwritten at once, so that whoever still reads it is found out.

    Attributes:
        tree: as given.
        reads: how often each frame was read.
        releases: how often each frame was released.
    """

    def __init__(self, frames: Sequence[bytes], *, kind: Kind = "b1", tree: Any = None) -> None:
        self.tree = tree
        self.reads = [0] * len(frames)
        self.releases = [0] * len(frames)
        self._memory = [bytearray(frame) for frame in frames]
        self._mutex = threading.Lock()
        starts = [sum(map(len, frames[:i])) for i in range(len(frames))]
        self._frames = [FrameSpec(start, len(frame), kind) for start, frame in zip(starts, frames, strict=True)]

    @property
    def frames(self) -> Sequence[FrameSpec]:
        """See ``Blocks``."""
        return self._frames

    @property
    def raw_bytes(self) -> int:
        """See ``Blocks``."""
        return sum(frame.nbytes for frame in self._frames)

    def read(self, i: int) -> memoryview:
        """See ``Blocks``."""
        with self._mutex:
            self.reads[i] += 1
        return memoryview(self._memory[i])

    def release(self, i: int) -> None:
        """See ``Blocks``."""
        with self._mutex:
            self.releases[i] += 1
            self._memory[i][:] = bytes([SCRUBBED]) * len(self._memory[i])

    def held(self) -> int:
        """How many frames have been read and not released; negative if one was released too often."""
        with self._mutex:
            return sum(self.reads) - sum(self.releases)
