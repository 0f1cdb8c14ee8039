"""From a state to a plan: the tree with every plain value in it, and what bulk data is to be copied where.

Runs in the caller's thread; copies no bulk data and writes nothing. What cannot be saved is refused here, by its key
path. Tensors whose memory overlaps become one region, stored once, and come back sharing it; a small view of a large
storage is stored as its own range only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from asyncckpt.capture.layout import Group, Layout, lay_out
from asyncckpt.capture.regions import Place, TensorSite, find_regions, site_of
from asyncckpt.capture.sources import Source, array_group, name_of
from asyncckpt.errors import UnsupportedStateError
from asyncckpt.manifest.tree import NOT_LEAF, Node, Path, Pickled, flatten, render
from asyncckpt.threads import collector_paused

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_COMPRESSED = {
    torch.sparse_csr: ("sparse_csr", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("sparse_bsr", "crow_indices", "col_indices"),
    torch.sparse_csc: ("sparse_csc", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("sparse_bsc", "ccol_indices", "row_indices"),
}


_SMALL: dict[type, Callable[[Any], Node]] = {
    torch.dtype: lambda value: ["torch.dtype", name_of(value)],
    torch.device: lambda value: ["torch.device", str(value)],
    torch.Size: lambda value: ["torch.Size", *value],
}


@dataclass(slots=True)
class SnapshotPlan:
    """What one snapshot will hold.

    Attributes:
        tree: the state as a node; its leaves name byte ranges of the logical string.
        layout: where the sources go.
        sources: in the order of ``layout.offsets``; they keep the live tensors referenced.
        devices: accelerators that hold any of them.
    """

    tree: Node
    layout: Layout
    sources: list[Source]
    devices: frozenset[torch.device]

    @property
    def raw_bytes(self) -> int:
        """Length of the logical byte string."""
        return self.layout.nbytes


def plan_snapshot(state: object, *, allow_pickle: bool = False, path: Path = ()) -> SnapshotPlan:
    """Plan the snapshot of a state whose objects have been replaced by their ``state_dict()`` already.

    Raises:
        UnsupportedStateError: a value that cannot be saved, with its key path below ``path``.
    """
    planner = _Planner()
    try:
        with torch.no_grad(), collector_paused():
            tree = flatten(state, planner.leaf, allow_pickle=allow_pickle, path=path)
            return planner.plan(tree)
    finally:
        planner.forget()


@dataclass(slots=True)
class _Planner:
    """One walk. Leaves are entered with empty places, which are filled in once the layout is known."""

    sites: list[TensorSite] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def leaf(self, value: object, path: Path) -> Node:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if type(value) is np.ndarray:
            return self._array(value, path)
        if isinstance(value, bytes | bytearray) and type(value) in {bytes, bytearray, Pickled}:
            return self._data(value)
        small = _SMALL.get(type(value))
        return NOT_LEAF if small is None else small(value)

    def plan(self, tree: Node) -> SnapshotPlan:
        find_regions(self.sites, self._enter)
        layout = lay_out([(source.group, source.nbytes) for source in self.sources])
        for place, offset in zip(self.places, layout.offsets, strict=True):
            place.node[place.slot] = offset
            for node, slot in place.others:
                node[slot] = offset
        devices = frozenset(source.device for source in self.sources if source.device.type != "cpu")
        return SnapshotPlan(tree, layout, self.sources, devices)

    def forget(self) -> None:
        """Let go of the live tensors: what walked the state may be in a cycle and live until the next collection."""
        self.sites, self.sources, self.places = [], [], []

    def _enter(self, source: Source, place: Place) -> None:
        self.sources.append(source)
        self.places.append(place)

    def _data(self, value: bytes | bytearray) -> Node:
        tag = "pickle" if type(value) is Pickled else type(value).__name__
        raw = np.frombuffer(bytes(value) if type(value) is bytearray else value, np.uint8)
        node = ["data", 0, len(raw), tag]
        self._enter(Source(Group("b1", "bytes"), len(raw), array=raw), Place(node, 1))
        return node

    def _array(self, array: np.ndarray[Any, np.dtype[Any]], path: Path) -> Node:
        if array.dtype.hasobject:
            _refuse(path, "a numpy array of Python objects")
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        flat = np.ascontiguousarray(array.T if order == "F" else array).reshape(-1)
        raw = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
        described: Any = array.dtype.str if array.dtype.names is None else np.lib.format.dtype_to_descr(array.dtype)
        node = ["array", _plain(described), list(array.shape), order, 0, flat.nbytes]
        source = Source(array_group(array.dtype), flat.nbytes, array=raw)
        self._enter(source, Place(node, 4))
        return node

    def _tensor(self, tensor: torch.Tensor, path: Path) -> Node:
        if type(tensor) not in PLAIN_TYPES:
            _refuse(path, f"a tensor subclass, {type(tensor).__module__}.{type(tensor).__qualname__}")
        if tensor.layout is torch.strided and not tensor.is_nested:
            return self._quantized(tensor, path) if tensor.is_quantized else self._dense(tensor, path)
        if tensor.layout is torch.sparse_coo:
            return self._coo(tensor.detach(), path)
        if tensor.layout in _COMPRESSED:
            return self._compressed(tensor.detach(), path)
        return _refuse(path, f"a tensor of layout {tensor.layout}{', nested' if tensor.is_nested else ''}")

    def _dense(self, tensor: torch.Tensor, path: Path) -> Node:
        if tensor.device.type == "meta":
            _refuse(path, f"a tensor on the meta device ({name_of(tensor.dtype)}), which has no values,")
        flags = ("p" if type(tensor) is torch.nn.Parameter else "") + (
            "g" if tensor.requires_grad and tensor.is_leaf else ""
        )
        data = tensor.detach()
        if data.is_conj() or data.is_neg():
            data = data.resolve_conj().resolve_neg()
        node = ["tensor", name_of(data.dtype), list(data.shape), None, 0, 0, 0, str(data.device), flags]
        site = site_of(data, node)
        if site.stop > data.untyped_storage().nbytes() and site.nbytes:
            _refuse(path, "a tensor whose storage has been freed (resized to less than the tensor's size)")
        self.sites.append(site)
        return node

    def _coo(self, tensor: torch.Tensor, path: Path) -> Node:
        parts = [self._dense(part, path) for part in (tensor._indices(), tensor._values())]  # noqa: SLF001 - uncoalesced ones too
        return ["sparse_coo", list(tensor.shape), tensor.is_coalesced(), *parts]

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


def _plain(descr: Any) -> Any:
    """A numpy descr as JSON: tuples become lists."""
    return [_plain(item) for item in descr] if isinstance(descr, list | tuple) else descr


def _refuse(path: Path, what: str) -> Any:
    where = render(path) or "the state"
    raise UnsupportedStateError(
        f"{where} is {what} and cannot be saved; replace it by plain tensors, or teach it with asyncckpt.register_type",
        path=render(path),
    )
