"""The front door: ``AsyncCheckpointer``.

What happens in which thread: everything that touches the caller's objects (``state_dict()``, ``load_state_dict()``,
random states, copies) happens in the calling thread; encoding, writing, committing and deleting happen in the worker.
One save is captured at a time; calls from several threads queue up. See ARCHITECTURE.md for the picture.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from time import monotonic
from types import TracebackType
from typing import Any, Self

import torch

from asyncckpt.capture.pool import Pool
from asyncckpt.capture.ranges import profiled
from asyncckpt.encode.base import Codec
from asyncckpt.encode.codec import resolve_codec
from asyncckpt.encode.frame import known_codecs
from asyncckpt.errors import CheckpointError, ClosedError
from asyncckpt.events import OnEvent, Phases
from asyncckpt.intake import Intake, Wish
from asyncckpt.loading import MapLocation, StepChoice
from asyncckpt.lookup import Lookup
from asyncckpt.options import (
    SnapshotMode,
    WhenFull,
    check_choice,
    check_count,
    check_instance,
    check_optimizers,
    check_state,
    check_step,
    metadata_node,
    metric_nodes,
    parse_bytes,
    plain_metrics,
)
from asyncckpt.planning import Planning
from asyncckpt.policy.schedule import History, Moment, Schedule
from asyncckpt.publish.keep import Keep
from asyncckpt.restore.restored import Restored
from asyncckpt.restoring import Restoration
from asyncckpt.saving import Publisher, library_versions
from asyncckpt.signals import SignalFlag
from asyncckpt.statistics import Statistics, Tally
from asyncckpt.store.base import Store
from asyncckpt.store.opening import open_store
from asyncckpt.worker import PendingSave, Worker

ENCODERS = 2  # encoder threads while there is work; more than the disk can take is no use


class AsyncCheckpointer(Lookup):
    """Saves a training run's state in the background, and brings it back.

    Args:
        root: folder for the checkpoints (made absolute now, created at the first save), ``file://`` URL, or a Store.
        keep: which checkpoints to keep, such as ``KeepLast(3) | KeepBest("val_loss", mode="min")``; None keeps all.
        compression: ``"zstd"``, ``"none"``, ``Zstd(level)`` or a Codec of your own. Lossless in every case.
        snapshot: ``"blocking"``: the state may be changed in any way as soon as ``save()`` returns. ``"overlapped"``:
            parameters and optimizer state are copied while training goes on, until the next ``optimizer.step()``;
            call ``fence()`` before any other write to them. See docs/overlapped.md.
        optimizers: for ``"overlapped"``: those whose parameters and state only their ``step()`` writes; None: every
            torch optimizer found in the state.
        max_in_flight: most snapshots in host memory at a time.
        host_memory: hard cap on snapshot memory, bytes or text such as ``"8GiB"``; None: what ``max_in_flight``
            snapshots need. A state larger than the cap is streamed through it.
        when_full: what ``save()`` does when a limit is reached: ``"wait"``, ``"skip"`` this save, ``"supersede"`` the
            newest save that has not begun writing (waits if there is none), or ``"raise"`` BackpressureError.
        rng: save and restore the random states of python, numpy, torch and every accelerator.
        verify: read every save back and compare before it counts as committed.
        allow_pickle: save unsupported values by pickle, and unpickle when restoring. Unpickling runs code.
        schedule: when ``maybe_save`` saves, such as ``EverySteps(500) | EverySeconds(900)``.
        handle_signals: signals that set ``stop_requested``; earlier handlers are called as well, and are put back
            by ``close()``.
        process_group: not yet available.
        storage_options: for remote roots.
        on_event: called with every event (see asyncckpt.events) in the thread where it happens.

    Raises:
        ValueError, TypeError: an argument is not what it should be.
        NotImplementedError: ``process_group`` (not yet available).
    """

    def __init__(
        self,
        root: str | PathLike[str] | Store,
        *,
        keep: Keep | None = None,
        compression: str | Codec = "zstd",
        snapshot: SnapshotMode = "blocking",
        optimizers: Sequence[torch.optim.Optimizer] | None = None,
        max_in_flight: int = 2,
        host_memory: int | str | None = None,
        when_full: WhenFull = "wait",
        rng: bool = True,
        verify: bool = False,
        allow_pickle: bool = False,
        schedule: Schedule | None = None,
        handle_signals: Sequence[int] = (),
        process_group: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        on_event: OnEvent = None,
    ) -> None:
        check_choice(snapshot, SnapshotMode, "snapshot")
        check_choice(when_full, WhenFull, "when_full")
        check_instance(keep, Keep, "keep", "KeepLast(3)")
        check_instance(schedule, Schedule, "schedule", "EverySteps(500)")
        optimizers = check_optimizers(optimizers)
        if process_group is not None:
            raise NotImplementedError("process_group= is not available yet: one process writes a root")
        codec = resolve_codec(compression)
        super().__init__(open_store(root, storage_options), keep, schedule)
        self._rng, self._allow_pickle = rng, allow_pickle
        self._codecs = known_codecs([codec] if codec is not None else [])
        self._pool = Pool(
            host_memory=parse_bytes(host_memory, "host_memory"),
            max_in_flight=check_count(max_in_flight, "max_in_flight"),
        )
        self._tally = Tally()
        self._worker = Worker(encoders=ENCODERS)
        self._publisher = Publisher(self._store, codec, keep, verify, on_event, library_versions())
        self._planning = Planning(
            rng=rng,
            allow_pickle=allow_pickle,
            overlapped=snapshot == "overlapped",
            optimizers=optimizers,
            stalled=partial(self._tally.stall, "fence"),
        )
        self._gate = self._planning.gate
        self._intake = Intake(self._pool, self._worker, self._publisher, self._tally, self._gate, when_full)
        self._lock = contextlib.ExitStack()
        self._locked = False
        self._calling = threading.RLock()  # one caller at a time; a signal handler may save in the middle of a call
        self._closed = False
        self._history: History | None = None
        self._resumed: int | None = None
        self._signals = SignalFlag(handle_signals)

    # ---- saving ------------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        state: Mapping[Any, Any],
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> PendingSave:
        """Take a snapshot of ``state`` and return; a worker makes it a checkpoint.

        On return the state may be changed in any way. ``state_dict()`` is called here, in the calling thread, on every
        value that has one. A step that exists already is replaced atomically once the new one is durable.

        Args:
            step: 0 or more.
            state: a dict of anything that design and README list: models, optimizers, tensors, arrays, plain values.
            metrics: name -> number; kept in the manifest, used by ``best()`` and ``KeepBest``.
            metadata: plain values, kept in the manifest, read by ``inspect``.

        Returns:
            A handle; ``handle.result()`` waits until the checkpoint is durable.

        Raises:
            UnsupportedStateError: a value cannot be saved; names its key path. Nothing was written.
            BackpressureError: a limit is reached and ``when_full="raise"``.
            RootInUseError: another writer holds the root.
            ClosedError: after ``close()``, or in a forked child.
            CheckpointError: an earlier save failed and nobody has looked at its handle: its error, once. This save
                has then not been taken.
        """
        self._worker.refuse_own_thread("save")
        with self._calling:
            self._check_open()
            wish = Wish(check_step(step), metric_nodes(plain_metrics(metrics)), metadata_node(metadata), Phases())
            self._intake.raise_undelivered()
            return self._take(wish, state)

    def maybe_save(
        self, step: int, state: Mapping[Any, Any], *, metrics: Mapping[str, Any] | None = None, epoch_end: bool = False
    ) -> PendingSave | None:
        """Save if the schedule says so, or if a stop was requested; None if not.

        Raises:
            ValueError: there is neither a schedule nor ``handle_signals``.
        """
        if self._schedule is None and not self._signals.installed:
            raise ValueError("maybe_save() needs schedule=..., such as EverySteps(500), or handle_signals=...")
        with self._calling:
            self._check_open()
            moment = Moment(check_step(step), monotonic(), epoch_end, plain_metrics(metrics))
            history = self._history if self._history is not None else self._first_history(self._resumed, moment.seconds)
            due = self.stop_requested or (self._schedule is not None and self._schedule.due(moment, history))
            self._history = history.after(moment, saved=due)
            return self.save(step, state, metrics=metrics) if due else None

    def warmup(self, state: Mapping[Any, Any]) -> None:
        """Take the root and allocate, pin and touch the memory that the first save of such a state needs."""
        with self._calling:
            self._check_open()
            self._hold_root()
            plan = self._planning.plan(state).plan
            self._pool.prepare(plan.raw_bytes, pinned=bool(plan.devices))

    def fence(self) -> None:
        """Make every pending copy finish before the next write to the state.

        For ``snapshot="overlapped"``, which calls it before ``optimizer.step()`` and ``load_state_dict()``: call it
        before other writes to parameters or optimizer state. Streams wait on their devices, not the host.
        """
        self._check_open()
        self._gate.fence()

    def _take(self, wish: Wish, state: Mapping[Any, Any]) -> PendingSave:
        check_state(state)
        try:
            self._hold_root()
            with wish.phases("copy"), profiled("asyncckpt.plan"):
                planned = self._planning.plan(state)
            return self._intake.take(wish, planned)
        except CheckpointError as error:
            error.step = wish.step if error.step is None else error.step
            raise
        finally:
            for phase in ("copy", "wait"):
                self._tally.stall(phase, wish.phases.seconds().get(phase, 0.0))

    def _hold_root(self) -> None:
        if not self._locked:
            self._lock.enter_context(self._store.writer_lock())
        self._locked = True

    # ---- restoring ---------------------------------------------------------------------------------------------

    def restore(
        self,
        state: Mapping[Any, Any] | None = None,
        *,
        step: StepChoice = "latest",
        strict: bool = True,
        only: str | Sequence[str] | None = None,
        map_location: MapLocation = None,
    ) -> Restored | None:
        """Bring a checkpoint back, in place where an object has ``load_state_dict``.

        Waits for saves in flight. Random states are restored too, unless ``only`` is given or ``rng=False``.

        Args:
            state: the same kind of dict as given to ``save()``; None loads nothing in place.
            step: ``"latest"`` (falls back over damaged ones, with a warning for each), ``"best"``, or a step.
            strict: refuse, before anything is changed, if checkpoint and ``state`` do not fit.
            only: key paths such as ``"model"``; only these are restored, and only their bytes are read.
            map_location: where the tensors of the result go (default: CPU); objects keep their own devices.

        Returns:
            What was not loaded in place, as a mapping, with ``step``, ``metrics``, ``metadata`` and ``path``. None if
            no checkpoint was ever committed here.

        Raises:
            CheckpointNotFoundError: steps exist but none is good (``reasons`` per step), or not the one asked for.
            StateMismatchError: the checkpoint does not fit ``state``; nothing was changed.
            IntegrityError, FormatError: the step asked for by number is damaged.
        """
        with self._calling:
            self._check_open()
            self._gate.fence()
            self._worker.drain(None)
            restoration = Restoration(
                store=self._store,
                state=state,
                strict=strict,
                only=only,
                map_location=map_location,
                codecs=self._codecs,
                allow_pickle=self._allow_pickle,
                rng=self._rng and only is None,
            )
            restored = restoration.best(self._objective()) if step == "best" else restoration.run(step)
            if restored is not None:
                self._resumed = self._publisher.resumed = restored.step
            return restored

    # ---- what has been --------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Counts, bytes and stalls so far."""
        usage = self._pool.usage()
        return self._tally.freeze(usage.in_flight, usage.bytes_in_use, usage.bytes_allocated, usage.peak_bytes)

    @property
    def stop_requested(self) -> bool:
        """True once a signal of ``handle_signals=`` has come."""
        return self._signals.raised

    # ---- the end -----------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> None:
        """Wait until everything saved so far is durable.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: not all is durable in time; names the steps. They go on.
            CheckpointError: a save failed and nobody has looked at its handle: its error, once.
        """
        if not self._worker.drain(timeout):
            unfinished = ", ".join(map(str, self._worker.unfinished()))
            raise TimeoutError(f"not durable after {timeout:g} s: step {unfinished}")
        self._intake.raise_undelivered()

    def close(self, timeout: float | None = None) -> None:
        """Wait like ``wait()``, then give up root, memory and signals. Call it again after a timeout; else a no-op."""
        if not self._worker.in_parent() or (self._closed and not self._locked):
            return
        self._closed = True
        self._signals.restore()
        self._gate.close()
        try:
            self.wait(timeout)
        finally:
            if not self._worker.unfinished():
                self._pool.close()
                self._lock.close()
                self._locked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. An exception of the body goes on unchanged; a checkpoint error becomes a note on it."""
        if error is None:
            self.close()
            return
        try:
            self.close()
        except (CheckpointError, TimeoutError) as failure:
            error.add_note(f"asyncckpt: besides, a save failed: {type(failure).__name__}: {failure}")

    def _check_open(self) -> None:
        if not self._worker.in_parent():
            raise ClosedError("this checkpointer belongs to another process; a forked child cannot use it")
        if self._closed:
            raise ClosedError("this checkpointer is closed")
