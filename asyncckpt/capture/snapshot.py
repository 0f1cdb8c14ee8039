"""A snapshot: the state's bytes in host memory, as they were at one moment.

Guarantees:

1. When ``capture()`` returns, host memory has been copied, and every device stream that was current waits, on the
   device, for the copies out of it. Whatever the caller does next, the snapshot holds the values of before.
2. The host never waits for a device in ``capture()``, unless the state is larger than the pool and goes through it.
3. Sources stay referenced until their copies are complete, and not longer.
4. A buffer goes back to the pool when all its frames are released, and never while a device still writes to it.

``capture`` and ``abort`` are called by the training thread; ``read`` and ``release`` by encoder and worker threads.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from asyncckpt.capture.copying import Copy, copies_by_buffer, copy_all
from asyncckpt.capture.layout import cut
from asyncckpt.capture.memory import Buffer
from asyncckpt.capture.plan import SnapshotPlan
from asyncckpt.capture.pool import Admission
from asyncckpt.capture.streams import CopyStreams, wait_for
from asyncckpt.encode.base import FrameSpec
from asyncckpt.threads import collector_paused

Events = list[tuple[torch.device, torch.Event]]


class CaptureEndedError(RuntimeError):
    """The snapshot was released while it was being captured: its save had failed, and its handle says why."""


class _Slot:
    """One buffer's share of the snapshot: its memory, the events to wait for, the sources they read, frames left."""

    __slots__ = ("buffer", "events", "frames_left", "ready", "sources")

    def __init__(self, frames: int) -> None:
        self.buffer: Buffer | None = None
        self.events: Events = []
        self.sources: list[Any] = []
        self.frames_left = frames
        self.ready = False


class Snapshot:
    """Fills the buffers of an admission from a plan, and hands them out frame by frame."""

    def __init__(self, plan: SnapshotPlan, admission: Admission) -> None:
        self.tree, self.raw_bytes = plan.tree, plan.raw_bytes
        self.frames: Sequence[FrameSpec] = cut(plan.layout, admission.frame_size)
        self._plan: SnapshotPlan | None = plan
        self._admission = admission
        self._size = admission.buffer_size
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._capturing = self._released = False
        self._slots = [_Slot(n) for n in self._frames_per_buffer()]

    def capture(self) -> None:
        """Copy everything that the plan names. Blocks for room only if the state is streamed.

        Raises:
            CaptureEndedError: the snapshot was released meanwhile, because its save has failed.
        """
        with self._changed:
            plan, self._plan = self._plan, None
            self._capturing = plan is not None
        if plan is None:
            raise CaptureEndedError
        try:
            with torch.no_grad(), collector_paused():
                self._copy(plan, self._admission.streams)
        finally:
            self._end_capture()

    def _end_capture(self) -> None:
        with self._changed:
            self._capturing, released = False, self._released
        if released:  # what this thread was filling meanwhile goes back now
            self.release_all()

    def _copy(self, plan: SnapshotPlan, streams: CopyStreams) -> None:
        if self._admission.streamed:
            for i, copies in copies_by_buffer(plan, self._size):
                buffer = self._admission.buffer(i)
                with streams.copying(plan.devices):
                    self._fill(i, buffer, copies)
        else:
            with streams.copying(plan.devices):
                for i, copies in copies_by_buffer(plan, self._size):
                    self._fill(i, self._admission.buffer(i), copies)

    def read(self, i: int) -> memoryview:
        """The raw bytes of frame i; waits until they have been captured. Raises what ended the capture, if it did."""
        frame = self.frames[i]
        slot = self._slots[frame.offset // self._size]
        with self._changed:
            self._changed.wait_for(lambda: slot.ready or self._error is not None)
            if self._error is not None:
                raise self._error
        _complete(slot)
        assert slot.buffer is not None  # noqa: S101 - it has frames to be released
        start = frame.offset % self._size
        return memoryview(slot.buffer.array)[start : start + frame.nbytes]  # type: ignore[arg-type]

    def release(self, i: int) -> None:
        """Frame i has been written or given up."""
        number = self.frames[i].offset // self._size
        slot = self._slots[number]
        with self._changed:
            slot.frames_left -= 1
            done = slot.frames_left == 0
        if done:
            self._let_go(number)

    def wait_captured(self, timeout: float | None = None) -> bool:
        """Wait until every byte is in host memory; False if it is not in time. Raises what ended the capture."""
        with self._changed:
            captured = self._changed.wait_for(
                lambda: self._error is not None or all(s.ready for s in self._slots), timeout
            )
            if self._error is not None:
                raise self._error
        if captured:
            for slot in self._slots:
                _complete(slot)
        return captured

    def abort(self, error: BaseException) -> None:
        """Give the snapshot up: readers get this error, and a capture that waits for room stops waiting."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        self._admission.cancel()

    def release_all(self) -> None:
        """Give all memory back, once no device writes to it any more. Again: does nothing.

        A buffer that the training thread is filling just now goes back when that thread is through with it.
        """
        with self._changed:
            self._released, self._plan = True, None
            filling = {i for i, slot in enumerate(self._slots) if self._capturing and not slot.ready}
        for i in range(len(self._slots)):
            if i not in filling:
                self._let_go(i)
        self._admission.release(keep=filling)

    def _fill(self, i: int, buffer: Buffer | None, copies: list[Copy]) -> None:
        slot = self._slots[i]
        slot.buffer = buffer
        if buffer is None or self._error is not None:
            raise self._error or CaptureEndedError
        streams = self._admission.streams
        devices = copy_all(copies, buffer, streams, slot.sources)
        slot.events = [(device, streams.mark(device)) for device in devices]
        with self._changed:
            slot.ready = True
            released = self._released
            self._changed.notify_all()
        if released:
            raise CaptureEndedError

    def _let_go(self, i: int) -> None:
        slot = self._slots[i]
        if slot.buffer is not None and not slot.ready:  # interrupted: any device may still be writing to it
            streams = self._admission.streams
            slot.events = [(device, streams.mark(device)) for device in streams.devices()]
        _complete(slot)
        with self._changed:
            buffer, slot.buffer = slot.buffer, None
        if buffer is not None:
            self._admission.give_back(i)

    def _frames_per_buffer(self) -> Iterator[int]:
        count = -(-self.raw_bytes // self._size) if self.raw_bytes else 0
        frames = [0] * count
        for frame in self.frames:
            frames[frame.offset // self._size] += 1
        yield from frames


def _complete(slot: _Slot) -> None:
    """Wait for a buffer's device copies and drop what they read. Any thread, any number of times."""
    for device, event in slot.events:
        wait_for(device, event)
    slot.events = []
    slot.sources = []
