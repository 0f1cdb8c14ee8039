"""Objects to plain values: what ``save()`` calls on the state, in the caller's thread.

An object with ``state_dict()`` stands for what that returns; generators of torch, numpy and python for their states.
They are looked for in dicts, lists and tuples (of exactly these types, OrderedDicts and defaultdicts).
"""

import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from asyncckpt.errors import SaveError
from asyncckpt.manifest.tree import MAX_DEPTH, Path, render
from asyncckpt.training.optimizers import records
from asyncckpt.training.rng import capture_rng
from asyncckpt.training.wrappers import clean_state

_DICTS: Final = (dict, OrderedDict, defaultdict)
_SEQUENCES: Final = (list, tuple)
_PLAIN: Final = frozenset({int, float, str, bool, type(None), bytes, torch.Tensor, nn.Parameter, np.ndarray})
_GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
Visit = Callable[[Any, Path], object]


Found = list[tuple[Path, Any]]


def payload_of(state: object, *, rng: bool) -> tuple[dict[str, Any], Found]:
    """What a checkpoint's tree holds, and the objects found in the state.

    The tree has the collected state, random states (or None), and whose parameters the optimizers' states belong to.
    """
    found: Found = []

    def visit(value: Any, path: Path) -> object:
        found.append((path, value))
        return state_of(value, path)

    collected = transform(state, visit)
    return {"state": collected, "rng": capture_rng() if rng else None, "optimizers": records(found)}, found


def collect(state: object) -> object:
    """The state with every object in it replaced by its plain state. Containers without objects stay what they are.

    Raises:
        SaveError: a ``state_dict()`` raised; names the key path.
    """
    return transform(state, state_of)


def objects(state: object) -> Found:
    """Path and object of all that ``collect`` would replace, in the state's order."""
    found: Found = []
    transform(state, lambda value, path: found.append((path, value)))
    return found


def is_generator(value: object) -> bool:
    """Whether this is a random generator whose state we know how to take."""
    return isinstance(value, _GENERATORS)


def is_stateful(value: object) -> bool:
    """Whether this has a ``state_dict()`` of its own."""
    if isinstance(value, type | torch.Tensor):
        return False
    return callable(getattr(value, "state_dict", None))


def state_of(value: Any, path: Path) -> object:
    """The plain state of one object."""
    try:
        return generator_state(value) if is_generator(value) else _state_dict(value)
    except Exception as error:
        raise SaveError(f"{render(path) or 'the state'}: its state could not be taken: {error}") from error


def _state_dict(value: Any) -> object:
    state = value.state_dict()
    return clean_state(value, state) if isinstance(value, nn.Module) else state


def generator_state(value: Any) -> object:
    """The state of a generator, in its own form."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.get_state(legacy=False) if isinstance(value, np.random.RandomState) else value.getstate()


def set_generator_state(value: Any, state: Any) -> None:
    """The counterpart of ``generator_state``."""
    if isinstance(value, torch.Generator):
        value.set_state(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    else:
        value.setstate(state)


def transform(state: object, visit: Visit) -> object:
    """The state with every object replaced by ``visit(object, path)``.

    Stops at cycles and absurd depths, which are refused later, by the one who writes the tree.
    """
    return _Walk(visit).value(state, ())


class _Walk:
    """One call of ``transform``. ``inside``: ids of the containers around the value."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._inside: set[int] = set()

    def value(self, value: Any, path: Path) -> object:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in _DICTS or kind in _SEQUENCES:
            return self._container(value, path)
        return self._visit(value, path) if is_generator(value) or is_stateful(value) else value

    def _container(self, value: Any, path: Path) -> object:
        if id(value) in self._inside or len(path) > MAX_DEPTH:
            return value
        self._inside.add(id(value))
        try:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            new = {key: self.value(old, (*path, key)) for key, old in items}
        finally:
            self._inside.discard(id(value))
        changed = {key: below for key, below in new.items() if below is not value[key]}
        return _replaced(value, new) if changed else value


def _replaced(value: Any, new: dict[Any, Any]) -> object:
    """A container like ``value`` with these entries."""
    if not isinstance(value, dict):
        return type(value)(new.values())
    copied = defaultdict(value.default_factory, new) if isinstance(value, defaultdict) else type(value)(new)
    if isinstance(value, OrderedDict):
        vars(copied).update(vars(value))  # torch hangs _metadata on state dicts
    return copied


def modules(found: list[tuple[Path, Any]]) -> Iterator[tuple[Path, nn.Module]]:
    """The modules among objects."""
    return ((path, value) for path, value in found if isinstance(value, nn.Module))
