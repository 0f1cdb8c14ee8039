"""When to save: pure values asked once per ``maybe_save``, combined with ``|``.

A schedule has no clock and no memory of its own. It is shown the moment and the history so far; whoever asks keeps the
history and moves it on with ``history.after(moment, saved=...)``.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from asyncckpt.events import logger


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the run is: ``seconds`` by a monotonic clock, ``metrics`` as given to ``maybe_save``."""

    step: int
    seconds: float
    epoch_end: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """What has been: the last step asked about, when the last save was, epochs ended, every metric's range.

    Attributes:
        step: the last step that was asked about.
        seconds: when the last save was, or when the run began.
        epochs: epochs ended so far, this moment's not included.
        lowest: smallest value of each metric so far; NaN never counts.
        highest: largest value of each metric so far.
    """

    step: int
    seconds: float
    epochs: int = 0
    lowest: Mapping[str, float] = field(default_factory=dict)
    highest: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def begin(cls, step: int, seconds: float) -> "History":
        """A run that begins after ``step`` (-1: at the very start)."""
        return cls(step, seconds)

    def seen(self, metrics: Mapping[str, float]) -> "History":
        """With these metrics known as well."""
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        lowest = {name: min(value, self.lowest.get(name, value)) for name, value in known.items()}
        highest = {name: max(value, self.highest.get(name, value)) for name, value in known.items()}
        return replace(self, lowest={**self.lowest, **lowest}, highest={**self.highest, **highest})

    def after(self, moment: Moment, *, saved: bool) -> "History":
        """The history once this moment has passed."""
        return replace(
            self.seen(moment.metrics),
            step=moment.step,
            seconds=moment.seconds if saved else self.seconds,
            epochs=self.epochs + moment.epoch_end,
        )


class Schedule(ABC):
    """When to save. ``a | b`` saves when either says so."""

    @abstractmethod
    def due(self, moment: Moment, history: History) -> bool:
        """Whether to save now."""

    def objective(self) -> tuple[str, str] | None:
        """Metric and mode by which this schedule tells the best, if it does."""
        return None

    def __or__(self, other: "Schedule") -> "Schedule":
        if not isinstance(other, Schedule):
            return NotImplemented
        return Either(self, other)


@dataclass(frozen=True)
class Either(Schedule):
    """Due when one of two is; made by ``|``."""

    left: Schedule
    right: Schedule

    def due(self, moment: Moment, history: History) -> bool:
        """When either is."""
        return self.left.due(moment, history) or self.right.due(moment, history)

    def objective(self) -> tuple[str, str] | None:
        """The left one's, else the right one's."""
        return self.left.objective() or self.right.objective()

    def __repr__(self) -> str:
        return f"{self.left!r} | {self.right!r}"


@dataclass(frozen=True)
class EverySteps(Schedule):
    """Whenever a multiple of ``n`` steps has been reached or passed since the last time it was asked; step 0 is not."""

    n: int

    def __post_init__(self) -> None:
        _whole(self.n, "EverySteps(n)")

    def due(self, moment: Moment, history: History) -> bool:
        """When a multiple of n lies in (last step, this step]. A run that was put back is asked afresh."""
        last = history.step if history.step <= moment.step else moment.step - 1
        return moment.step // self.n > max(last, 0) // self.n


@dataclass(frozen=True)
class EverySeconds(Schedule):
    """When ``seconds`` have passed since the last save, or since the run began."""

    seconds: float

    def __post_init__(self) -> None:
        if type(self.seconds) not in {int, float} or not self.seconds > 0:
            raise ValueError(f"EverySeconds(seconds)={self.seconds!r} must be a positive number of seconds")

    def due(self, moment: Moment, history: History) -> bool:
        """When the time has come."""
        return moment.seconds - history.seconds >= self.seconds


@dataclass(frozen=True)
class EveryEpoch(Schedule):
    """At the end of every ``n``-th epoch, as ``maybe_save(epoch_end=True)`` tells it."""

    n: int = 1

    def __post_init__(self) -> None:
        _whole(self.n, "EveryEpoch(n)")

    def due(self, moment: Moment, history: History) -> bool:
        """At the end of an epoch whose number is a multiple of n."""
        return moment.epoch_end and (history.epochs + 1) % self.n == 0


@dataclass(frozen=True)
class OnBest(Schedule):
    """When a metric given to ``maybe_save`` is better than ever. NaN is never best.

    Where the metric is not given it is not due; the log says so once a process.
    """

    metric: str
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise TypeError(f"OnBest(metric={self.metric!r}): the metric is a name, such as 'val_loss'")
        if self.mode not in {"min", "max"}:
            raise ValueError(f'OnBest(mode={self.mode!r}) must be "min" or "max"')

    def due(self, moment: Moment, history: History) -> bool:
        """When the value beats every earlier one."""
        if self.metric not in moment.metrics:
            _say_missing(self.metric)
        value = moment.metrics.get(self.metric, math.nan)
        if math.isnan(value):
            return False
        if self.mode == "min":
            return value < history.lowest.get(self.metric, math.inf) or self.metric not in history.lowest
        return value > history.highest.get(self.metric, -math.inf) or self.metric not in history.highest

    def objective(self) -> tuple[str, str] | None:
        """This one's."""
        return self.metric, self.mode


@functools.cache
def _say_missing(metric: str) -> None:
    logger.warning("OnBest(%r) is not due where maybe_save() is not given metrics={%r: ...}", metric, metric)


def _whole(value: int, name: str) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
