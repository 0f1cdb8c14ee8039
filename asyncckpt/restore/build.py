"""A tree and the bytes it names, to the state: first all slots, then memory, then bytes (load.py), then values.

Slots are made in the order of the tree's leaves, and handed out in that order again while the tree is built. So a
value is built only when its bytes are there, which matters for registered types and pickles.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from asyncckpt.errors import FormatError
from asyncckpt.manifest.tree import Node, Path, leaves, render, unflatten
from asyncckpt.restore.layouts import LAYOUTS, LayoutSlot
from asyncckpt.restore.locations import Locate
from asyncckpt.restore.memory import Layout, Target
from asyncckpt.restore.plan import Want
from asyncckpt.restore.tensors import Forms, TensorSlot, fits_in_place, new_tensor, tensor_into
from asyncckpt.restore.values import ArraySlot, DataSlot, Slot, small_value
from asyncckpt.threads import collector_paused

_SMALL: Final = frozenset({"torch.dtype", "torch.device", "torch.Size"})


class Fill:
    """One tree that is being brought to life.

    Made, and asked for its ``value()``, in the caller's thread; filled by any.

    Args:
        tree: cut down to what is wanted.
        raw_bytes: length of the logical byte string that its leaves refer to.
        destinations: tensors to fill in place, by path. One that the saved bytes do not fit is left alone.
        locate: on which device every other tensor goes.
        allow_pickle: unpickle what was pickled.

    Raises:
        FormatError: a leaf that breaks a rule; nothing was changed.
        RestoreError: a pickle without ``allow_pickle``.
    """

    def __init__(
        self,
        tree: Node,
        raw_bytes: int,
        *,
        destinations: Mapping[Path, torch.Tensor],
        locate: Locate,
        allow_pickle: bool = False,
    ) -> None:
        self._tree, self._raw_bytes, self._allow_pickle = tree, raw_bytes, allow_pickle
        self._destinations, self._locate = destinations, locate
        self._layout, self._forms = Layout(), Forms(raw_bytes)
        with collector_paused():
            self._found: list[Slot] = [
                self._slot(tag, args, path) for path, tag, args in leaves(tree, small_value) if tag not in _SMALL
            ]
            self._layout.check()
            self._layout.allocate()

    @property
    def wants(self) -> list[Want]:
        """Which bytes go where."""
        return self._layout.wants

    @property
    def targets(self) -> list[Target]:
        """Where that is."""
        return self._layout.targets

    def name_of(self, target: int, at: int) -> str:
        """Key path of the value that has byte ``at`` of a target."""
        return render(self._layout.path_of(target, at)) or "the state"

    def value(self) -> object:
        """The state, once every want has been satisfied. Only once."""
        slots = iter(self._found)
        self._found = []
        with collector_paused():
            self._layout.settle()
            return unflatten(self._tree, _builder(slots), allow_pickle=self._allow_pickle)

    def _slot(self, tag: str, args: list[Any], path: Path) -> Slot:
        if tag == "tensor":
            return self._tensor(args, path)
        if tag == "array":
            return ArraySlot(args, path, self._raw_bytes, self._layout)
        if tag == "data":
            return DataSlot(args, path, self._raw_bytes, self._layout, self._allow_pickle)
        if tag in LAYOUTS:
            return LayoutSlot(tag, args, path, self._piece)
        raise FormatError(f"unknown tag {tag!r:.80} in the tree", defect="unknown tag")

    def _tensor(self, args: list[Any], path: Path) -> TensorSlot:
        destination = self._destinations.get(path) if self._destinations else None
        if destination is None:
            return self._piece(args, path)
        leaf, form = self._forms.parse(args, path)
        if fits_in_place(leaf, form, destination):
            return tensor_into(leaf, form, path, self._layout, destination)
        return new_tensor(leaf, form, path, self._layout, self._locate)

    def _piece(self, args: list[Any], path: Path) -> TensorSlot:
        leaf, form = self._forms.parse(args, path)
        return new_tensor(leaf, form, path, self._layout, self._locate)


def _builder(slots: Iterator[Slot]) -> Callable[[str, list[Any], Path], object]:
    def build(tag: str, args: list[Any], path: Path) -> object:
        if tag in _SMALL:
            return small_value(tag, args, path)
        return next(slots).value()

    return build
