"""One run's saves as a trace that https://ui.perfetto.dev and chrome://tracing open: who did what when.

Every thread has a row: the training thread's waiting, copying and fencing; the worker's writing, syncing and
publishing; what each encoder encodes. Above them, a bar for each save, from its first moment to its last; an arrow
leads from its copy to the first frame encoded and on to its commit.

Times are those of torch.profiler's traces: microseconds after ``baseTimeNanoseconds``, which counts from the epoch.
Spans are taken by ``time.perf_counter_ns`` and moved to the epoch by the two clocks' distance when their save ended,
so a system clock that is set in the middle of a run shifts later saves only.
"""

import gzip
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from asyncckpt.events import DeleteEvent, Event, OnEvent, SaveEvent, Span

SAVES: Final = 1000  # that a timeline remembers; the oldest are forgotten first
_OWN_PIDS: Final = 1 << 24  # above every process number of Linux: a process of our own in another one's trace
_FLOW: Final = {"name": "save", "cat": "asyncckpt"}
_Timed = TypeVar("_Timed", bound="tuple[Span, _Moment] | tuple[Span, _Moment, int]")


@dataclass(frozen=True, slots=True)
class _Moment:
    """An event, when it came (nanoseconds since the epoch), and what to add to its spans' times to get such."""

    event: Event
    time: int
    epoch: int

    @property
    def spans(self) -> Sequence[Span]:
        return self.event.spans if isinstance(self.event, SaveEvent) else ()


class Timeline:
    """Collects what happens to saves, to be looked at: ``AsyncCheckpointer(root, on_event=Timeline())``.

    Memory: at most half a megabyte per save, for the last ``saves`` saves; a small save takes some kilobytes.

    Args:
        on_event: also called with every event, in the same thread.
        saves: how many events to remember.
    """

    def __init__(self, on_event: OnEvent = None, *, saves: int = SAVES) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._moments: deque[_Moment] = deque(maxlen=saves)

    def __call__(self, event: Event) -> None:
        """Remember an event. Called by the checkpointer, in the thread where it happened."""
        moment = _Moment(event, time.time_ns(), _epoch())
        with self._lock:
            self._moments.append(moment)
        if self._on_event is not None:
            self._on_event(event)

    def write(self, path: str | os.PathLike[str], *, profile: str | os.PathLike[str] | None = None) -> None:
        """Write what came so far in the Chrome trace format.

        Args:
            path: JSON, compressed if it ends in ``.gz``. Replaced if it exists.
            profile: a trace of the same process that ``torch.profiler`` exported; what it holds is written too, on
                the same time axis. May be the same file as ``path``.

        Raises:
            OSError: a file could not be read or written.
            ValueError: ``profile`` is not a trace with ``baseTimeNanoseconds`` (torch writes that since 2.4).
        """
        with self._lock:
            moments = list(self._moments)
        trace = _read_profile(Path(profile)) if profile is not None else _empty(moments)
        pid = os.getpid() if profile is None else _OWN_PIDS + os.getpid()
        trace["traceEvents"] += [{"pid": pid} | item for item in _Trace(moments, trace["baseTimeNanoseconds"]).items()]
        _write_json(Path(path), trace)


def _epoch() -> int:
    """What to add to ``time.perf_counter_ns`` to count from the epoch: the try that was least interrupted."""

    def attempt() -> tuple[int, int]:
        before, now, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        return after - before, now - (before + after) // 2

    return min(attempt() for _ in range(5))[1]


# ---- files ---------------------------------------------------------------------------------------------------------


def _empty(moments: Sequence[_Moment]) -> dict[str, Any]:
    """A trace whose clock begins with its first span, so that times have few digits."""
    starts = [span.start + moment.epoch for moment in moments for span in moment.spans]
    base = min([*starts, *(moment.time for moment in moments)], default=0)
    return {"displayTimeUnit": "ms", "baseTimeNanoseconds": base, "traceEvents": []}


def _read_profile(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    if not isinstance(trace, dict) or "baseTimeNanoseconds" not in trace or "traceEvents" not in trace:
        raise ValueError(f"{path} is not a trace with baseTimeNanoseconds, as torch.profiler writes it")
    return trace


def _write_json(path: Path, trace: dict[str, Any]) -> None:
    data = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(data, compresslevel=5) if path.suffix == ".gz" else data)


# ---- events of the Chrome trace format -----------------------------------------------------------------------------


