"""The background side of a checkpointer: one thread that owns the order of saves, and the hand-off of their outcome.

Guarantees, on which the front door rests:

1. Saves run one at a time, in the order they were submitted.
2. Whatever a save raises, even ``SystemExit`` or ``MemoryError``, ends that save only.
3. The thread exists only while there is work. It is not a daemon, so a script that ends without ``close()`` still
   finishes its saves, and nothing lingers to keep an idle interpreter alive.
4. A forked child has no such thread: there, waiting returns at once or raises, and nothing is ever written.
5. When a save is done, its handle keeps neither the snapshot nor, through a traceback, any tensor alive.

Every save runs on an asyncio loop of its own on that thread; encoding runs in the encoder threads handed to it.
"""

import asyncio
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Literal

from asyncckpt.errors import ClosedError, SaveError, SaveSkippedError
from asyncckpt.events import logger
from asyncckpt.manifest.catalog import CheckpointInfo
from asyncckpt.threads import InPlace, PlainExecutor, lower_priority

Status = Literal["queued", "capturing", "writing", "committed", "skipped", "superseded", "failed"]
_FINAL: frozenset[Status] = frozenset({"committed", "skipped", "superseded", "failed"})


class PendingSave:
    """One save on its way to the store. All methods may be called from any thread.

    Attributes:
        step: the step it was asked for.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._status: Status = "capturing"
        self._info: CheckpointInfo | None = None
        self._error: BaseException | None = None
        self._delivered = False
        self._captured: Callable[[float | None], bool] | None = None
        self._callbacks: list[Callable[[PendingSave], object]] = []

    def __repr__(self) -> str:
        return f"<PendingSave step={self.step} {self.status}>"

    @property
    def status(self) -> Status:
        """capturing, queued, writing; at the end committed, skipped, superseded or failed."""
        return self._status

    def done(self) -> bool:
        """True once the outcome is known."""
        return self._status in _FINAL

    def result(self, timeout: float | None = None) -> CheckpointInfo:
        """Wait until the checkpoint is durable and committed, and describe it.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: not done in time; the save goes on.
            SaveSkippedError: it was skipped or superseded.
            CheckpointError: it failed; the error carries step and save_id.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self._info is not None  # noqa: S101 - a committed save has its info
        return self._info

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like ``result()`` and give the error instead of raising it; None if committed."""
        self._wait_done(timeout)
        with self._changed:
            self._delivered = True
            return self._error

    def wait_captured(self, timeout: float | None = None) -> bool:
        """Wait until the snapshot is complete in host memory; False if it is not in time."""
        with self._changed:
            captured = self._captured
        return captured(timeout) if captured is not None else True

    def add_done_callback(self, fn: Callable[["PendingSave"], object]) -> None:
        """Call ``fn(self)`` once done: in the worker thread, or at once if done already. Its errors are logged."""
        with self._changed:
            if not self.done():
                self._callbacks.append(fn)
                return
        self._call(fn)

    # ---- for the library: how the outcome comes in -------------------------------------------------------------

    def advance(self, status: Status, captured: Callable[[float | None], bool] | None = None) -> None:
        """Note that the save has moved on; ``captured`` is how to wait for the snapshot."""
        with self._changed:
            if not self.done():
                self._status = status
                self._captured = captured or self._captured

    def finish(self, info: CheckpointInfo) -> None:
        """Committed."""
        self._settle("committed", info, None)

    def fail(self, error: BaseException) -> None:
        """Failed; its error waits to be looked at."""
        self._settle("failed", None, error)

    def drop(self, status: Literal["skipped", "superseded"], message: str) -> None:
        """Nothing was written, on purpose."""
        self._settle(status, None, SaveSkippedError(message, step=self.step))

    def outcome(self) -> tuple[BaseException | None, CheckpointInfo | None]:
        """Error and info so far, without counting as a look at the error."""
        with self._changed:
            return self._error, self._info

    def take_undelivered(self) -> BaseException | None:
        """The error of a failed save that nobody has looked at, once."""
        with self._changed:
            if self._status != "failed" or self._delivered:
                return None
            self._delivered = True
            return self._error

    def _settle(self, status: Status, info: CheckpointInfo | None, error: BaseException | None) -> None:
        with self._changed:
            if self.done():
                return
            self._status, self._info, self._error = status, info, error
            self._captured = None
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for fn in callbacks:
            self._call(fn)

    def _call(self, fn: Callable[["PendingSave"], object]) -> None:
        try:
            fn(self)
        except BaseException:  # even SystemExit: the worker has other saves to see to
            logger.exception("a done callback of the save of step %d failed", self.step)

    def _wait_done(self, timeout: float | None) -> None:
        if os.getpid() != self._pid and not self.done():
            raise ClosedError(f"the save of step {self.step} belongs to process {self._pid}, not to this forked child")
        with self._changed:
            if not self._changed.wait_for(self.done, timeout):
                raise TimeoutError(f"the save of step {self.step} is not done after {timeout:g} s ({self._status})")


@dataclass(frozen=True, slots=True)
class Job:
    """One save as the worker sees it.

    Attributes:
        handle: where the outcome goes.
        run: makes the coroutine that writes and commits; gets the encoder threads.
        discard: gives the snapshot's memory back; called once, whatever happened, before the outcome is told.
    """

    handle: PendingSave
    run: Callable[[Executor], Coroutine[Any, Any, CheckpointInfo]]
    discard: Callable[[], None]


class Worker:
    """First in, first out. Methods may be called from any thread of the process that made it."""

    def __init__(self, *, encoders: int) -> None:
        self._encoders = encoders
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: PendingSave | None = None
        self._thread: threading.Thread | None = None  # None: no work
        self._latest: threading.Thread | None = None  # the last one started, to be joined

    def in_parent(self) -> bool:
        """False in a forked child, where nothing may be done."""
        return os.getpid() == self._pid

    def refuse_own_thread(self, call: str) -> None:
        """``RuntimeError`` in a done callback: the worker would wait for itself."""
        if threading.current_thread() is self._latest:
            raise RuntimeError(f"{call}() cannot be called from a done callback: it would wait for its own thread")

    def submit(self, job: Job) -> None:
        """Queue a save and return at once."""
        job.handle.advance("queued")
        with self._changed:
            self._queue.append(job)
            if self._thread is None:
                self._start(job)

    def _start(self, job: Job) -> None:
        """Start the thread; if the system refuses one, the job is not taken and the next submit tries again."""
        thread = threading.Thread(target=self._run, name="asyncckpt-worker", daemon=False)
        self._thread = self._latest = thread
        try:
            thread.start()
        except BaseException:
            self._thread = self._latest = None
            self._queue.remove(job)
            job.discard()
            raise

    def supersede(self, step: int) -> bool:
        """Drop the newest save that has not begun writing, in favour of ``step``; False if there is none."""
        with self._changed:
            if not self._queue:
                return False
            job = self._queue.pop()
            self._changed.notify_all()
        job.discard()
        job.handle.drop(
            "superseded", f"the save of step {job.handle.step} gave way to step {step} before it was written"
        )
        return True

    def unfinished(self) -> list[int]:
        """Steps not yet durable, in order."""
        with self._changed:
            running = [self._running.step] if self._running is not None else []
            return running + [job.handle.step for job in self._queue]

    def drain(self, timeout: float | None) -> bool:
        """Wait until all submitted saves are done and the threads are gone; False if they are not in time.

        Returns at once in a forked child, and in the worker's own thread (a done callback).
        """
        if not self.in_parent():
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            thread = self._latest
            if thread is None or thread is threading.current_thread():
                return True
            if not self._changed.wait_for(lambda: self._thread is None, timeout):
                return False
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return True

    def _run(self) -> None:
        lower_priority()
        encoders: Executor = InPlace()
        try:
            encoders = PlainExecutor(self._encoders, "asyncckpt-encode")
        except RuntimeError:
            logger.exception("no encoder threads could be started; this worker encodes in its own thread")
        try:
            while (job := self._next()) is not None:
                self._perform(job, encoders)
                del job  # nothing of a finished save may stay alive through this frame
        finally:
            encoders.shutdown()

    def _next(self) -> Job | None:
        with self._changed:
            self._running = None
            job = self._queue.popleft() if self._queue else None
            if job is None:
                self._thread = None
            else:
                self._running = job.handle
            self._changed.notify_all()
            return job

    def _perform(self, job: Job, encoders: Executor) -> None:
        job.handle.advance("writing")
        try:
            info = asyncio.run(job.run(encoders))
        except BaseException as error:
            self._discard(job)
            _forget_locals(error)
            job.handle.fail(error if isinstance(error, Exception) else _ordinary(error, job.handle.step))
        else:
            self._discard(job)
            job.handle.finish(info)

    def _discard(self, job: Job) -> None:
        try:
            job.discard()
        except BaseException:
            logger.exception("giving back the memory of the save of step %d failed", job.handle.step)


def _ordinary(error: BaseException, step: int) -> SaveError:
    """An exit or interrupt in the worker, as an error that the caller can catch like any other."""
    wrapped = SaveError(f"the save of step {step} ended with {type(error).__name__}: {error}", step=step)
    wrapped.__cause__ = error
    return wrapped


def _forget_locals(error: BaseException) -> None:
    """Keep the traceback's lines but drop the variables of its frames: they hold the state that was being saved."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        traceback.clear_frames(current.__traceback__)
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions
