"""Which checkpoints to keep: pure values over a list of checkpoints, combined with ``|``.

A policy says what it wants kept; the union is kept. Whatever a policy says, the step just written and the newest good
one are never deleted (publish/retention.py).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asyncckpt.manifest.catalog import CheckpointInfo


class Keep(ABC):
    """A keep policy. ``a | b`` keeps what either keeps."""

    @abstractmethod
    def kept(self, infos: Sequence[CheckpointInfo]) -> set[int]:
        """The steps to keep among these good checkpoints, given in ascending order."""

    def objective(self) -> tuple[str, str] | None:
        """Metric and mode by which this policy tells the best, if it does."""
        return None

    def keeps_all(self) -> bool:
        """True if nothing is ever to be deleted, so that nothing needs to be looked at."""
        return False

    def __or__(self, other: "Keep") -> "Keep":
        if not isinstance(other, Keep):
            return NotImplemented
        return KeepEither(self, other)


@dataclass(frozen=True)
class KeepEither(Keep):
    """The union of two policies; made by ``|``."""

    left: Keep
    right: Keep

    def kept(self, infos: Sequence[CheckpointInfo]) -> set[int]:
        """What either keeps."""
        return self.left.kept(infos) | self.right.kept(infos)

    def objective(self) -> tuple[str, str] | None:
        """The left one's, else the right one's."""
        return self.left.objective() or self.right.objective()

    def keeps_all(self) -> bool:
        """When either does."""
        return self.left.keeps_all() or self.right.keeps_all()

    def __repr__(self) -> str:
        return f"{self.left!r} | {self.right!r}"


@dataclass(frozen=True)
class KeepAll(Keep):
    """Delete nothing."""

    def kept(self, infos: Sequence[CheckpointInfo]) -> set[int]:
        """All of them."""
        return {info.step for info in infos}

    def keeps_all(self) -> bool:
        """It does."""
        return True


@dataclass(frozen=True)
class KeepLast(Keep):
    """Keep the newest ``k`` checkpoints by step."""

    k: int

    def __post_init__(self) -> None:
        _at_least_one(self.k, "KeepLast(k)")

    def kept(self, infos: Sequence[CheckpointInfo]) -> set[int]:
        """The highest k steps."""
        return set(sorted(info.step for info in infos)[-self.k :])


@dataclass(frozen=True)
class KeepEvery(Keep):
    """Keep every checkpoint whose step is a multiple of ``steps``."""

    steps: int

    def __post_init__(self) -> None:
        _at_least_one(self.steps, "KeepEvery(steps)")

    def kept(self, infos: Sequence[CheckpointInfo]) -> set[int]:
        """The multiples."""
        return {info.step for info in infos if info.step % self.steps == 0}


@dataclass(frozen=True)
class KeepBest(Keep):
    """Keep the best ``k`` checkpoints by a metric given to ``save()``. NaN and a missing metric count as worst."""

    metric: str
    mode: Literal["min", "max"] = "min"
    k: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise TypeError(f"KeepBest(metric={self.metric!r}): the metric is a name, such as 'val_loss'")
        if self.mode not in {"min", "max"}:
            raise ValueError(f'KeepBest(mode={self.mode!r}) must be "min" or "max"')
        _at_least_one(self.k, "KeepBest(k)")

    def kept(self, infos: Sequence[CheckpointInfo]) -> set[int]:
        """The best k; of equals the newer."""
        return {info.step for info in sorted(infos, key=self._badness)[: self.k]}

    def objective(self) -> tuple[str, str] | None:
        """This one's."""
        return self.metric, self.mode

    def _badness(self, info: CheckpointInfo) -> tuple[bool, float, int]:
        value = info.metrics.get(self.metric, math.nan)
        if math.isnan(value):
            return True, 0.0, -info.step
        return False, value if self.mode == "min" else -value, -info.step


def _at_least_one(value: int, name: str) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
