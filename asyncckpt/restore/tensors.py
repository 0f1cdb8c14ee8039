"""Dense tensors: what a leaf claims is checked first, then it gets memory, then bytes, then it becomes a tensor.

Tensors of one region come back as views of one memory, each with a version counter of its own. Dense layouts keep
their strides. A tensor whose elements overlap (an expanded one) comes back contiguous and independent.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from asyncckpt.errors import FormatError
from asyncckpt.manifest.format import TensorLeaf, check_leaf, read_leaf
from asyncckpt.manifest.tree import Path, render
from asyncckpt.restore.locations import Locate
from asyncckpt.restore.memory import Layout, Region, target_of

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def dtype_of(name: str, what: str) -> torch.dtype:
    """The dtype of this name, by torch's own spelling of it."""
    found = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(found, torch.dtype) or str(found) != f"torch.{name}":
        raise FormatError(f"{what}: unknown dtype {name!r:.80}", defect="unknown dtype")
    return found


def parse_tensor(args: list[Any], path: Path, raw_bytes: int) -> tuple[TensorLeaf, torch.dtype]:
    """A tensor leaf that keeps all rules, and its dtype."""
    what = render(path) or "the state"
    leaf = read_leaf(TensorLeaf, args, what)
    dtype = dtype_of(leaf.dtype, what)
    check_leaf(leaf, raw_bytes, itemsize=dtype.itemsize, what=what)
    if leaf.offset % dtype.itemsize:
        raise FormatError(f"{what}: its offset is no multiple of the element width", defect="misaligned tensor")
    if "g" in leaf.flags and not (dtype.is_floating_point or dtype.is_complex):
        raise FormatError(f"{what}: a {leaf.dtype} tensor cannot require a gradient", defect="gradient of integers")
    return leaf, dtype


def strides_of(leaf: TensorLeaf) -> tuple[int, ...]:
    """The leaf's strides in elements."""
    return _contiguous(leaf.shape) if leaf.strides is None else leaf.strides


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill one run of memory, each once: contiguous, or a permutation of that."""
    return spread(shape, strides) == math.prod(shape) and not overlaps(shape, strides)


def overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements may be one place in memory (sure to be False only where strides nest)."""
    reach = 0
    for stride, n in sorted((stride, n) for n, stride in zip(shape, strides, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (n - 1) * stride
    return False


def spread(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last in memory, both included."""
    if not all(shape):
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def raw_view(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor, flat, in order of memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def fits_in_place(leaf: TensorLeaf, dtype: torch.dtype, tensor: torch.Tensor) -> bool:
    """Whether the saved bytes may be put into this tensor's memory as they are."""
    strides = strides_of(leaf)
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.dtype == dtype
        and tensor.device.type != "meta"
        and tuple(tensor.shape) == leaf.shape
        and _same_order(leaf.shape, strides, tensor.stride())
        and is_dense(leaf.shape, strides)
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
    )


def _same_order(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two layouts agree; strides of dimensions of one element mean nothing."""
    return all(a == b for n, a, b in zip(shape, one, other, strict=True) if n > 1)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor on its way. Made before any memory is taken; ``value()`` once the bytes are there.

    Attributes:
        region: the memory it will be a view of; None if ``ready`` is the tensor already.
    """

    leaf: TensorLeaf
    dtype: torch.dtype
    region: Region | None
    ready: torch.Tensor | None = None

    def value(self) -> torch.Tensor:
        """The tensor; the destination itself if it was filled in place."""
        if self.ready is not None:
            return self.ready
        assert self.region is not None  # noqa: S101 - a slot has one or the other
        tensor = self.region.tensor(self.dtype, self.leaf.offset, self.leaf.shape, strides_of(self.leaf))
        if _overlapping(self.leaf):
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        return _flagged(tensor, self.leaf.flags)


def new_tensor(args: list[Any], path: Path, raw_bytes: int, layout: Layout, locate: Locate) -> TensorSlot:
    """A slot for a tensor in memory of its own, or in that of its region."""
    leaf, dtype = parse_tensor(args, path, raw_bytes)
    device = locate(path, leaf)
    if not math.prod(leaf.shape):
        return TensorSlot(leaf, dtype, None, _empty(leaf, dtype, device, path))
    if _overlapping(leaf) and device.type == "cpu":
        layout.claim(math.prod(leaf.shape) * dtype.itemsize)
    return TensorSlot(leaf, dtype, layout.region(leaf.region, leaf.region_bytes, device, path))


def tensor_into(
    args: list[Any], path: Path, raw_bytes: int, layout: Layout, locate: Locate, tensor: torch.Tensor
) -> TensorSlot:
    """A slot that fills ``tensor`` in place if it can; else one like any other."""
    leaf, dtype = parse_tensor(args, path, raw_bytes)
    if not fits_in_place(leaf, dtype, tensor):
        return new_tensor(args, path, raw_bytes, layout, locate)
    torch.autograd.graph.increment_version(tensor)  # what was computed from the old values must not be used now
    if tensor.numel():
        nbytes = tensor.numel() * dtype.itemsize
        layout.fill(leaf.region + leaf.offset, nbytes, target_of(raw_view(tensor)), path)
    return TensorSlot(leaf, dtype, None, tensor)


def _overlapping(leaf: TensorLeaf) -> bool:
    return leaf.strides is not None and overlaps(leaf.shape, leaf.strides)


def _empty(leaf: TensorLeaf, dtype: torch.dtype, device: torch.device, path: Path) -> torch.Tensor:
    try:
        return _flagged(torch.empty(leaf.shape, dtype=dtype, device=device), leaf.flags)
    except RuntimeError as error:
        what = render(path) or "the state"
        raise FormatError(f"{what}: torch has no tensor of shape {leaf.shape}", defect="impossible shape") from error


def _flagged(tensor: torch.Tensor, flags: str) -> torch.Tensor:
    if "p" in flags:
        return torch.nn.Parameter(tensor, requires_grad="g" in flags)
    return tensor.requires_grad_() if "g" in flags else tensor
