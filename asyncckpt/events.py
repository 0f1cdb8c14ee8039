"""What happens to saves, told three ways with one record: a log line, a callback, and the caller's statistics.

Every event is logged as one line of ``key=value`` words under the logger ``asyncckpt`` and then given to the user's
``on_event``, in the thread where it happened. An exception of the callback is logged, never raised.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Literal

logger = logging.getLogger("asyncckpt")
Outcome = Literal["committed", "skipped", "superseded", "failed"]


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
    """

    step: int
    outcome: Outcome
    save_id: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    raw_bytes: int = 0
    stored_bytes: int = 0
    error: str | None = None


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
    """Adds up seconds by phase; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the body."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        """Add to a phase."""
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """The sums so far, in the order in which phases were first seen."""
        with self._lock:
            return dict(self._seconds)
