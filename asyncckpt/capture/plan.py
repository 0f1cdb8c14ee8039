"""From a state to a plan: the tree with every plain value in it, and what bulk data is to be copied where.

Runs in the caller's thread; copies no bulk data and writes nothing. What cannot be saved is refused here, by its key
path. Tensors whose memory overlaps become one region, stored once, and come back sharing it; a small view of a large
storage is stored as its own range only.

A planner remembers the outline of the last plan. As long as a state has the same shapes, and its memory overlaps in
the same way, only its plain values are new: nodes, regions and layout are those of before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from asyncckpt.capture.layout import Group
from asyncckpt.capture.leaves import Addresses, Leaves, is_plain, none_lazy, shapes_of
from asyncckpt.capture.outline import Outline, Walked, draw
from asyncckpt.capture.sources import array_group, name_of
from asyncckpt.errors import UnsupportedStateError
from asyncckpt.manifest.tree import NOT_LEAF, Leaf, Node, Path, Pickled, flatten, render
from asyncckpt.threads import collector_paused

PLAIN_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_COMPRESSED: Final = {
    torch.sparse_csr: ("sparse_csr", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("sparse_bsr", "crow_indices", "col_indices"),
    torch.sparse_csc: ("sparse_csc", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("sparse_bsc", "ccol_indices", "row_indices"),
}
_SMALL: Final[dict[type, Callable[[Any], Node]]] = {
    torch.dtype: lambda value: ["torch.dtype", name_of(value)],
    torch.device: lambda value: ["torch.device", str(value)],
    torch.Size: lambda value: ["torch.Size", *value],
}


@dataclass(slots=True)
class SnapshotPlan:
    """What one snapshot will hold.

    Attributes:
        tree: the state as a node; its leaves name byte ranges of the logical string.
        outline: where everything goes; shared with other plans, never changed.
        leaves: the live tensors and arrays.
        addresses: where each leaf's bytes begin.
    """

    tree: Node
    outline: Outline
    leaves: Leaves
    addresses: Addresses

    @property
    def raw_bytes(self) -> int:
        """Length of the logical byte string."""
        return self.outline.layout.nbytes

    @property
    def devices(self) -> frozenset[torch.device]:
        """Accelerators that hold any of it."""
        return self.outline.devices


def plan_snapshot(state: object, *, allow_pickle: bool = False, path: Path = ()) -> SnapshotPlan:
    """One plan, by a planner that remembers nothing. See ``Planner.plan``."""
    return Planner(allow_pickle=allow_pickle).plan(state, path)


class Planner:
    """Plans the snapshots of one checkpointer. One call at a time."""

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        self._last: Outline | None = None

    def plan(self, state: object, path: Path = ()) -> SnapshotPlan:
        """Plan the snapshot of a state whose objects have been replaced by their ``state_dict()`` already.

        Raises:
            UnsupportedStateError: a value that cannot be saved, with its key path below ``path``.
        """
        with torch.no_grad(), collector_paused():
            return self._as_before(state, path) or self._anew(state, path)

    def _as_before(self, state: object, path: Path) -> SnapshotPlan | None:
        """The last outline with the state's own values; None if it does not fit."""
        if self._last is None or self._last.special:
            return None
        walk = _Again(self._last)
        try:
            tree = flatten(state, walk.leaf, allow_pickle=self._allow_pickle, path=path, leaf_types=PLAIN_TYPES)
        except _AnotherState:
            return None
        addresses = walk.matched()
        return None if addresses is None else SnapshotPlan(tree, self._last, walk.leaves, addresses)

    def _anew(self, state: object, path: Path) -> SnapshotPlan:
        walk = _First()
        tree = flatten(state, walk.leaf, allow_pickle=self._allow_pickle, path=path, leaf_types=PLAIN_TYPES)
        outline, addresses = draw(walk.walked)
        self._last = outline
        return SnapshotPlan(tree, outline, walk.walked.leaves, addresses)


