"""The frames of one snapshot on their way to the store: read and encoded ahead, handed over in order.

The store pulls. Frames are encoded in encoder threads (ahead.py), at most ``look_ahead`` ahead, so the slowest stage
sets the pace and at most that many encoded frames exist, those last handed over among them. A frame's memory is given
back when the store asks for what follows it. When anything fails, or the save is cancelled, no more frames are begun;
those being encoded are waited for, because their threads still read the snapshot, and every frame that was read is
given back.

Raw frames that are ready and lie back to back in memory go out as one part of up to ``RUN`` bytes: the fewer parts, the
less often the threads wake each other.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from asyncckpt.encode.base import RAW, Buffer, Codec, EncodedFrame
from asyncckpt.encode.frame import encode_frame
from asyncckpt.events import Phases
from asyncckpt.manifest.documents import FrameTable
from asyncckpt.publish.ahead import Ahead
from asyncckpt.publish.blocks import Blocks

RUN: Final = 32 << 20  # bytes of raw frames in one part


class _Stored(NamedTuple):
    """What the index says of a frame besides what the snapshot says."""

    nbytes: int
    encoding: str
    digest: bytes


class PackParts:
    """The bytes of a pack as a store takes them.

    Attributes:
        nbytes: their exact number, where it is known beforehand: a store can make room for all of them, or fail now.
    """

    def __init__(self, parts: AsyncGenerator[Buffer, None], nbytes: int | None) -> None:
        self._parts, self.nbytes = parts, nbytes

    def __aiter__(self) -> AsyncIterator[Buffer]:
        return self._parts

    async def __anext__(self) -> Buffer:
        return await anext(self._parts)

    async def aclose(self) -> None:
        """No more parts are wanted; on return no thread reads the snapshot."""
        await self._parts.aclose()


@dataclass(slots=True)
class Frames:
    """The frames of one snapshot. Used on one event loop; ``_encode`` in any thread.

    Attributes:
        look_ahead: most frames that are being encoded or wait to be written.
        batch: frames that an encoder thread takes at a time.
        drained: when the store had taken them all, by ``time.perf_counter()``.
    """

    blocks: Blocks
    codec: Codec | None
    encoders: Executor
    phases: Phases
    look_ahead: int
    batch: int = 1
    drained: float = 0.0
    _stored: list[_Stored] = field(default_factory=list)

    def parts(self) -> PackParts:
        """The bytes of the pack, in order. Must be closed."""
        return PackParts(self._parts(), self.blocks.raw_bytes if self.codec is None else None)

    async def _parts(self) -> AsyncGenerator[Buffer, None]:
        ahead = Ahead(
            self._encode, self.encoders, total=len(self.blocks.frames), limit=self.look_ahead, batch=self.batch
        )
        try:
            while ahead.fill():
                await ahead.first()
                run = _run(ahead.ready())
                for part in _parts_of(run):
                    with self.phases("write"):
                        yield part
                for frame in run:
                    self._stored.append(_Stored(frame.stored_bytes, frame.encoding, frame.digest))
                    self.blocks.release(ahead.drop())
        finally:
            await ahead.give_up(self.blocks.release)
        self.drained = time.perf_counter()

    def table(self) -> FrameTable:
        """The frames that the store took."""
        specs = self.blocks.frames[: len(self._stored)]
        return FrameTable(
            raw=[spec.nbytes for spec in specs],
            stored=[frame.nbytes for frame in self._stored],
            kinds=[spec.kind for spec in specs],
            encodings=[frame.encoding for frame in self._stored],
            digests=b"".join(frame.digest for frame in self._stored).hex(),
        )

    def _encode(self, i: int) -> EncodedFrame:
        """Read and encode frame i, in an encoder thread. If that fails the frame is given back here."""
        raw = self.blocks.read(i)
        try:
            with self.phases("encode"):
                return encode_frame(self.codec, raw, self.blocks.frames[i].kind)
        except BaseException:
            self.blocks.release(i)
            raise


# ---- runs of raw frames --------------------------------------------------------------------------------------------


def _run(ready: Iterator[EncodedFrame]) -> list[EncodedFrame]:
    """The first frame and those behind it that make one part with it."""
    run = [next(ready)]
    size = run[0].stored_bytes
    for frame in ready:
        size += frame.stored_bytes
        if size > RUN or not _adjoin(run[-1], frame):
            break
        run.append(frame)
    return run


def _parts_of(run: Sequence[EncodedFrame]) -> Sequence[Buffer]:
    return run[0].parts if len(run) == 1 else [_joined([frame.parts[0] for frame in run])]


def _adjoin(frame: EncodedFrame, following: EncodedFrame) -> bool:
    """Whether both are raw and the second one's bytes lie right behind the first one's, in memory of one owner."""
    if frame.encoding != RAW or following.encoding != RAW:
        return False
    one, two = memoryview(frame.parts[0]), memoryview(following.parts[0])
    return one.obj is two.obj and len(one) > 0 and len(two) > 0 and _address(one) + len(one) == _address(two)


def _joined(parts: Sequence[Buffer]) -> memoryview:
    """One view of neighbours in memory."""
    first = memoryview(parts[0])
    whole = memoryview(first.obj).cast("B")
    start = _address(first) - _address(whole)
    return whole[start : start + sum(map(len, parts))]


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
