"""How a save comes in: room is made for it, the state is copied, and the worker gets it.

All of this runs in the caller's thread. Guarantees: an exception, also Ctrl-C, leaves no slot and no buffer taken and
nothing on its way; a save that is turned away has a handle that says so and never looks successful.
"""

from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from asyncckpt.capture.gate import Gate
from asyncckpt.capture.pool import Admission, Pool
from asyncckpt.capture.ranges import profiled
from asyncckpt.capture.snapshot import CaptureEndedError, Snapshot
from asyncckpt.errors import BackpressureError
from asyncckpt.events import Outcome, Phases, SaveEvent, emit, logger
from asyncckpt.manifest.catalog import CheckpointInfo
from asyncckpt.options import WhenFull
from asyncckpt.planning import Planned
from asyncckpt.saving import Publisher, SaveRequest
from asyncckpt.statistics import Tally
from asyncckpt.worker import Job, PendingSave, Worker


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller asked for, checked and copied; ``phases`` counts what it has cost so far."""

    step: int
    metrics: dict[str, Any]
    metadata: Any
    phases: Phases


class Intake:
    """Makes handles out of wishes. One at a time: the checkpointer serializes its callers."""

    def __init__(
        self,
        pool: Pool,
        worker: Worker,
        publisher: Publisher,
        tally: Tally,
        gate: Gate,
        when_full: WhenFull,
    ) -> None:
        self._pool, self._worker, self._publisher = pool, worker, publisher
        self._tally, self._gate, self._when_full = tally, gate, when_full
        self._failed: deque[PendingSave] = deque()
        self._depth = 0  # calls of ``take`` in each other: a signal handler may save in the middle of a save

    def take(self, wish: Wish, planned: Planned) -> PendingSave:
        """Capture and queue one save, or turn it away as ``when_full`` says."""
        self._depth += 1
        try:
            return self._take(wish, planned)
        finally:
            self._depth -= 1

    def raise_undelivered(self) -> None:
        """Raise the oldest error of a save that nobody has seen; others that wait become notes on it."""
        errors = []
        while self._failed:
            error = self._failed.popleft().take_undelivered()
            errors += [error] if error is not None else []
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"another save failed as well: {type(other).__name__}: {other}")
            raise errors[0]

    def _take(self, wish: Wish, planned: Planned) -> PendingSave:
        handle, plan = PendingSave(wish.step), planned.plan
        with wish.phases("wait"), profiled("asyncckpt.wait"):
            admission = self._admit(wish.step, plan.raw_bytes, bool(plan.devices))
        if admission is None:
            self._account_for(handle, wish, "", plan.raw_bytes)
            handle.drop("skipped", f"the save of step {wish.step} was skipped: {self._why_full()}")
            return handle
        try:
            snapshot = Snapshot(plan, admission, planned.late)
            request = SaveRequest(wish.step, snapshot, wish.metrics, wish.metadata, wish.phases)
            self._account_for(handle, wish, request.save_id, plan.raw_bytes)
            handle.advance("capturing", snapshot.wait_captured)
            if not admission.streamed:
                self._capture(snapshot, wish.phases)
        except BaseException:  # an interrupt at any point here must not leave the slot taken
            admission.release()
            raise
        job = self._job(handle, request, snapshot)
        if admission.streamed:
            self._stream(snapshot, job, wish.phases)
        else:
            self._worker.submit(job)
        return handle

    def _admit(self, step: int, nbytes: int, pinned: bool) -> Admission | None:
        while (admission := self._pool.admit(nbytes, pinned=pinned, timeout=0)) is None:
            if self._when_full == "skip":
                return None
            if self._when_full == "raise":
                raise BackpressureError(f"no room to save step {step}: {self._why_full()}", step=step)
            if self._when_full == "supersede" and self._worker.supersede(step):
                continue
            logger.info("the save of step %d waits for room: %s", step, self._why_full())
            return self._wait_for_room(step, nbytes, pinned)
        return admission

    def _wait_for_room(self, step: int, nbytes: int, pinned: bool) -> Admission | None:
        """Wait for other saves to end. Not for the one that this call interrupts: that would be for ever."""
        while self._depth > 1:
            if (admission := self._pool.admit(nbytes, pinned=pinned, timeout=0.05)) is not None:
                return admission
            if not self._worker.unfinished():
                raise BackpressureError(
                    f"step {step} is to be saved in the middle of another save(), which holds all the room; raise "
                    "max_in_flight or host_memory, or let the signal handler only set a flag",
                    step=step,
                )
        return self._pool.admit(nbytes, pinned=pinned)

    def _why_full(self) -> str:
        usage = self._pool.usage()
        return f"{usage.in_flight} snapshots in flight hold {usage.bytes_in_use} bytes of host memory"

    def _capture(self, snapshot: Snapshot, phases: Phases) -> None:
        try:
            with phases("copy"), profiled("asyncckpt.capture"):
                snapshot.capture()
            if not snapshot.settled():
                self._gate.add(snapshot, partial(phases.add, "fence"))
        except BaseException as error:
            snapshot.abort(error)
            snapshot.release_all()
            raise

    def _stream(self, snapshot: Snapshot, job: Job, phases: Phases) -> None:
        """A state larger than the cap: the worker has to write while the rest is still being copied."""
        logger.info("the state is larger than host_memory; step %d is streamed through it", job.handle.step)
        self._worker.submit(job)
        try:
            with phases("copy"), profiled("asyncckpt.capture"):
                snapshot.capture()
        except CaptureEndedError:
            return  # the save failed while its state was still being copied; the handle has the error
        except BaseException as error:
            snapshot.abort(error)  # the worker gives the memory back when its save has ended
            job.handle.exception()  # which it does now; the caller gets the error from here, once
            raise

    def _job(self, handle: PendingSave, request: SaveRequest, snapshot: Snapshot) -> Job:
        async def run(encoders: Executor) -> CheckpointInfo:
            return await self._publisher.publish(request, encoders)

        return Job(handle, run, snapshot.release_all)

    def _account_for(self, handle: PendingSave, wish: Wish, save_id: str, raw_bytes: int) -> None:
        """Once the outcome is known: count it, say it, keep an error for whoever comes next."""

        def account(done: PendingSave) -> None:
            error, info = done.outcome()
            event = SaveEvent(
                step=wish.step,
                outcome=cast("Outcome", done.status),
                save_id=save_id,
                seconds=wish.phases.seconds(),
                raw_bytes=raw_bytes,
                stored_bytes=info.stored_bytes if info else 0,
                error=str(error) if error else None,
            )
            self._tally.count(event)
            if event.outcome == "failed":
                self._failed.append(done)
            emit(self._publisher.on_event, event)

        handle.add_done_callback(account)
