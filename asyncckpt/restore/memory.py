"""Memory that bytes of a checkpoint are placed in: on the host, or on a device through a host buffer."""

import os
from typing import Final, Protocol

import numpy as np
import torch

from asyncckpt.errors import FormatError
from asyncckpt.manifest.tree import Path
from asyncckpt.restore import arenas
from asyncckpt.restore.arenas import Arena
from asyncckpt.restore.pages import in_large_pages
from asyncckpt.restore.plan import Want

_CPU: Final = torch.device("cpu")
_MANY: Final = 64 << 10  # bytes
_META: Final = torch.device("meta")


class Target(Protocol):
    """Where bytes go. Decoder threads write disjoint ranges side by side."""

    @property
    def view(self) -> memoryview | None:
        """The memory itself, if it is on the host."""
        ...

    def write(self, at: int, data: memoryview) -> None:
        """Put bytes at byte ``at`` and on; ``data`` may be reused afterwards."""
        ...


class HostTarget:
    """Host memory. Keeps it alive."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view: memoryview = view

    def write(self, at: int, data: memoryview) -> None:
        """See ``Target``."""
        if len(data) < _MANY:
            self.view[at : at + len(data)] = data
        else:  # numpy lets other threads run meanwhile, a memoryview does not
            np.copyto(np.frombuffer(self.view[at : at + len(data)], np.uint8), np.frombuffer(data, np.uint8))


class DeviceTarget:
    """A flat uint8 tensor on a device. Each write has arrived when it returns."""

    __slots__ = ("_flat",)
    view: None = None

    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def write(self, at: int, data: memoryview) -> None:
        """See ``Target``."""
        self._flat[at : at + len(data)].copy_(torch.frombuffer(data, dtype=torch.uint8))


def target_of(flat: torch.Tensor) -> Target:
    """The target for a flat, contiguous uint8 tensor."""
    return HostTarget(flat.numpy().data) if flat.device.type == "cpu" else DeviceTarget(flat)


class Region:
    """New memory for one range of the logical string on one device; all tensors of the range are views of it."""

    __slots__ = ("device", "memory", "nbytes", "path", "start")

    def __init__(self, start: int, nbytes: int, device: torch.device, path: Path) -> None:
        self.start, self.nbytes, self.device, self.path = start, nbytes, device, path
        self.memory: torch.Tensor | None = None

    def tensor(self, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        """A tensor in this memory; ``offset`` in bytes."""
        if self.memory is None:
            raise RuntimeError("the region has no memory yet")
        empty = torch.empty(0, dtype=dtype, device=self.device)
        return empty.set_(self.memory.untyped_storage(), offset // dtype.itemsize, shape, strides)


class Small(arenas.Small, Protocol):
    """A tensor that may be small enough for an arena.

    Attributes:
        alone: it is, and fills its region.
        region: where it goes if the region turns out to be shared.
    """

    alone: bool
    region: Region | None


class Layout:
    """All that is to be filled: gathers wants first, takes memory afterwards, once it is known to be enough."""

    def __init__(self) -> None:
        self.wants: list[Want] = []
        self.targets: list[Target] = []
        self._owners: list[Path | Arena] = []  # for each target, what is in it
        self._regions: dict[tuple[int, int, torch.device], Region] = {}
        self._smalls: dict[tuple[int, int], Small] = {}  # new ones, by region
        self._lives: list[Small] = []
        self._arenas: list[Arena] = []
        self._extra = 0

    def region(self, start: int, nbytes: int, device: torch.device, path: Path) -> Region:
        """The region for this range on this device, one for all who ask."""
        key = (start, nbytes, device)
        if key not in self._regions:
            self._regions[key] = Region(*key, path)
            small = self._smalls.pop((start, nbytes), None) if device.type == "cpu" else None
            if small is not None:
                small.region = self._regions[key]
        return self._regions[key]

    def join(self, small: Small) -> bool:
        """Let an arena deliver a host tensor; False if it is not alone in its region, or not small."""
        if not small.alone:
            return False
        if small.into is not None:
            self._lives.append(small)
            return True
        key = (small.leaf.region, small.leaf.region_bytes)
        if key in self._smalls or (*key, _CPU) in self._regions:
            return False
        self._smalls[key] = small
        return True

    def claim(self, nbytes: int) -> None:
        """Announce host memory that someone else will take."""
        self._extra += nbytes

    def fill(self, start: int, nbytes: int, target: Target, owner: Path | Arena) -> None:
        """Have bytes ``[start, start + nbytes)`` of the logical string put into a target."""
        if nbytes:
            self.wants.append(Want(start, nbytes, len(self.targets)))
            self.targets.append(target)
            self._owners.append(owner)

    def path_of(self, target: int, at: int) -> Path:
        """Of a value that has byte ``at`` of a target."""
        owner = self._owners[target]
        return owner.path_at(at) if isinstance(owner, Arena) else owner

    def check(self) -> None:
        """Refuse what this machine could never hold, before any memory is taken.

        A tree may name far more bytes than the file has: expanded tensors, overlapping regions, zeros well packed.
        """
        needed = self._extra + sum(r.nbytes for r in self._regions.values() if r.device.type == "cpu")
        needed += sum(nbytes for _, nbytes in self._smalls)
        if needed > physical_memory():
            raise FormatError(
                f"{needed} bytes of host memory are needed, more than this machine has", defect="larger than memory"
            )

    def allocate(self) -> None:
        """Take memory for the regions, and want them filled. Those on the meta device have none and want nothing."""
        for region in self._regions.values():
            region.memory = in_large_pages(torch.empty(region.nbytes, dtype=torch.uint8, device=region.device))
            if region.device != _META:
                self.fill(region.start, region.nbytes, target_of(region.memory), region.path)
        for arena in arenas.arenas_for([*self._smalls.values(), *self._lives]):
            self._arenas.append(arena)
            self.fill(arena.start, arena.nbytes, target_of(arena.allocate()), arena)

    def settle(self) -> None:
        """Hand out the small tensors, once everything has been read. Nothing can be filled afterwards."""
        self.targets.clear()  # they would keep every arena's memory to the end
        while self._arenas:
            self._arenas.pop().hand_out()


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
