"""What plans of equal states share: nodes, regions, layout, and the copies to each buffer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from asyncckpt.capture.layout import Group, Layout, cut, lay_out
from asyncckpt.capture.leaves import Addresses, Leaves, Shapes, shapes_of
from asyncckpt.capture.program import Ints, Part, parts_of
from asyncckpt.capture.regions import Extents, Region, Tensors, clusters, extents_of, find_regions
from asyncckpt.capture.sources import name_of
from asyncckpt.encode.base import FrameSpec
from asyncckpt.errors import UnsupportedStateError
from asyncckpt.manifest.tree import Node, Path, render

HOST: Final = torch.device("cpu")


@dataclass(slots=True)
class Walked:
    """What the first walk of a state has found.

    Attributes:
        leaves: the live data.
        tensor_nodes, paths: of each tensor; the nodes are still to be filled in.
        array_regions: of each array.
        special: whether there are leaves whose parts are new tensors each time; the outline fits no other state then.
    """

    leaves: Leaves = field(default_factory=Leaves)
    tensor_nodes: list[Node] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    array_regions: list[Region] = field(default_factory=list)
    special: bool = False

    def add_tensor(self, tensor: torch.Tensor, node: Node, path: Path) -> None:
        """One dense tensor."""
        self.leaves.tensors.append(tensor)
        self.tensor_nodes.append(node)
        self.paths.append(path)

    def add_array(self, raw: Any, described: Any, group: Group, node: Node, slot: int) -> None:
        """One array; its offset goes to ``node[slot]``."""
        self.array_regions.append(Region(group, len(raw), len(self.leaves.arrays), 0, False, ((node, slot),)))
        self.leaves.arrays.append(raw)
        self.leaves.described.append(described)


@dataclass
class Outline:
    """Holds no live data. Never changed.

    Attributes:
        shapes: of the leaves.
        tensor_nodes, array_nodes: in the order of the walk.
        regions, layout: what is stored, and where.
        special: see ``Walked``.
        extents: of the tensors, at the addresses of the first state.
        groups: the tensors that share memory.
        region_devices: where each region is.
    """

    shapes: Shapes
    tensor_nodes: list[Node]
    array_nodes: list[Node]
    regions: list[Region]
    layout: Layout
    special: bool
    extents: Extents
    groups: list[list[int]]
    region_devices: list[torch.device]
    _frames: dict[int, list[FrameSpec]] = field(default_factory=dict)
    _parts: dict[int, list[Part]] = field(default_factory=dict)

    @cached_property
    def devices(self) -> frozenset[torch.device]:
        """Accelerators that hold any region."""
        return frozenset(device for device in set(self.region_devices) if device.type != "cpu")

    @cached_property
    def region_leaves(self) -> Ints:
        """The leaf of each region."""
        return np.fromiter((region.leaf for region in self.regions), np.int64, len(self.regions))

    @cached_property
    def region_starts(self) -> Ints:
        """Where each region begins, from its leaf's first byte."""
        return np.fromiter((region.start for region in self.regions), np.int64, len(self.regions))

    @cached_property
    def region_sizes(self) -> Ints:
        """Bytes of each region."""
        return np.fromiter((region.nbytes for region in self.regions), np.int64, len(self.regions))

    @cached_property
    def in_host(self) -> npt.NDArray[np.bool_]:
        """Which regions are stretches of host memory."""
        rows = zip(self.regions, self.region_devices, strict=True)
        return np.fromiter((device.type == "cpu" and not region.holes for region, device in rows), bool)

    def frames(self, size: int) -> list[FrameSpec]:
        """The frames of ``size`` raw bytes."""
        if size not in self._frames:
            self._frames[size] = cut(self.layout, size)
        return self._frames[size]

    def parts(self, size: int) -> list[Part]:
        """The copies that fill buffers of ``size`` bytes."""
        if size not in self._parts:
            self._parts[size] = parts_of(self.layout, self.region_sizes, self.in_host, size)
        return self._parts[size]

    def overlaps_alike(self, addresses: Addresses, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors at these addresses share memory just as those of the first state did."""
        starts = addresses[len(self.array_nodes) :]
        moved = starts - self.extents.starts
        if not moved.any():
            return True
        if any(moved[group[0]] != moved[i] for group in self.groups for i in group):
            return False
        where = np.flatnonzero(moved)
        lengths = self.extents.stops - self.extents.starts
        if _cut_short([tensors[i] for i in where.tolist()], lengths[where]).any():
            return False
        return clusters(starts, starts + lengths, self.extents.devices) == self.groups


def draw(walked: Walked) -> tuple[Outline, Addresses]:
    """The outline of a state, and where its leaves are now; fills in all nodes."""
    leaves, nodes = walked.leaves, walked.tensor_nodes
    addresses = leaves.addresses()
    starts = addresses[len(leaves.arrays) :]
    extents = extents_of(leaves.tensors, starts)
    _check_present(walked, extents)
    shapes = shapes_of(leaves)
    _describe(nodes, shapes)
    regions = list(walked.array_regions)
    groups = clusters(extents.starts, extents.stops, extents.devices)
    find_regions(Tensors(leaves.tensors, nodes, len(leaves.arrays), extents), groups, regions.append)
    layout = lay_out([(region.group, region.nbytes) for region in regions])
    for region, offset in zip(regions, layout.offsets, strict=True):
        for node, slot in region.places:
            node[slot] = offset
    array_nodes = [region.places[0][0] for region in walked.array_regions]
    leaf_devices = [HOST] * len(leaves.arrays) + shapes.devices
    region_devices = [leaf_devices[region.leaf] for region in regions]
    outline = Outline(shapes, nodes, array_nodes, regions, layout, walked.special, extents, groups, region_devices)
    return outline, addresses


def _describe(nodes: list[Node], shapes: Shapes) -> None:
    """Fill in what is known of each tensor before the layout is."""
    names = {dtype: name_of(dtype) for dtype in set(shapes.dtypes)}
    places = {device: str(device) for device in set(shapes.devices)}
    parameters = [issubclass(kind, torch.nn.Parameter) for kind in shapes.kinds]
    rows = zip(nodes, shapes.dtypes, shapes.shapes, shapes.devices, parameters, shapes.leafs_with_grad, strict=True)
    for node, dtype, shape, device, parameter, grad in rows:
        flags = ("p" if parameter else "") + ("g" if grad else "")
        node.extend((names[dtype], list(shape), None, 0, 0, 0, places[device], flags))


def _check_present(walked: Walked, extents: Extents) -> None:
    """Refuse tensors without memory."""
    tensors = walked.leaves.tensors
    if any(device.type == "meta" for device in {tensor.device for tensor in tensors}):
        i = next(i for i, tensor in enumerate(tensors) if tensor.is_meta)
        _refuse(walked.paths[i], f"a tensor on the meta device ({name_of(tensors[i].dtype)}), which has no values,")
    gone = np.flatnonzero(_cut_short(tensors, extents.stops - extents.starts))
    if len(gone):
        _refuse(
            walked.paths[int(gone[0])], "a tensor whose storage has been freed (resized to less than the tensor's size)"
        )


def _cut_short(tensors: Sequence[torch.Tensor], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which tensors' storages do not reach as far as their extents, of ``lengths`` bytes, do."""
    count = len(tensors)
    widths = np.fromiter(map(torch.Tensor.element_size, tensors), np.int64, count)
    skipped = np.fromiter(map(torch.Tensor.storage_offset, tensors), np.int64, count) * widths
    held = np.fromiter((tensor.untyped_storage().nbytes() for tensor in tensors), np.int64, count)
    return (lengths > 0) & (skipped + lengths > held)


def _refuse(path: Path, what: str) -> None:
    where = render(path) or "the state"
    raise UnsupportedStateError(f"{where} is {what} and cannot be saved", path=render(path))