class _First:
    """The walk of a state never seen before: describes every leaf. Places are filled in once the layout is known."""

    def __init__(self) -> None:
        self.walked = Walked()

    def leaf(self, value: Any, path: Path) -> Node:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            if kind not in PLAIN_TYPES:
                _refuse(path, f"a tensor subclass, {kind.__module__}.{kind.__qualname__}")
            return self._dense(value, path) if is_plain(value) else self._special(value, path)
        if kind is np.ndarray:
            return self._array(value, path)
        if kind in _DATA:
            return self._data(value)
        small = _SMALL.get(kind)
        return NOT_LEAF if small is None else small(value)

    def _dense(self, tensor: torch.Tensor, path: Path) -> Node:
        node: Node = ["tensor"]
        self.walked.add_tensor(tensor, node, path)
        return node

    def _array(self, array: np.ndarray[Any, np.dtype[Any]], path: Path) -> Node:
        if array.dtype.hasobject:
            _refuse(path, "a numpy array of Python objects")
        raw, order = flat_bytes(array)
        described: Any = array.dtype.str if array.dtype.names is None else np.lib.format.dtype_to_descr(array.dtype)
        node = ["array", _plain(described), list(array.shape), order, 0, raw.nbytes]
        self.walked.add_array(raw, describe_array(array, order), array_group(array.dtype), node, 4)
        return node

    def _data(self, value: bytes | bytearray) -> Node:
        raw = data_bytes(value)
        node = ["data", 0, len(raw), _DATA[type(value)]]
        self.walked.add_array(raw, (type(value), len(raw)), Group("b1", "bytes"), node, 1)
        return node

    def _special(self, tensor: torch.Tensor, path: Path) -> Node:
        """What is not simply a stretch of a storage: its parts are new tensors each time."""
        self.walked.special = True
        tensor = tensor.detach()
        if tensor.layout is torch.strided and not tensor.is_nested:
            if tensor.is_quantized:
                return self._quantized(tensor, path)
            return self._dense(tensor.resolve_conj().resolve_neg(), path)
        if tensor.layout is torch.sparse_coo:
            parts = [self._dense(part, path) for part in (tensor._indices(), tensor._values())]  # noqa: SLF001 - uncoalesced ones too
            return ["sparse_coo", list(tensor.shape), tensor.is_coalesced(), *parts]
        if tensor.layout in _COMPRESSED:
            return self._compressed(tensor, path)
        return _refuse(path, f"a tensor of layout {tensor.layout}{', nested' if tensor.is_nested else ''}")

    def _compressed(self, tensor: torch.Tensor, path: Path) -> Node:
        tag, compressed, plain = _COMPRESSED[tensor.layout]
        parts = (getattr(tensor, compressed)(), getattr(tensor, plain)(), tensor.values())
        return [tag, list(tensor.shape), *(self._dense(part, path) for part in parts)]

    def _quantized(self, tensor: torch.Tensor, path: Path) -> Node:
        name, scheme = name_of(tensor.dtype), tensor.qscheme()
        if tensor.dtype not in {torch.qint8, torch.quint8, torch.qint32}:
            _refuse(path, f"a quantized tensor of {tensor.dtype}")
        values = self._dense(tensor.int_repr(), path)
        if scheme is torch.per_tensor_affine:
            return ["quantized", name, "per_tensor_affine", tensor.q_scale(), tensor.q_zero_point(), values]
        if scheme is torch.per_channel_affine:
            scales = self._dense(tensor.q_per_channel_scales(), path)
            points = self._dense(tensor.q_per_channel_zero_points(), path)
            return ["quantized", name, "per_channel_affine", tensor.q_per_channel_axis(), scales, points, values]
        return _refuse(path, f"a tensor quantized by {scheme}")


class _AnotherState(Exception):  # noqa: N818 - no error: the walk begins anew
    """The state is not like the one before."""


class _Again:
    """The walk of a state that should be like the one before: takes its leaves, and gives the nodes of then.

    The k-th tensor gets the k-th tensor's node, wherever it is. Whether that was right is seen at the end, at once.
    """

    def __init__(self, last: Outline) -> None:
        self.leaves = Leaves()
        self._last = last
        self._tensors, self._arrays = iter(last.tensor_nodes), iter(last.array_nodes)
        self._take = self.leaves.tensors.append
        self.leaf: Leaf = self._leaf

    def matched(self) -> Addresses | None:
        """Where the leaves are, if all is as it was; else None."""
        last, leaves = self._last, self.leaves
        if len(leaves.tensors) != len(last.tensor_nodes) or len(leaves.arrays) != len(last.array_nodes):
            return None
        try:
            if shapes_of(leaves) != last.shapes or not none_lazy(leaves.tensors, last.shapes.dtypes):
                return None
        except RuntimeError:  # a tensor without strides
            return None
        addresses = leaves.addresses()
        return addresses if last.overlaps_alike(addresses, leaves.tensors) else None

    def _leaf(self, value: Any, _path: Path) -> Node:
        kind = type(value)
        if kind in PLAIN_TYPES:
            self._take(value)
            return self._next(self._tensors)
        if kind is np.ndarray:
            return self._array(value)
        if kind in _DATA:
            return self._keep(data_bytes(value), (kind, len(value)))
        small = _SMALL.get(kind)
        if small is None:
            if isinstance(value, torch.Tensor):
                raise _AnotherState
            return NOT_LEAF
        return small(value)

    def _array(self, array: np.ndarray[Any, np.dtype[Any]]) -> Node:
        if array.dtype.hasobject:
            raise _AnotherState
        raw, order = flat_bytes(array)
        return self._keep(raw, describe_array(array, order))

    def _keep(self, raw: Any, described: Any) -> Node:
        self.leaves.arrays.append(raw)
        self.leaves.described.append(described)
        return self._next(self._arrays)

    def _next(self, nodes: Any) -> Node:
        node = next(nodes, None)
        if node is None:
            raise _AnotherState
        return node


_DATA: Final = {bytes: "bytes", bytearray: "bytearray", Pickled: "pickle"}


def data_bytes(value: bytes | bytearray) -> Any:
    """Bytes as a flat uint8 array; a bytearray is copied, since it could not be resized otherwise."""
    return np.frombuffer(bytes(value) if type(value) is bytearray else value, np.uint8)


def flat_bytes(array: np.ndarray[Any, np.dtype[Any]]) -> tuple[Any, str]:
    """An array's elements in order as flat uint8, its own memory if that is contiguous; and the order, C or F."""
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = np.ascontiguousarray(array.T if order == "F" else array).reshape(-1)
    return (flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)), order


def describe_array(array: np.ndarray[Any, np.dtype[Any]], order: str) -> Any:
    """All that an array's node says."""
    return array.dtype, array.shape, order


def _plain(descr: Any) -> Any:
    """A numpy descr as JSON: tuples become lists."""
    return [_plain(item) for item in descr] if isinstance(descr, list | tuple) else descr


def _refuse(path: Path, what: str) -> Any:
    where = render(path) or "the state"
    raise UnsupportedStateError(
        f"{where} is {what} and cannot be saved; replace it by plain tensors, or teach it with asyncckpt.register_type",
        path=render(path),
    )
