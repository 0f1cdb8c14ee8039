"""The copies themselves: from live memory into the buffers of one snapshot, with as little Python as can be.

Host memory is copied by address: one C call for each stretch, no view of any tensor. Small stretches are copied
without giving up the interpreter lock, since taking it again may cost more than the copy; between runs of them other
threads get their turn.
"""

import ctypes
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch

from asyncckpt.capture.memory import Buffer
from asyncckpt.capture.plan import SnapshotPlan
from asyncckpt.capture.program import Pieces
from asyncckpt.capture.sources import bytes_of, memory_of
from asyncckpt.capture.streams import CopyStreams

SMALL: Final = 64 << 10  # bytes; shorter stretches are not worth letting other threads run meanwhile
RUN: Final = 1000  # small stretches that are copied before other threads get their turn
_copy_large = ctypes.memmove
_copy_small = ctypes.PyDLL(None).memmove
_copy_small.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_copy_small.restype = None


class Copier:
    """The copies of one plan. ``host`` may be called from several threads at once, the others by the capturing one.

    Holds the live data until ``forget``.
    """

    def __init__(self, plan: SnapshotPlan) -> None:
        outline = plan.outline
        self._outline = outline
        self._leaves = plan.leaves
        self._arrays = len(plan.leaves.arrays)
        self._sources = plan.addresses[outline.region_leaves] + outline.region_starts
        self._gathered: dict[int, torch.Tensor] = {}

    def host(self, pieces: Pieces, buffer: Buffer) -> None:
        """Copy stretches of host memory. The caller keeps the copier, and so the memory, alive."""
        move(buffer.address + pieces.starts, self._sources[pieces.regions] + pieces.skips, pieces.nbytes)

    def others(self, pieces: Pieces, buffer: Buffer, streams: CopyStreams, held: list[Any]) -> set[torch.device]:
        """Copy host tensors with holes, enqueue copies from devices; give the devices of those.

        ``held`` gets everything that an enqueued copy reads; it must live until that copy is complete.
        """
        devices = set[torch.device]()
        for region, skip, start, nbytes in zip(*(column.tolist() for column in pieces), strict=True):
            device = self._outline.region_devices[region]
            target = buffer.tensor[start : start + nbytes]
            if device.type == "cpu":
                target.copy_(self._piece(region, skip, nbytes))
            else:
                devices.add(device)
                self._enqueue(region, skip, target, streams, held)
        return devices

    def tensor(self, region: int) -> torch.Tensor | None:
        """The live tensor of a region; None if it is an array."""
        leaf = self._outline.regions[region].leaf - self._arrays
        return self._leaves.tensors[leaf] if leaf >= 0 else None

    def _enqueue(self, region: int, skip: int, target: torch.Tensor, streams: CopyStreams, held: list[Any]) -> None:
        """Enqueue one copy on the device's copy stream; a tensor with holes is made contiguous there first."""
        with streams.of(self._outline.region_devices[region]):
            part = self._piece(region, skip, target.numel())
            target.copy_(part, non_blocking=True)
        held += [self.tensor(region), part]

    def _piece(self, region: int, skip: int, nbytes: int) -> torch.Tensor:
        """Bytes of a tensor as flat uint8: the live memory itself, or a copy if that has holes.

        Pieces are asked for in order. The copy is made once, for the first, and let go with the last; on a device it
        is enqueued on the current stream, which must be the same for all.
        """
        what, tensor = self._outline.regions[region], self.tensor(region)
        assert tensor is not None  # noqa: S101 - arrays are copied by address
        if not what.holes:
            return memory_of(tensor, what.start + skip, nbytes)
        flat = self._gathered.pop(region, None)
        flat = bytes_of(tensor) if flat is None else flat
        if skip + nbytes < what.nbytes:
            self._gathered[region] = flat
        return flat[skip : skip + nbytes]


def move(targets: Any, sources: Any, nbytes: Any) -> None:
    """Copy stretches of memory, given by arrays of addresses and lengths."""
    large = nbytes >= SMALL
    if large.any():
        _each(_copy_large, targets[large], sources[large], nbytes[large])
    if not large.all():
        targets, sources, nbytes = targets[~large], sources[~large], nbytes[~large]
        for i in range(0, len(nbytes), RUN):
            run = slice(i, i + RUN)
            _each(_copy_small, targets[run], sources[run], nbytes[run])


def _each(copy: Any, *columns: Iterable[np.int64]) -> None:
    deque(map(copy, *(column.tolist() for column in columns)), maxlen=0)  # type: ignore[attr-defined]
