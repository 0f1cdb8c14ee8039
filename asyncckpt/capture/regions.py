"""Which bytes of which storages are stored, and how tensors lie in them.

A tensor's *extent* is the range of its storage from its first to its last byte. Tensors whose extents overlap are
stored as one region, so that they come back sharing memory, unless that would store more than twice the bytes that
they really have. A tensor with holes in its extent is stored as a contiguous copy; one whose elements repeat (stride
0) or are merely permuted is stored as its extent.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from asyncckpt.capture.layout import Group
from asyncckpt.capture.sources import Source, group_of, storage_range

_STRIDES, _REGION, _BYTES, _OFFSET = 3, 4, 5, 6  # places in a tensor's node


class Place(NamedTuple):
    """Where a region's offset is to be written once it is known: ``node[slot]``, and the same for others."""

    node: list[Any]
    slot: int
    others: tuple[tuple[list[Any], int], ...] = ()


Enter = Callable[[Source, Place], None]


class TensorSite(NamedTuple):
    """A dense tensor, its node, whose region is still to be filled in, and its extent in bytes."""

    tensor: torch.Tensor
    node: list[Any]
    nbytes: int
    start: int
    stop: int


def site_of(tensor: torch.Tensor, node: list[Any]) -> TensorSite:
    """Measure a tensor."""
    width, count = tensor.element_size(), tensor.numel()
    start = int(tensor.storage_offset()) * width
    if not count or tensor.is_contiguous():
        return TensorSite(tensor, node, count * width, start, start + count * width)
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return TensorSite(tensor, node, count * width, start, start + (reach + 1) * width)


def find_regions(sites: list[TensorSite], enter: Enter) -> None:
    """Enter the regions of all tensors, in the order of their first tensors."""
    storages: dict[Any, TensorSite | list[TensorSite]] = {}
    for number, site in enumerate(sites):
        key = _storage_key(site, number)
        first = storages.setdefault(key, site)
        if first is not site:
            if isinstance(first, list):
                first.append(site)
            else:
                storages[key] = [first, site]
    for storage in storages.values():
        if isinstance(storage, TensorSite):
            _store_alone(storage, enter)
        else:
            for cluster in _clusters(storage):
                _store(cluster, enter)


def _storage_key(site: TensorSite, number: int) -> Any:
    """Equal for tensors in one storage; empty tensors share with nobody."""
    if not site.nbytes:
        return -number - 1
    pointer = site.tensor.untyped_storage().data_ptr()
    return pointer if site.tensor.is_cpu else (site.tensor.device, pointer)


def _clusters(storage: list[TensorSite]) -> list[list[TensorSite]]:
    """Tensors of one storage, put together where their extents overlap."""
    clusters: list[list[TensorSite]] = []
    end = -1
    for site in sorted(storage, key=attrgetter("start", "stop")):
        if site.start < end:
            clusters[-1].append(site)
        else:
            clusters.append([site])
        end = max(end, site.stop)
    return clusters


def _store(cluster: list[TensorSite], enter: Enter) -> None:
    if len(cluster) > 1 and _worth_sharing(cluster):
        _enter_region(cluster, enter)
    else:
        for site in cluster:
            _store_alone(site, enter)


def _store_alone(site: TensorSite, enter: Enter) -> None:
    """A tensor that shares with none: as it is, or as a contiguous copy if its extent has holes."""
    if site.stop - site.start <= site.nbytes and not site.tensor.is_contiguous():
        _enter_region([site], enter)
        return
    site.node[_BYTES] = site.nbytes
    enter(Source(group_of(site.tensor.dtype), site.nbytes, tensor=site.tensor), Place(site.node, _REGION))


def _worth_sharing(cluster: list[TensorSite]) -> bool:
    """Whether one region is at most twice as large as what the distinct tensors hold."""
    distinct = {
        (s.start, tuple(s.tensor.shape), s.tensor.stride(), s.tensor.dtype): min(s.nbytes, s.stop - s.start)
        for s in cluster
    }
    return _span(cluster)[1] - _span(cluster)[0] <= 2 * sum(distinct.values())


def _enter_region(cluster: list[TensorSite], enter: Enter) -> None:
    start, stop = _span(cluster)
    first = cluster[0].tensor
    for site in cluster:
        if not site.tensor.is_contiguous():
            site.node[_STRIDES] = list(site.tensor.stride())
        site.node[_BYTES], site.node[_OFFSET] = stop - start, site.start - start
    same = len({site.tensor.dtype for site in cluster}) == 1
    group = group_of(first.dtype) if same else Group("b1", "mixed")
    last = max(cluster, key=attrgetter("stop")).tensor  # of storages that share memory, only its may reach so far
    source = Source(group, stop - start, tensor=storage_range(last, start, stop))
    enter(source, Place(cluster[0].node, _REGION, tuple((site.node, _REGION) for site in cluster[1:])))


def _span(cluster: list[TensorSite]) -> tuple[int, int]:
    """The bytes from the first to the last; begins where the widest of the elements may begin."""
    widest = max(site.tensor.element_size() for site in cluster)
    start = min(site.start for site in cluster)
    return start - start % widest, max(site.stop for site in cluster)
