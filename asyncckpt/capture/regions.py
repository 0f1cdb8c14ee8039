"""Which bytes of which memory are stored, and how tensors lie in them.

A tensor's *extent* is the memory from its first to its last byte. Tensors whose extents overlap are stored as one
region, so that they come back sharing memory, unless that would store more than twice the bytes that they really
have. A tensor with holes in its extent is stored as a contiguous copy; one whose elements repeat (stride 0) or are
merely permuted is stored as its extent.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from asyncckpt.capture.layout import Group
from asyncckpt.capture.leaves import Addresses
from asyncckpt.capture.sources import group_of

_STRIDES, _REGION, _BYTES, _OFFSET = 3, 4, 5, 6  # places in a tensor's node


class Region(NamedTuple):
    """One run of bytes to be stored.

    Attributes:
        group: how it is coded, and its dtype.
        nbytes: its length.
        leaf: number of the leaf whose memory it is part of.
        start: where it begins, in bytes from that leaf's first element; 0 or less.
        holes: it is the leaf's elements made contiguous, not memory as it lies.
        places: nodes, and the place in each, where its offset is to be written.
    """

    group: Group
    nbytes: int
    leaf: int
    start: int
    holes: bool
    places: tuple[tuple[list[Any], int], ...]


class Site(NamedTuple):
    """A dense tensor with elements: its leaf's number, its node, its size and its extent in memory, in bytes."""

    leaf: int
    tensor: torch.Tensor
    node: list[Any]
    nbytes: int
    start: int
    stop: int


class Extents(NamedTuple):
    """Of all tensors: sizes and memory ranges in bytes, devices as numbers, whether they are contiguous."""

    nbytes: list[int]
    starts: Addresses
    stops: Addresses
    devices: npt.NDArray[np.int64]
    contiguous: list[bool]


Enter = Callable[[Region], None]


def extents_of(tensors: Sequence[torch.Tensor], starts: Addresses) -> Extents:
    """Measure strided tensors that begin at ``starts``."""
    nbytes = [tensor.nbytes for tensor in tensors]
    contiguous = list(map(torch.Tensor.is_contiguous, tensors))
    lengths = nbytes if all(contiguous) else [*map(_reach, tensors, nbytes, contiguous)]
    devices = list(map(attrgetter("device"), tensors))
    numbers = {device: i for i, device in enumerate(dict.fromkeys(devices))}
    stops = starts + np.fromiter(lengths, np.int64, len(lengths))
    return Extents(nbytes, starts, stops, np.fromiter(map(numbers.__getitem__, devices), np.int64), contiguous)


def _reach(tensor: torch.Tensor, nbytes: int, contiguous: bool) -> int:
    if contiguous or not nbytes:
        return nbytes
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


class Tensors(NamedTuple):
    """All dense tensors of a state with their nodes. ``first``: the first one's leaf number."""

    tensors: Sequence[torch.Tensor]
    nodes: Sequence[list[Any]]
    first: int
    extents: Extents

    def site(self, i: int) -> Site:
        """One of them."""
        extents = self.extents
        start, stop = int(extents.starts[i]), int(extents.stops[i])
        return Site(self.first + i, self.tensors[i], self.nodes[i], extents.nbytes[i], start, stop)


def find_regions(of: Tensors, shared: list[list[int]], enter: Enter) -> None:
    """Enter the regions of all tensors; ``shared``: the numbers of those that share memory, see ``clusters``."""
    sharing = {i for cluster in shared for i in cluster}
    rows = zip(of.tensors, of.nodes, of.extents.nbytes, of.extents.contiguous, strict=True)
    for i, (tensor, node, nbytes, contiguous) in enumerate(rows):
        if i in sharing:
            continue
        if contiguous:
            node[_BYTES] = nbytes
            enter(Region(group_of(tensor.dtype), nbytes, of.first + i, 0, False, ((node, _REGION),)))
        else:
            _store_alone(of.site(i), enter)
    for cluster in shared:
        _store([of.site(i) for i in cluster], enter)


def clusters(starts: Addresses, stops: Addresses, devices: npt.NDArray[np.int64]) -> list[list[int]]:
    """The tensors that share memory, put together where their extents overlap, by their numbers.

    Those that share with none are left out; empty ones share with nobody.
    """
    order = np.lexsort((stops, starts, devices))
    order = order[stops[order] > starts[order]]
    begins = np.ones(len(order), bool)
    for device in np.unique(devices[order]):
        here = np.flatnonzero(devices[order] == device)
        ends = np.maximum.accumulate(stops[order[here]])
        begins[here[1:]] = starts[order[here[1:]]] >= ends[:-1]
    if begins.all():
        return []
    heads = np.flatnonzero(begins).tolist()
    runs = zip(heads, [*heads[1:], len(order)], strict=True)
    return sorted(order[head:tail].tolist() for head, tail in runs if tail - head > 1)


def _store(cluster: list[Site], enter: Enter) -> None:
    if _worth_sharing(cluster) and _aligned(cluster):
        _enter_extent(cluster, enter)
    else:
        for site in cluster:
            _store_alone(site, enter)


def _store_alone(site: Site, enter: Enter) -> None:
    """A tensor that shares with none: as it is, or as a contiguous copy if its extent has holes."""
    whole = site.tensor.is_contiguous()
    if site.stop - site.start <= site.nbytes and not whole:
        _enter_extent([site], enter)
        return
    site.node[_BYTES] = site.nbytes
    enter(Region(group_of(site.tensor.dtype), site.nbytes, site.leaf, 0, not whole, ((site.node, _REGION),)))


def _worth_sharing(cluster: list[Site]) -> bool:
    """Whether one region is at most twice as large as what the distinct tensors hold."""
    distinct = {
        (s.start, tuple(s.tensor.shape), s.tensor.stride(), s.tensor.dtype): min(s.nbytes, s.stop - s.start)
        for s in cluster
    }
    start, stop = _span(cluster)
    return stop - start <= 2 * sum(distinct.values())


def _aligned(cluster: list[Site]) -> bool:
    """Whether every tensor lies at a whole number of its elements; storages that alias one memory may not."""
    start, _ = _span(cluster)
    return all((site.start - start) % site.tensor.element_size() == 0 for site in cluster)


def _enter_extent(cluster: list[Site], enter: Enter) -> None:
    start, stop = _span(cluster)
    for site in cluster:
        if not site.tensor.is_contiguous():
            site.node[_STRIDES] = list(site.tensor.stride())
        site.node[_BYTES], site.node[_OFFSET] = stop - start, site.start - start
    same = len({site.tensor.dtype for site in cluster}) == 1
    group = group_of(cluster[0].tensor.dtype) if same else Group("b1", "mixed")
    last = max(cluster, key=attrgetter("stop"))  # of storages that share memory, only its may reach so far
    places = tuple((site.node, _REGION) for site in cluster)
    enter(Region(group, stop - start, last.leaf, start - last.start, False, places))


def _span(cluster: list[Site]) -> tuple[int, int]:
    """The memory from the first to the last byte; begins where the widest of the elements may begin."""
    widest = max(site.tensor.element_size() for site in cluster)
    first = min(cluster, key=attrgetter("start"))
    inside = int(first.tensor.storage_offset()) * first.tensor.element_size()
    return first.start - inside % widest, max(site.stop for site in cluster)