class _Trace:
    """Turns what was collected into events. One use."""

    def __init__(self, moments: Sequence[_Moment], base: int) -> None:
        self._moments, self._base = moments, base
        self._rows = _Rows()

    def items(self) -> Iterator[dict[str, Any]]:
        """All events, names of rows last: they are known only then."""
        bars = [(_bar(moment, number), moment) for number, moment in enumerate(self._moments) if moment.spans]
        for bar, moment in _by_start(bars):
            yield self._slice(bar, moment, self._rows.of(bar), _plain(moment.event))
        arrows = [_arrows(moment) for moment in self._moments]
        spans = [(span, moment, number) for number, moment in enumerate(self._moments) for span in moment.spans]
        for span, moment, number in _by_start(spans):
            row = self._rows.of(span)
            yield self._slice(span, moment, row, _described(span, moment))
            if (arrow := arrows[number].get(id(span))) is not None:
                yield _FLOW | arrow | {"id": number, "tid": row, "ts": self._at(span.start + moment.epoch)}
        yield from (self._flag(moment) for moment in self._moments if not moment.spans)
        yield {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": "asyncckpt"}}
        yield {"ph": "M", "name": "process_sort_index", "tid": 0, "args": {"sort_index": -1}}
        yield from self._rows.names()

    def _slice(self, span: Span, moment: _Moment, row: int, args: dict[str, Any]) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": span.phase,
            "cat": "asyncckpt",
            "ts": self._at(span.start + moment.epoch),
            "dur": (span.stop - span.start) / 1000,
            "tid": row,
            "args": args,
        }

    def _flag(self, moment: _Moment) -> dict[str, Any]:
        """What took no time."""
        common = {"ph": "i", "s": "p", "cat": "asyncckpt", "tid": 0}
        return common | {"name": _name(moment.event), "ts": self._at(moment.time), "args": _plain(moment.event)}

    def _at(self, nanoseconds: int) -> float:
        return (nanoseconds - self._base) / 1000


def _by_start(items: list[_Timed]) -> list[_Timed]:
    """Items that begin with a span and its moment, in order of time."""
    return sorted(items, key=lambda item: item[0].start + item[1].epoch)


def _bar(moment: _Moment, number: int) -> Span:
    """A save as a whole; saves in flight at the same time get rows of their own, like threads."""
    start = min(span.start for span in moment.spans)
    stop = max(span.stop for span in moment.spans)
    return Span(_name(moment.event), "saves", -1 - number, start, stop, 0, 1, stop - start)


def _arrows(moment: _Moment) -> dict[int, dict[str, Any]]:
    """Where an arrow passes, by the span's ``id``: the last copy, the first frame encoded, the commit."""
    first = {span.phase: span for span in reversed(moment.spans)}
    last = {span.phase: span for span in moment.spans}
    passed = [("s", last.get("copy")), ("t", first.get("encode")), ("f", last.get("publish"))]
    return {id(span): {"ph": kind, "bp": "e"} for kind, span in passed if span is not None}


class _Rows:
    """Rows by name of thread. Threads of one name share a row, unless they live at the same time.

    Threads come and go with the work: a row for each of them would be a row for each save.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[str, int, int]] = []  # the thread's name, its number, when it was last busy

    def of(self, span: Span) -> int:
        """The row of a span, from 1. Spans must come by start."""
        free = None
        for row, (name, native_id, busy_until) in enumerate(self._rows):
            if name != span.thread:
                continue
            if native_id == span.native_id:
                return self._take(row, span)
            free = row if free is None and busy_until <= span.start else free
        if free is None:
            free = len(self._rows)
            self._rows.append((span.thread, span.native_id, 0))
        return self._take(free, span)

    def names(self) -> Iterator[dict[str, Any]]:
        for row, (name, _, _) in enumerate(self._rows, 1):
            yield {"ph": "M", "name": "thread_name", "tid": row, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "tid": row, "args": {"sort_index": row}}

    def _take(self, row: int, span: Span) -> int:
        busy_until = max(span.stop, self._rows[row][2])
        self._rows[row] = (span.thread, span.native_id, busy_until)
        return row + 1


def _described(span: Span, moment: _Moment) -> dict[str, Any]:
    """What one sees when one clicks on a span."""
    event = moment.event
    shown = {"step": event.step, "save_id": event.save_id} if isinstance(event, SaveEvent) else {}
    shown |= {"thread": span.native_id}
    if span.nbytes:
        shown |= {"bytes": span.nbytes, "GB/s": round(span.nbytes / max(span.busy, 1), 3)}
    return shown | ({"merged": span.count, "busy_us": span.busy / 1000} if span.count > 1 else {})


def _name(event: Event) -> str:
    if isinstance(event, DeleteEvent):
        return f"delete {event.folder}"
    return f"save step {event.step}" if event.outcome == "committed" else f"save step {event.step}: {event.outcome}"


def _plain(event: Event) -> dict[str, Any]:
    """The event without its spans."""
    shown = {item.name: getattr(event, item.name) for item in fields(event) if item.name != "spans"}
    return shown | ({"seconds": dict(event.seconds)} if isinstance(event, SaveEvent) else {})
