"""Carries out a plan: a few reads at a time, each frame verified, decoded and placed by decoder threads.

Look-ahead is bounded by ``READERS`` buffers. Every frame's checksum is compared before it is decoded; of frames that go
straight into their target, after they have arrived there. On return no thread touches the targets any more.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from asyncckpt.encode.base import RAW, Codec, Kind
from asyncckpt.encode.frame import decode_frame, digest_of
from asyncckpt.errors import FormatError, IntegrityError
from asyncckpt.manifest.format import FrameTable
from asyncckpt.restore.memory import Target
from asyncckpt.restore.plan import FrameRead, Read
from asyncckpt.store.base import Store
from asyncckpt.threads import PlainExecutor

READERS: Final = 4  # reads under way at a time, with a buffer of at most plan.READ_BYTES each
DECODERS: Final = 2


@dataclass(frozen=True, slots=True)
class Pack:
    """One rank's data file.

    Attributes:
        key: of the file in its store.
        name_of: key path of the value at a byte of a target, for errors.
    """

    store: Store
    key: str
    frames: FrameTable
    codecs: Mapping[str, Codec]
    name_of: Callable[[int, int], str]


async def carry_out(pack: Pack, reads: Sequence[Read], targets: Sequence[Target]) -> None:
    """Satisfy all reads.

    Raises:
        IntegrityError: bytes are damaged or missing; names the file and a value in it.
        FormatError: intact bytes that are not what the index says.
        StoreError: they cannot be read.
    """
    _check_encodings(pack, reads)
    if not reads:
        return
    decoders = PlainExecutor(min(DECODERS, len(reads)), "asyncckpt-decode", background=False)
    try:
        await _all(_Runner(pack, targets, decoders, iter(reads)), min(READERS, len(reads)))
    finally:
        decoders.shutdown()


async def _all(runner: "_Runner", readers: int) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(readers):
                group.create_task(runner.run())
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__


def _check_encodings(pack: Pack, reads: Sequence[Read]) -> None:
    used = {pack.frames.encodings[frame.number] for read in reads for frame in read.frames}
    unknown = sorted(used - {RAW, *pack.codecs})
    if unknown:
        raise FormatError(
            f"{pack.key} is coded by {', '.join(unknown)}, which is not known here; pass that codec",
            defect=f"unknown codec {unknown[0]}",
        )


class _Runner:
    """What the reader tasks share: each takes the next read until none is left."""

    def __init__(self, pack: Pack, targets: Sequence[Target], decoders: Executor, reads: Iterator[Read]) -> None:
        self._pack, self._targets, self._decoders, self._reads = pack, targets, decoders, reads

    async def run(self) -> None:
        """One reader, with buffers of its own."""
        buffer, scratch = _Buffer(), _Buffer()
        loop = asyncio.get_running_loop()
        for read in self._reads:
            stored = self._memory(read, buffer)
            await self._fetch(read, stored)
            await loop.run_in_executor(self._decoders, self._settle, read, stored, scratch)

    def _memory(self, read: Read, buffer: "_Buffer") -> memoryview:
        if read.direct is None:
            return buffer.take(read.nbytes)
        number, at = read.direct
        view = self._targets[number].view
        if view is None:
            raise RuntimeError("a direct read needs host memory")
        return view[at : at + read.nbytes]

    async def _fetch(self, read: Read, into: memoryview) -> None:
        try:
            await self._pack.store.read(self._pack.key, read.start, into)
        except (EOFError, FileNotFoundError) as error:
            where = self._name(read.frames[0])
            raise IntegrityError(
                f"{self._pack.key} is missing or too short for {where}", file=self._pack.key, key=where
            ) from error

    def _settle(self, read: Read, stored: memoryview, scratch: "_Buffer") -> None:
        """Verify, decode and place the frames of one read. In a decoder thread."""
        frames = self._pack.frames
        for frame in read.frames:
            part = stored[frame.begin : frame.begin + frames.stored[frame.number]]
            if digest_of([part]) != frames.digest(frame.number):
                where = self._name(frame)
                raise IntegrityError(
                    f"{self._pack.key} is damaged in frame {frame.number}, which holds part of {where}",
                    file=self._pack.key,
                    key=where,
                )
            if read.direct is None:
                self._place(frame, part, scratch)

    def _place(self, frame: FrameRead, stored: memoryview, scratch: "_Buffer") -> None:
        encoding = self._pack.frames.encodings[frame.number]
        if encoding == RAW:
            raw = stored
        else:
            whole = self._whole(frame)
            raw = scratch.take(self._pack.frames.raw[frame.number]) if whole is None else whole
            self._decode(frame.number, encoding, stored, raw)
            if whole is not None:
                return
        for part in frame.parts:
            self._targets[part.target].write(part.at, raw[part.source : part.source + part.nbytes])

    def _whole(self, frame: FrameRead) -> memoryview | None:
        """The host memory that the whole frame goes to, if that is one piece."""
        part, view = frame.parts[0], self._targets[frame.parts[0].target].view
        if len(frame.parts) > 1 or view is None or part.nbytes != self._pack.frames.raw[frame.number]:
            return None
        return view[part.at : part.at + part.nbytes]

    def _decode(self, number: int, encoding: str, stored: memoryview, raw: memoryview) -> None:
        kind: Kind = self._pack.frames.kinds[number]  # type: ignore[assignment]  # checked with the index
        try:
            decode_frame(stored, encoding, kind, raw, self._pack.codecs)
        except ValueError as error:
            raise FormatError(
                f"{self._pack.key}: frame {number} is intact, but not {encoding} of {len(raw)} bytes: {error}",
                defect="undecodable frame",
            ) from error

    def _name(self, frame: FrameRead) -> str:
        return self._pack.name_of(frame.parts[0].target, frame.parts[0].at)


class _Buffer:
    """Memory that is used again and again and grows as needed."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def take(self, nbytes: int) -> memoryview:
        """The first ``nbytes`` of it. What was taken before must no longer be used."""
        if len(self._memory) < nbytes:
            self._memory = bytearray(nbytes)
        return memoryview(self._memory)[:nbytes]
