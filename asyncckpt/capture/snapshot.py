"""A snapshot: the state's bytes in host memory, as they were at one moment.

Guarantees:

1. When ``capture()`` returns, host memory has been copied, and every device stream that was current waits, on the
   device, for the copies out of it. Whatever the caller does next, the snapshot holds the values of before.
2. Regions that may be copied *late* are left out of 1: host memory is copied by a thread of its own meanwhile, and
   device streams do not wait. ``fence()`` makes good for that: after it, 1 holds for them too. Whoever may write to
   them must call it first. A write without it is noticed by the tensor's version counter, where that counts it: the
   snapshot then fails with ``TornSnapshotError``.
3. The host never waits for a device in ``capture()`` or ``fence()``, unless the state is larger than the pool and goes
   through it.
4. Sources stay referenced until their copies are complete, and not longer.
5. A buffer goes back to the pool when all its frames are released, and never while anybody still writes to it.

``capture``, ``fence`` and ``abort`` are called by training threads; ``read`` and ``release`` by encoder and worker
threads.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch

from asyncckpt.capture.copying import Copier
from asyncckpt.capture.filling import Filling, Mask, run
from asyncckpt.capture.jobs import Jobs
from asyncckpt.capture.memory import Buffer
from asyncckpt.capture.plan import SnapshotPlan
from asyncckpt.capture.pool import Admission
from asyncckpt.capture.program import Part
from asyncckpt.capture.streams import wait_for
from asyncckpt.capture.versions import Versions, numbers
from asyncckpt.encode.base import FrameSpec
from asyncckpt.errors import TornSnapshotError
from asyncckpt.threads import collector_paused

Events = list[tuple[torch.device, torch.Event]]


class CaptureEndedError(RuntimeError):
    """The snapshot was released while it was being captured: its save had failed, and its handle says why."""


class _Slot:
    """One buffer's share of the snapshot.

    Attributes:
        buffer: its memory, once taken.
        events: of the device copies to it. ``sources`` are what they read.
        late: regions whose device copies nothing waits for before ``fence()``.
        frames_left: those not released.
        copies_left: those not done; enqueueing all device copies counts as one.
    """

    __slots__ = ("buffer", "copies_left", "events", "frames_left", "late", "sources")

    def __init__(self, frames: int) -> None:
        self.buffer: Buffer | None = None
        self.events: Events = []
        self.sources: list[Any] = []
        self.late: list[int] = []
        self.frames_left = frames
        self.copies_left = 1

    @property
    def ready(self) -> bool:
        """Whether all copies to it are done or enqueued."""
        return self.copies_left == 0


class Snapshot:
    """Fills the buffers of an admission from a plan, and hands them out frame by frame.

    Args:
        plan: what is to be copied.
        admission: the right to hold it.
        late: which regions may be copied late; ignored if the state is streamed.
    """

    def __init__(self, plan: SnapshotPlan, admission: Admission, late: Mask | None = None) -> None:
        self.tree, self.raw_bytes = plan.tree, plan.raw_bytes
        self.frames: Sequence[FrameSpec] = plan.outline.frames(admission.frame_size)
        self._plan: SnapshotPlan | None = plan
        self._admission = admission
        self._late = None if late is None or admission.streamed or not late.any() else late
        self._size = admission.buffer_size
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._capturing = self._released = self._fenced = False
        self._slots = [_Slot(n) for n in self._frames_per_buffer()]
        self._jobs = Jobs([], self.abort)
        self._late_events: Events = []
        self._versions = Versions(plan, [] if self._late is None else numbers(self._late))

    # ---- the training thread -----------------------------------------------------------------------------------

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
                self._copy(plan)
        finally:
            self._end_capture()
        if self._late is not None:
            self._jobs.start(1, "asyncckpt-copy")

    def fence(self) -> None:
        """Everything that was to be copied late is safe when this returns. Never raises; ``read`` does.

        Host memory has been copied; the streams that are current now wait for the devices' copies.
        """
        with contextlib.suppress(Exception):
            self._jobs.finish()
        for device, event in self._late_events:
            torch.accelerator.current_stream(device).wait_event(event)
        with self._changed:
            fenced, self._fenced = self._fenced, True
            torn = None if fenced else self._torn(region for slot in self._slots for region in slot.late)
        if torn is not None:
            self.abort(torn)

    def settled(self) -> bool:
        """Whether nothing is copied any more, so that no fence is needed."""
        return self._jobs.done() and all(event.query() for _, event in self._late_events)

    def abort(self, error: BaseException) -> None:
        """Give the snapshot up: readers get this error, and a capture that waits for room stops waiting."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        self._admission.cancel()

    def _copy(self, plan: SnapshotPlan) -> None:
        filling, parts = Filling(Copier(plan), self, self.abort), plan.outline.parts(self._size)
        if self._admission.streamed:
            for _, some in groupby(parts, attrgetter("buffer")):
                self._fill(filling, list(some), plan)
        else:
            self._fill(filling, parts, plan)

    def _fill(self, filling: Filling, parts: list[Part], plan: SnapshotPlan) -> None:
        """Take buffers and fill them. All device copies are enqueued first: they run while host memory is copied."""
        streams, late = self._admission.streams, self._late
        now = None if late is None else ~late
        buffers = dict.fromkeys(part.buffer for part in parts)
        for i in buffers:
            self._take(i)
        writing = dict[int, set[torch.device]]()
        jobs = filling.jobs(parts, now)
        with streams.copying(plan.devices):
            for i, devices in filling.enqueue(parts, now, streams):
                writing.setdefault(i, set()).update(devices)
        self._jobs = jobs
        filling.zero(parts)
        late_jobs = None if late is None else self._begin_late(filling, parts, late, writing)
        for i, devices in writing.items():
            self._slots[i].events = [(device, streams.mark(device)) for device in devices]
        run(jobs, sum(part.host.total for part in parts) if late is None else 0)
        self._jobs = late_jobs or jobs
        for i in buffers:
            self.copied(i)
        if self._released:
            raise CaptureEndedError

    def _begin_late(
        self, filling: Filling, parts: list[Part], late: Mask, writing: dict[int, set[torch.device]]
    ) -> Jobs:
        """Enqueue the device copies that nothing waits for; give the others."""
        streams = self._admission.streams
        used = set[torch.device]()
        for i, devices in filling.enqueue(parts, late, streams):
            writing.setdefault(i, set()).update(devices)
            used |= devices
        for part in parts:
            regions = part.others.regions
            self._slots[part.buffer].late += regions[late[regions]].tolist()
        self._late_events = [(device, streams.mark(device)) for device in used]
        return filling.jobs(parts, late, late=True)

    def _take(self, i: int) -> None:
        slot = self._slots[i]
        slot.buffer = self._admission.buffer(i)
        if slot.buffer is None or self._error is not None:
            raise self._error or CaptureEndedError

    def _end_capture(self) -> None:
        with self._changed:
            self._capturing, released = False, self._released
        if released:  # what this thread was filling meanwhile goes back now
            self.release_all()

    # ---- what fills the slots ----------------------------------------------------------------------------------

    def buffer(self, i: int) -> Buffer:
        """See ``filling.Slots``."""
        buffer = self._slots[i].buffer
        if buffer is None:
            raise CaptureEndedError
        return buffer

    def sources(self, i: int) -> list[Any]:
        """See ``filling.Slots``."""
        return self._slots[i].sources

    def expect(self, i: int, copies: int) -> None:
        """See ``filling.Slots``."""
        with self._changed:
            self._slots[i].copies_left += copies

    def copied(self, i: int, regions: Iterable[Any] = ()) -> None:
        """See ``filling.Slots``."""
        self._versions.check(regions)
        with self._changed:
            self._slots[i].copies_left -= 1
            self._changed.notify_all()

    # ---- encoder and worker threads ----------------------------------------------------------------------------

    def read(self, i: int) -> memoryview:
        """The raw bytes of frame i; waits until they have been captured. Raises what ended the capture, if it did."""
        frame = self.frames[i]
        slot = self._slots[frame.offset // self._size]
        with self._changed:
            self._changed.wait_for(lambda: slot.ready or self._error is not None)
            self._raise_error()
        self._complete(slot)
        self._raise_error()
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
            self._raise_error()
        if captured:
            for slot in self._slots:
                self._complete(slot)
            self._raise_error()
        return captured

    def release_all(self) -> None:
        """Give all memory back, once nobody writes to it any more. Again: does nothing.

        A buffer that the training thread is filling just now goes back when that thread is through with it.
        """
        with self._changed:
            self._released, self._plan = True, None
            capturing = self._capturing
            filling = {i for i, slot in enumerate(self._slots) if capturing and not slot.ready}
        if not capturing:
            self._jobs.cancel()
            self._versions.forget()
        for i in range(len(self._slots)):
            if i not in filling:
                self._let_go(i)
        self._admission.release(keep=filling)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _let_go(self, i: int) -> None:
        slot = self._slots[i]
        if slot.buffer is not None and not slot.ready:  # interrupted: any device may still be writing to it
            streams = self._admission.streams
            slot.events = [(device, streams.mark(device)) for device in streams.devices()]
        self._complete(slot)
        with self._changed:
            buffer, slot.buffer = slot.buffer, None
        if buffer is not None:
            self._admission.give_back(i)

    def _complete(self, slot: _Slot) -> None:
        """Wait for a buffer's device copies and drop what they read. Any thread, any number of times."""
        for device, event in slot.events:
            wait_for(device, event)
        with self._changed:
            late, slot.late = slot.late, []
            torn = None if self._fenced else self._torn(late)
        if torn is not None:
            self.abort(torn)
        slot.events = []
        slot.sources = []

    def _torn(self, regions: Iterable[int]) -> TornSnapshotError | None:
        try:
            self._versions.check(regions)
        except TornSnapshotError as error:
            return error
        return None

    def _frames_per_buffer(self) -> Iterator[int]:
        count = -(-self.raw_bytes // self._size) if self.raw_bytes else 0
        frames = [0] * count
        for frame in self.frames:
            frames[frame.offset // self._size] += 1
        yield from frames
