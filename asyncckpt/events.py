"""What happens to saves, told three ways with one record: a log line, a callback, and the caller's statistics.

Every event is logged as one line of ``key=value`` words under the logger ``asyncckpt`` and then given to the user's
``on_event``, in the thread where it happened. An exception of the callback is logged, never raised.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Final, Literal

logger = logging.getLogger("asyncckpt")
Outcome = Literal["committed", "skipped", "superseded", "failed"]

SPANS: Final = 2048  # most that one save keeps, at some 250 bytes each: half a megabyte
_CLOSE: Final = 100_000  # ns; neighbours so close are merged first when there are too many
_EVER: Final = 1 << 46  # ns, nineteen hours: further apart than any two spans of a save


@dataclass(frozen=True, slots=True)
class Span:
    """Time that one thread spent in one phase of one save. Times are nanoseconds of ``time.perf_counter_ns``.

    Attributes:
        phase: wait, copy, encode, write, sync, verify, publish.
        thread: the thread's name.
        native_id: the system's number of it; numbers are used again when a thread has ended.
        start, stop: the first moment and the last.
        nbytes: how much was worked on, bytes; 0 if not known.
        count: spans that were merged into this one, because there were too many or no time lay between them.
        busy: nanoseconds inside the phase; less than ``stop - start`` where spans were merged over gaps.
    """

    phase: str
    thread: str
    native_id: int
    start: int
    stop: int
    nbytes: int
    count: int
    busy: int


@dataclass(frozen=True, slots=True)
class SaveEvent:
    """One save's end.

    Attributes:
        step: the step.
        outcome: how it ended.
        save_id: the attempt's id; empty if it never began.
        seconds: time by phase: wait, copy, encode, write, verify, publish. ``encode`` is summed over threads.
        raw_bytes: size of the state's data.
        stored_bytes: size of its files, 0 unless committed.
        error: the error's text, if it failed.
        spans: what happened when in which thread, by start; at most ``SPANS``, see ``Phases``. Not in the log line.
    """

    step: int
    outcome: Outcome
    save_id: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    raw_bytes: int = 0
    stored_bytes: int = 0
    error: str | None = None
    spans: tuple[Span, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """A checkpoint was removed by the keep policy (``reason="retention"``) or leftovers by a sweep (``"sweep"``)."""

    folder: str
    reason: Literal["retention", "sweep"]


Event = SaveEvent | DeleteEvent
OnEvent = Callable[[Event], object] | None


def emit(on_event: OnEvent, event: Event) -> None:
    """Log an event and hand it to the user's callback."""
    failed = isinstance(event, SaveEvent) and event.outcome == "failed"
    logger.log(logging.ERROR if failed else logging.INFO, "%s", line_of(event))
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        logger.exception("on_event failed on %r", event)


def line_of(event: Event) -> str:
    """One line of words, ``save step=3 outcome=committed ... copy=0.012s``."""
    words = [type(event).__name__.removesuffix("Event").lower()]
    for item in fields(event):
        if not item.repr:
            continue
        value = getattr(event, item.name)
        if isinstance(value, Mapping):
            words += [f"{name}={seconds:.4f}s" for name, seconds in value.items()]
        elif value not in {None, ""}:
            words.append(f"{item.name}={_word(value)}")
    return " ".join(words)


def _word(value: object) -> str:
    text = str(value)
    return repr(text) if " " in text else text


