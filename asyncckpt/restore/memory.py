"""Memory that bytes of a checkpoint are placed in: on the host, or on a device through a host buffer."""

import os
from typing import Final, Protocol

import torch

from asyncckpt.errors import FormatError
from asyncckpt.manifest.tree import Path
from asyncckpt.restore.plan import Want

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
        self.view[at : at + len(data)] = data


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


class Layout:
    """All that is to be filled: gathers wants first, takes memory afterwards, once it is known to be enough."""

    def __init__(self) -> None:
        self.wants: list[Want] = []
        self.targets: list[Target] = []
        self.paths: list[Path] = []  # for each target, of a value in it
        self._regions: dict[tuple[int, int, torch.device], Region] = {}
        self._extra = 0

    def region(self, start: int, nbytes: int, device: torch.device, path: Path) -> Region:
        """The region for this range on this device, one for all who ask."""
        key = (start, nbytes, device)
        if key not in self._regions:
            self._regions[key] = Region(*key, path)
        return self._regions[key]

    def claim(self, nbytes: int) -> None:
        """Announce host memory that someone else will take."""
        self._extra += nbytes

    def fill(self, start: int, nbytes: int, target: Target, path: Path) -> None:
        """Have bytes ``[start, start + nbytes)`` of the logical string put into a target."""
        if nbytes:
            self.wants.append(Want(start, nbytes, len(self.targets)))
            self.targets.append(target)
            self.paths.append(path)

    def check(self) -> None:
        """Refuse what this machine could never hold, before any memory is taken.

        A tree may name far more bytes than the file has: expanded tensors, overlapping regions, zeros well packed.
        """
        needed = self._extra + sum(r.nbytes for r in self._regions.values() if r.device.type == "cpu")
        if needed > physical_memory():
            raise FormatError(
                f"{needed} bytes of host memory are needed, more than this machine has", defect="larger than memory"
            )

    def allocate(self) -> None:
        """Take memory for the regions, and want them filled. Those on the meta device have none and want nothing."""
        for region in self._regions.values():
            region.memory = torch.empty(region.nbytes, dtype=torch.uint8, device=region.device)
            if region.device != _META:
                self.fill(region.start, region.nbytes, target_of(region.memory), region.path)


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
