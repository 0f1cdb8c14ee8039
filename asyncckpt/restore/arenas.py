"""Small tensors on the host, maybe 100,000 of them: read many at a time, then handed out by one call of torch.

Neighbours in the logical string are read into one *arena*. When everything has been read, torch copies the arena into
the live tensors that wait for the bytes, or into new ones that own their memory like any others, and the arena is gone.
Tensors that share memory do not come here.
"""

import mmap
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import torch

from asyncckpt.manifest.format import TensorLeaf
from asyncckpt.manifest.tree import Path

SMALL: Final = 16 << 10  # bytes; from here on a tensor is worth a read of its own
_ARENA: Final = 1 << 20  # bytes
_GAP: Final = 64  # bytes between groups of the logical string
# Those that torch can cut; the exotic ones are read one by one.
CUT: Final = frozenset(
    {
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip


class Small(Protocol):
    """One small tensor on its way: contiguous, alone in its region, not empty, of one of the dtypes ``CUT``.

    Attributes:
        dtype: as in the leaf.
        path: of the value.
        into: the live tensor, contiguous too, that is to get the bytes; None for a new one.
        ready: where the tensor is put when it has been read.
    """

    leaf: TensorLeaf
    dtype: torch.dtype
    path: Path
    into: torch.Tensor | None
    ready: torch.Tensor | None


class Arena:
    """Memory for small tensors of one dtype that lie close together in the logical string."""

    def __init__(self, first: Small) -> None:
        self.start = self._end = first.leaf.region
        self._dtype, self._live = first.dtype, first.into is not None
        self._members: list[Small] = []
        self._sizes: list[int] = []  # elements of every tensor and of every gap
        self._places: list[int] = []  # where in that list the tensors are
        self.memory = torch.empty(0)

    @property
    def nbytes(self) -> int:
        """From the first tensor to the end of the last one."""
        return self._end - self.start

    def add(self, small: Small) -> bool:
        """Take one more, behind the others; False if it does not belong here."""
        gap, width = small.leaf.region - self._end, self._dtype.itemsize
        if not 0 <= gap <= _GAP or gap % width or self.nbytes >= _ARENA:
            return False
        if small.dtype != self._dtype or (small.into is not None) != self._live:
            return False
        if gap:
            self._sizes.append(gap // width)
        self._places.append(len(self._sizes))
        self._sizes.append(small.leaf.region_bytes // width)
        self._members.append(small)
        self._end += gap + small.leaf.region_bytes
        return True

    def allocate(self) -> torch.Tensor:
        """Take the memory and give it: pages of its own, which the system has back at once when they are let go."""
        self.memory = torch.frombuffer(mmap.mmap(-1, self.nbytes), dtype=torch.uint8)
        return self.memory

    def path_at(self, at: int) -> Path:
        """Of the tensor that holds byte ``at``."""
        starts = [small.leaf.region for small in self._members]
        return self._members[bisect_right(starts, self.start + at) - 1].path

    def hand_out(self) -> None:
        """Give every tensor its bytes, and give the memory back."""
        whole = self.memory.view(self._dtype)
        self.memory = torch.empty(0)
        if self._live:
            self._fill(torch.split_with_sizes(whole, self._sizes))
        else:
            self._make(torch.split_with_sizes_copy(whole, self._sizes))  # type: ignore[func-returns-value,arg-type]

    def _make(self, pieces: Sequence[torch.Tensor]) -> None:
        for small, place in zip(self._members, self._places, strict=True):
            piece, shape = pieces[place], small.leaf.shape
            small.ready = piece if len(shape) == 1 else piece.resize_(shape)

    def _fill(self, pieces: Sequence[torch.Tensor]) -> None:
        live = [small.into for small in self._members if small.into is not None]
        saved = [
            pieces[place] if len(small.leaf.shape) == 1 else pieces[place].view(small.leaf.shape)
            for small, place in zip(self._members, self._places, strict=True)
        ]
        with torch.no_grad():
            torch._foreach_copy_(live, saved)
        for small in self._members:
            small.ready = small.into


def arenas_for(smalls: Iterable[Small]) -> Iterator[Arena]:
    """The arenas that hold them all."""
    arena: Arena | None = None
    for small in sorted(smalls, key=_order):
        if arena is not None and arena.add(small):
            continue
        if arena is not None:
            yield arena
        arena = Arena(small)
        arena.add(small)
    if arena is not None:
        yield arena


def _order(small: Small) -> tuple[bool, str, int]:
    return small.into is not None, small.leaf.dtype, small.leaf.region
