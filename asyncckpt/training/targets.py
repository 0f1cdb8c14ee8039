"""The objects that ``restore`` loads into, one class for each way of loading.

All calls are made in the caller's thread. First ``check`` of all targets, which changes nothing; then bytes are read
into ``destinations``; then ``load`` of all.
"""

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from asyncckpt.errors import CheckpointError, RestoreError
from asyncckpt.manifest.tree import Node, Path, render, unflatten
from asyncckpt.restore.nodes import DICT_TAGS, entries, find, tag_of
from asyncckpt.training.optimizers import Group, groups_of, load_optimizer, positions, reordered, unclaimed
from asyncckpt.training.problems import Problems
from asyncckpt.training.stateful import set_generator_state

if TYPE_CHECKING:
    from collections.abc import Iterator

_CPU: Final = torch.device("cpu")


class Target(Protocol):
    """One object, and the node of its saved state."""

    @property
    def path(self) -> Path:
        """Where it is in the state."""
        ...

    def check(self, problems: Problems) -> None:
        """Note what does not fit."""
        ...

    def destinations(self) -> Mapping[Path, torch.Tensor]:
        """Live tensors that saved values may be read into directly, by path."""
        ...

    def device_of(self, path: Path) -> torch.device | None:
        """Where the saved tensor at this path is needed; None: wherever map_location says."""
        ...

    def load(self, value: Any) -> None:
        """Give the object its state, which has been read."""
        ...


@contextmanager
def naming(path: Path, call: str) -> "Iterator[None]":
    """Turn what an object raises into a ``RestoreError`` that names it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise RestoreError(f"{call} of {render(path) or 'the state'} failed: {error}") from error


class PlainTarget:
    """An object of which nothing is known but ``load_state_dict``."""

    def __init__(self, path: Path, value: Any) -> None:
        self.path, self._object = path, value

    def check(self, problems: Problems) -> None:
        """See ``Target``: there is nothing to check."""

    def destinations(self) -> Mapping[Path, torch.Tensor]:
        """See ``Target``."""
        return {}

    def device_of(self, path: Path) -> torch.device | None:  # noqa: ARG002 - the protocol's
        """Everything goes to the CPU: such an object moves what it wants elsewhere."""
        return _CPU

    def load(self, value: Any) -> None:
        """See ``Target``."""
        with naming(self.path, "load_state_dict()"):
            self._object.load_state_dict(value)


class GeneratorTarget(PlainTarget):
    """A random generator."""

    def load(self, value: Any) -> None:
        """See ``Target``."""
        with naming(self.path, "restoring the random state"):
            set_generator_state(self._object, value)


class OptimizerTarget:
    """An optimizer of torch's make. States go to parameters by name, see optimizers.py."""

    def __init__(
        self,
        path: Path,
        value: torch.optim.Optimizer,
        node: Node,
        record: list[Group] | None,
        names: Mapping[int, str],
    ) -> None:
        self.path, self._optimizer, self._node = path, value, node
        self._saved, self._here = record, groups_of(value, names)
        self._orders: list[list[int | None]] = []
        self._parameters: dict[Any, torch.Tensor] = {}  # saved id -> parameter

    def check(self, problems: Problems) -> None:
        """See ``Target``."""
        ids = self._saved_ids()
        if ids is None or len(ids) != len(self._here):
            problems.mismatched[render(self.path)] = self._count(ids)
            return
        if not self._agrees(ids):
            self._saved = None
        saved = self._saved or [Group([None] * len(i), [], []) for i in ids]
        for g, (group, here) in enumerate(zip(saved, self._here, strict=True)):
            self._orders.append(self._matched(g, group, here, problems))
        for order, group_ids, live in zip(self._orders, ids, self._optimizer.param_groups, strict=True):
            for i, parameter in zip(order, live["params"], strict=True):
                if i is not None:
                    self._parameters[group_ids[i]] = parameter

    def _saved_ids(self) -> list[list[Any]] | None:
        """The ``params`` of each saved group; None if this is no optimizer's state."""
        found, groups = find(self._node, ("param_groups",))
        if not found or tag_of(groups) != "list":
            return None
        nodes = [find(group, ("params",)) for _, group in entries(groups)]
        if not all(ok and tag_of(node) == "list" for ok, node in nodes):
            return None
        return [[i for i in node[1:] if isinstance(i, int)] for _, node in nodes]

    def _count(self, ids: list[list[Any]] | None) -> str:
        return f"{'no' if ids is None else len(ids)} parameter groups saved, {len(self._here)} here"

    def _agrees(self, ids: list[list[Any]]) -> bool:
        """Whether the record is there and is of this state."""
        return self._saved is not None and [len(group.names) for group in self._saved] == [len(i) for i in ids]

    def _matched(self, g: int, saved: Group, here: Group, problems: Problems) -> list[int | None]:
        """Saved position of each parameter of a group; None where there is none that fits."""
        where = f"{render(self.path)}.param_groups[{g}]"
        order = positions(saved, here)
        for k, i in enumerate(order):
            name = here.names[k] or f"params[{k}]"
            if i is None:
                problems.missing.append(f"{where}.{name}")
            elif saved.shapes and saved.shapes[i] != here.shapes[k]:
                problems.mismatched[f"{where}.{name}"] = f"shape {saved.shapes[i]} saved, {here.shapes[k]} here"
                order[k] = None
        problems.unexpected += [f"{where}.{name}" for name in unclaimed(saved, positions(saved, here))]
        return order

    def destinations(self) -> Mapping[Path, torch.Tensor]:
        """The optimizer's present state, if it has taken steps already. Not ``step``, which may have to move."""
        return {
            (*self.path, "state", i, key): value
            for i, parameter in self._parameters.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor) and key != "step"
        }

    def device_of(self, path: Path) -> torch.device | None:
        """Beside the parameter; ``step`` on the CPU, from where torch moves it if its kernels need that."""
        tail = path[len(self.path) :]
        parameter = self._parameters.get(tail[1]) if len(tail) > 2 and tail[0] == "state" else None  # noqa: PLR2004
        return _CPU if parameter is None or tail[2] == "step" else parameter.device

    def load(self, value: Any) -> None:
        """See ``Target``."""
        if len(self._orders) != len(self._here):
            return  # it did not fit, and strict=False
        with naming(self.path, "load_state_dict()"):
            load_optimizer(self._optimizer, reordered(value, self._orders), self._record_here())

    def _record_here(self) -> list[Group] | None:
        """What was noted of the parameters, in their order here."""
        if self._saved is None:
            return None
        return [
            Group(
                here.names,
                here.shapes,
                [d if i is None else saved.dtypes[i] for i, d in zip(order, here.dtypes, strict=True)],
            )
            for order, saved, here in zip(self._orders, self._saved, self._here, strict=True)
        ]


def plain(node: Node, path: Path) -> Any:
    """The value of a node that must hold plain values only."""

    def refuse(tag: str, _args: list[Any], where: Path) -> object:
        raise RestoreError(f"a {tag} at {render(where)}, where only plain values can be")

    return unflatten(node, refuse, path=path)


def is_dict(node: Node) -> bool:
    """Whether a node is a dict of any kind."""
    return tag_of(node) in DICT_TAGS
