"""What the front door accepts, checked and made plain, with errors that name the argument."""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from asyncckpt.manifest.tree import NOT_LEAF, Node, Path, flatten

WhenFull = Literal["wait", "skip", "supersede", "raise"]
SnapshotMode = Literal["blocking", "overlapped"]
MAX_STEP = 10**15
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNITS |= {"tib": 2**40, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(value: int | str | None, name: str) -> int | None:
    """A number of bytes from an int or a text such as ``"8GiB"``, ``"500 MB"``; None stays None."""
    if value is None:
        return None
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(
                f'{name}={value!r} is not a size; write bytes as an int, or text such as "8GiB" or "500MB"'
            )
        return int(float(match[1]) * unit)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name}={value!r} must be a positive number of bytes")
    return value


def check_choice(value: str, choices: Any, name: str) -> None:
    """Refuse a word that is not among the literals of ``choices``."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, get_args(choices)))}")


def check_count(value: int, name: str) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
    return value


def check_instance(value: object, kind: type, name: str, example: str) -> None:
    """None or a value of this kind."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name}={value!r} must be a {kind.__name__}, such as {example}")


def check_optimizers(optimizers: Sequence[torch.optim.Optimizer] | None) -> tuple[torch.optim.Optimizer, ...] | None:
    """A sequence of optimizers; None stays None: those found in the state."""
    if optimizers is None:
        return None
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizers= holds {optimizer!r:.80}, which is no torch.optim.Optimizer")
    return tuple(optimizers)


def check_state(state: object) -> None:
    """A state is a dict; what is in it is looked at later."""
    if not isinstance(state, Mapping):
        raise TypeError(f"the state must be a dict such as {{'model': model}}, not {type(state).__name__}")


def check_step(step: Any) -> int:
    """A step as a plain int: anything with ``__index__`` but bool, from 0 to 10**15."""
    if isinstance(step, bool):
        raise TypeError(f"step={step!r} must be a whole number")
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"step={step!r} must be a whole number, not {type(step).__name__}") from None
    if not 0 <= number <= MAX_STEP:
        raise ValueError(f"step={number} must lie between 0 and {MAX_STEP}")
    return number


def plain_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Metrics as Python floats, taken now: numbers, numpy scalars and tensors of one element."""
    plain: dict[str, float] = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"metrics: the name {name!r} must be a string")
        try:
            plain[name] = float(value.detach() if isinstance(value, torch.Tensor) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"metrics[{name!r}] must be a single number, not {value!r:.80}") from error
    return plain


def metric_nodes(metrics: Mapping[str, float]) -> dict[str, Node]:
    """Metrics as they stand in the manifest; NaN and infinities have no JSON number."""
    return {name: value if math.isfinite(value) else flatten(value, _no_leaves) for name, value in metrics.items()}


def metadata_node(metadata: Mapping[str, Any] | None) -> Node:
    """The user's metadata as a node, copied now. Plain values only: it must be readable without torch."""
    return flatten(dict(metadata or {}), _no_leaves)


def _no_leaves(_value: object, _path: Path) -> Any:
    return NOT_LEAF