class Phases:
    """Adds up seconds by phase, and keeps when and in which thread they were spent; thread-safe.

    A save of 100 GB has 25,000 frames and no use for as many spans: beyond ``SPANS`` those of one thread and phase
    that lie closest together become one, which says how many they were and how long it was busy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._spans = _Spans()

    def __call__(self, name: str, nbytes: int = 0) -> "_Timed":
        """``with`` this, time the body; ``nbytes`` is how much it works on."""
        return _Timed(self, name, nbytes)

    def add(self, name: str, seconds: float, nbytes: int = 0) -> None:
        """Add to a phase: time that the calling thread has spent, up to now."""
        now = time.perf_counter_ns()
        self.span(name, now - round(seconds * 1e9), now, nbytes)

    def span(self, name: str, start: int, stop: int, nbytes: int = 0) -> None:
        """Add time of the calling thread, between two values of ``time.perf_counter_ns``."""
        thread = threading.current_thread()
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + (stop - start) / 1e9
            self._spans.add(_Record(name, thread, start, stop, nbytes))

    def seconds(self) -> dict[str, float]:
        """The sums so far, in the order in which phases were first seen."""
        with self._lock:
            return dict(self._seconds)

    def spans(self) -> tuple[Span, ...]:
        """What happened so far, by start."""
        with self._lock:
            return tuple(record.span() for record in self._spans.by_start())


class _Timed:
    """Adds the time of its body. A generator would cost twice as much, once for every frame."""

    __slots__ = ("_name", "_nbytes", "_phases", "_start")

    def __init__(self, phases: Phases, name: str, nbytes: int) -> None:
        self._phases, self._name, self._nbytes, self._start = phases, name, nbytes, 0

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._phases.span(self._name, self._start, time.perf_counter_ns(), self._nbytes)


class _Record:
    """A span that may still grow."""

    __slots__ = ("busy", "count", "native_id", "nbytes", "phase", "start", "stop", "thread")

    def __init__(self, phase: str, thread: threading.Thread, start: int, stop: int, nbytes: int) -> None:
        self.phase, self.thread, self.native_id = phase, thread.name, thread.native_id or 0
        self.start, self.stop, self.nbytes, self.count, self.busy = start, stop, nbytes, 1, stop - start

    def span(self) -> Span:
        return Span(self.phase, self.thread, self.native_id, self.start, self.stop, self.nbytes, self.count, self.busy)

    def grow(self, other: "_Record") -> None:
        self.start, self.stop = min(self.start, other.start), max(self.stop, other.stop)
        self.nbytes += other.nbytes
        self.count += other.count
        self.busy += other.busy


class _Spans:
    """A bounded number of spans, by thread. The caller holds a lock."""

    def __init__(self) -> None:
        self._threads: dict[tuple[int, str], list[_Record]] = {}
        self._count = 0
        self._gap = 0  # ns; what lies closer together is merged

    def add(self, record: _Record) -> None:
        spans = self._threads.setdefault((record.native_id, record.thread), [])
        if _append(spans, record, self._gap):
            self._count += 1
            if self._count > SPANS:
                self._thin()

    def by_start(self) -> list[_Record]:
        return sorted(chain.from_iterable(self._threads.values()), key=lambda record: record.start)

    def _thin(self) -> None:
        """Half of them, at most: neighbours merged over wider and wider gaps; if that is not enough, the longest."""
        gap = max(2 * self._gap, _CLOSE)
        while self._count > SPANS // 2 and gap < _EVER:
            self._keep({thread: _merged(spans, gap) for thread, spans in self._threads.items()})
            self._gap, gap = gap, 2 * gap
        if self._count > SPANS // 2:
            self._gap = 0
            kept = set(sorted(self.by_start(), key=lambda record: record.busy)[-(SPANS // 2) :])
            self._keep({thread: [r for r in spans if r in kept] for thread, spans in self._threads.items()})

    def _keep(self, threads: dict[tuple[int, str], list[_Record]]) -> None:
        self._threads = threads
        self._count = sum(map(len, threads.values()))


def _merged(spans: list[_Record], gap: int) -> list[_Record]:
    merged: list[_Record] = []
    for record in spans:
        _append(merged, record, gap)
    return merged


def _append(spans: list[_Record], record: _Record, gap: int) -> bool:
    """Put a thread's next span behind its last; or into it, if of the same phase and at most ``gap`` ns later."""
    if spans and spans[-1].phase == record.phase and record.start - spans[-1].stop <= gap:
        spans[-1].grow(record)
        return False
    spans.append(record)
    return True
