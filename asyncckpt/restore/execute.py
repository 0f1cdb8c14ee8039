"""Carries out a plan: threads that each take a read, verify, decode and place its frames, and take the next.

A frame is settled by the thread that has read it, while it is in that processor's cache. Every frame's checksum is
compared before it is decoded; of frames that go straight into their target, after they have arrived there. On return no
thread touches the targets any more.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from asyncckpt.encode.base import RAW, Codec, Kind
from asyncckpt.encode.frame import decode_frame, digest_of
from asyncckpt.errors import FormatError, IntegrityError
from asyncckpt.manifest.format import FrameTable
from asyncckpt.restore.memory import Target
from asyncckpt.restore.pages import Room
from asyncckpt.restore.plan import FrameRead, Read
from asyncckpt.restore.source import source_of
from asyncckpt.store.base import PAGE, OpenFile, Store
from asyncckpt.store.calls import finished
from asyncckpt.threads import PlainExecutor

FEWEST: Final = 4  # threads: a disk wants several reads at a time, on however few processors
MOST: Final = 8


@dataclass(frozen=True, slots=True)
class Pack:
    """One rank's data file.

    Attributes:
        key: of the file in its store.
        name_of: key path of the value at a byte of a target, for errors.
        shared: other processes read it at the same time.
    """

    store: Store
    key: str
    frames: FrameTable
    codecs: Mapping[str, Codec]
    name_of: Callable[[int, int], str]
    shared: bool = False


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
    await _Crew(pack, targets, reads).run(min(workers(), len(reads)))


def workers() -> int:
    """Threads that read, verify and decode; each has a buffer for its read and one for a raw frame."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(FEWEST, min(cpus, MOST))


def _check_encodings(pack: Pack, reads: Sequence[Read]) -> None:
    used = {pack.frames.encodings[frame.number] for read in reads for frame in read.frames}
    unknown = sorted(used - {RAW, *pack.codecs})
    if unknown:
        raise FormatError(
            f"{pack.key} is coded by {', '.join(unknown)}, which is not known here; pass that codec",
            defect=f"unknown codec {unknown[0]}",
        )


class _Crew:
    """What the worker threads share: each takes the next read until none is left."""

    def __init__(self, pack: Pack, targets: Sequence[Target], reads: Sequence[Read]) -> None:
        self._pack, self._targets, self._reads = pack, targets, iter(reads)
        self._stopped = False
        self._source = source_of(pack.store, pack.key, shared=pack.shared)

    async def run(self, workers: int) -> None:
        """Return when all reads are done; raise the first error. No thread is left."""
        threads = PlainExecutor(workers, "asyncckpt-restore", background=False)
        jobs = [threads.submit(self._work) for _ in range(workers)]
        try:
            await asyncio.gather(*map(asyncio.wrap_future, jobs))
        finally:
            self._stopped = True
            self._source.stop()
            for job in jobs:
                await finished(job)
            threads.shutdown()

    def _work(self) -> None:
        """What each thread does, with buffers of its own."""
        room, scratch = Room(), Room()
        try:
            with self._source.opened() as file:
                while not self._stopped and (read := next(self._reads, None)) is not None:
                    wanted = self._wanted(read)
                    stored = self._fetch(file, read, wanted, room)
                    self._settle(read, stored, None if stored is wanted else scratch)
        finally:
            self._stopped = True  # all reads are taken, or one of them has failed

    def _wanted(self, read: Read) -> memoryview | None:
        """Where the stored bytes go just as they are."""
        if read.direct is None:
            return None
        number, at = read.direct
        view = self._targets[number].view
        if view is None:
            raise RuntimeError("a direct read needs host memory")
        return view[at : at + read.nbytes]

    def _fetch(self, file: OpenFile, read: Read, wanted: memoryview | None, room: Room) -> memoryview:
        try:
            return file.fetch(read.start, read.nbytes, wanted, room.take(read.nbytes + 2 * PAGE))
        except (EOFError, FileNotFoundError) as error:
            where = self._name(read.frames[0])
            raise IntegrityError(
                f"{self._pack.key} is missing or too short for {where}", file=self._pack.key, key=where
            ) from error

    def _settle(self, read: Read, stored: memoryview, scratch: Room | None) -> None:
        """Verify, decode and place the frames of one read; without ``scratch`` they are in place already."""
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
            if scratch is not None:
                self._place(frame, part, scratch)

    def _place(self, frame: FrameRead, stored: memoryview, scratch: Room) -> None:
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
