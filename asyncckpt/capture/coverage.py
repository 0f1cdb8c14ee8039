"""Which regions are written by ``optimizer.step()`` only, so that they may be copied late.

Those are the parameters and the state tensors of optimizers, where a region is exactly one of them. Everything else is
copied before ``save()`` returns, and so are the weights of embeddings with ``max_norm``, which forward renormalizes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from asyncckpt.capture.outline import Outline
from asyncckpt.capture.plan import SnapshotPlan

Extent = tuple[torch.device, int, int]
Mask = npt.NDArray[np.bool_]


class Coverage:
    """Finds the regions; remembers the last answer for as long as nothing has moved. One call at a time."""

    def __init__(self) -> None:
        self._outline: Outline | None = None
        self._parameters: list[int] = []
        self._mask: Mask = np.zeros(0, bool)
        self._addresses: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def mask(
        self, plan: SnapshotPlan, optimizers: Sequence[torch.optim.Optimizer], modules: Iterable[nn.Module]
    ) -> Mask:
        """For each region of the plan, whether only these optimizers write to it."""
        outline = plan.outline
        addresses = plan.addresses[outline.region_leaves] + outline.region_starts
        parameters = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        if outline is not self._outline or parameters != self._parameters or self._moved(addresses):
            self._mask = _mask(outline, addresses, set(_covered(optimizers)) - set(_renormalized(modules)))
            self._outline, self._parameters = outline, parameters
            self._addresses = addresses[self._mask]
        return self._mask

    def _moved(self, addresses: npt.NDArray[np.int64]) -> bool:
        return not np.array_equal(addresses[self._mask], self._addresses)


def _mask(outline: Outline, addresses: npt.NDArray[np.int64], covered: set[Extent]) -> Mask:
    rows = zip(outline.regions, outline.region_devices, addresses.tolist(), strict=True)
    found = (not r.holes and (device, address, r.nbytes) in covered for r, device, address in rows)
    return np.fromiter(found, bool, len(outline.regions))


def _covered(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Extent]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from _extents(group["params"])
        for state in optimizer.state.values():
            if isinstance(state, dict):
                yield from _extents(state.values())


def _renormalized(modules: Iterable[nn.Module]) -> Iterator[Extent]:
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
                yield from _extents([part.weight])


def _extents(values: Iterable[Any]) -> Iterator[Extent]:
    """Where dense tensors are; an empty one is nowhere."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            yield value.device, value.data_ptr(), value.nbytes
