"""Dense tensors: what a leaf claims is checked first, then it gets memory, then bytes, then it becomes a tensor.

Tensors of one region come back as views of one memory, each with a version counter of its own. Dense layouts keep
their strides. A tensor whose elements overlap (an expanded one) comes back contiguous and independent.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch

from asyncckpt.errors import FormatError
from asyncckpt.manifest.format import TensorLeaf, check_leaf, read_leaf
from asyncckpt.manifest.tree import Path, render
from asyncckpt.restore.arenas import CUT, SMALL
from asyncckpt.restore.locations import Locate
from asyncckpt.restore.memory import Layout, Region, target_of

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def dtype_of(name: str, what: str) -> torch.dtype:
    """The dtype of this name, by torch's own spelling of it."""
    found = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(found, torch.dtype) or str(found) != f"torch.{name}":
        raise FormatError(f"{what}: unknown dtype {name!r:.80}", defect="unknown dtype")
    return found


@dataclass(frozen=True, slots=True)
class Form:
    """What is the same for all tensors of one dtype, shape, strides and flags; those of a model have few forms.

    Attributes:
        strides: in elements.
        nbytes: of the elements.
        reach: bytes from the first element to the end of the last one in memory.
        overlapping: two elements may be one place in memory.
        cuttable: contiguous, and small enough and of a dtype for an arena.
    """

    dtype: torch.dtype
    strides: tuple[int, ...]
    nbytes: int
    reach: int
    overlapping: bool
    cuttable: bool


class Forms:
    """Parses tensor leaves. Forms that kept all rules once are not checked again: 100,000 tensors have few."""

    def __init__(self, raw_bytes: int) -> None:
        self._raw_bytes = raw_bytes
        self._known: dict[tuple[object, ...], Form] = {}

    def parse(self, args: list[Any], path: Path) -> tuple[TensorLeaf, Form]:
        """A tensor leaf that keeps all rules."""
        try:
            leaf = msgspec.convert(args, TensorLeaf)
        except msgspec.ValidationError:
            leaf = read_leaf(TensorLeaf, args, _name(path))  # raises, by name
        key = (leaf.dtype, leaf.shape, leaf.strides, leaf.device, leaf.flags)
        form = self._known.get(key)
        if form is None or not self._is_inside(leaf, form):
            form = self._known[key] = self._checked(leaf, _name(path))
        return leaf, form

    def _is_inside(self, leaf: TensorLeaf, form: Form) -> bool:
        """What ``check_leaf`` and ``_checked`` ask of the four fields that differ within a form."""
        return (
            min(leaf.region, leaf.region_bytes, leaf.offset) >= 0
            and leaf.region + leaf.region_bytes <= self._raw_bytes
            and leaf.offset + form.reach <= leaf.region_bytes
            and not leaf.offset % form.dtype.itemsize
        )

    def _checked(self, leaf: TensorLeaf, what: str) -> Form:
        dtype = dtype_of(leaf.dtype, what)
        check_leaf(leaf, self._raw_bytes, itemsize=dtype.itemsize, what=what)
        if leaf.offset % dtype.itemsize:
            raise FormatError(f"{what}: its offset is no multiple of the element width", defect="misaligned tensor")
        if "g" in leaf.flags and not (dtype.is_floating_point or dtype.is_complex):
            raise FormatError(f"{what}: a {leaf.dtype} tensor cannot require a gradient", defect="gradient of integers")
        return _form(leaf, dtype)


def _form(leaf: TensorLeaf, dtype: torch.dtype) -> Form:
    strides, nbytes = strides_of(leaf), math.prod(leaf.shape) * dtype.itemsize
    return Form(
        dtype,
        strides,
        nbytes,
        spread(leaf.shape, strides) * dtype.itemsize,
        overlapping=leaf.strides is not None and overlaps(leaf.shape, leaf.strides),
        cuttable=leaf.strides is None and 0 < nbytes < SMALL and dtype in CUT,
    )


def _name(path: Path) -> str:
    return render(path) or "the state"


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


def fits_in_place(leaf: TensorLeaf, form: Form, tensor: torch.Tensor) -> bool:
    """Whether the saved bytes may be put into this tensor's memory as they are."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.dtype == form.dtype
        and tensor.device.type != "meta"
        and tensor.shape == leaf.shape
        and (tensor.is_contiguous() if leaf.strides is None else _same_order(leaf, form, tensor))
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
    )


def _same_order(leaf: TensorLeaf, form: Form, tensor: torch.Tensor) -> bool:
    """Whether two dense layouts agree; strides of dimensions of one element mean nothing."""
    agree = all(a == b for n, a, b in zip(leaf.shape, form.strides, tensor.stride(), strict=True) if n > 1)
    return agree and is_dense(leaf.shape, form.strides)


class TensorSlot:
    """One tensor on its way. Made before any memory is taken; ``value()`` once the bytes are there.

    Attributes:
        form: what is known of its leaf.
        alone: it may go into an arena, unless another one wants its region too.
        path: of the value.
        region: the memory it will be a view of, if it shares it or is large.
        into: the live tensor that an arena is to copy it into.
        ready: the tensor, if it is one already.
    """

    __slots__ = ("alone", "dtype", "form", "into", "leaf", "path", "ready", "region")

    def __init__(self, leaf: TensorLeaf, form: Form, path: Path) -> None:
        self.leaf, self.form, self.path, self.dtype = leaf, form, path, form.dtype
        self.region: Region | None = None
        self.alone = form.cuttable and leaf.region_bytes == form.nbytes
        self.into: torch.Tensor | None = None
        self.ready: torch.Tensor | None = None

    def value(self) -> torch.Tensor:
        """The tensor; the destination itself if it was filled in place."""
        if self.ready is None:
            self.ready = self._in_region()
        return self.ready if self.ready is self.into or not self.leaf.flags else _flagged(self.ready, self.leaf.flags)

    def _in_region(self) -> torch.Tensor:
        assert self.region is not None  # noqa: S101 - it was given one, or an arena has handed it out
        tensor = self.region.tensor(self.dtype, self.leaf.offset, self.leaf.shape, self.form.strides)
        return tensor.clone(memory_format=torch.contiguous_format) if self.form.overlapping else tensor


def new_tensor(leaf: TensorLeaf, form: Form, path: Path, layout: Layout, locate: Locate) -> TensorSlot:
    """A slot for a tensor in memory of its own, or in that of its region."""
    slot = TensorSlot(leaf, form, path)
    device = locate(path, leaf)
    if not form.nbytes:
        slot.ready = _empty(leaf, form.dtype, device, path)
        return slot
    if form.overlapping and device.type == "cpu":
        layout.claim(form.nbytes)
    if device.type != "cpu" or not layout.join(slot):
        slot.region = layout.region(leaf.region, leaf.region_bytes, device, path)
    return slot


def tensor_into(leaf: TensorLeaf, form: Form, path: Path, layout: Layout, tensor: torch.Tensor) -> TensorSlot:
    """A slot that fills ``tensor``, which must fit, in place."""
    slot = TensorSlot(leaf, form, path)
    slot.into = tensor
    if tensor.device.type == "cpu" and layout.join(slot):
        return slot
    slot.ready = tensor
    torch.autograd.graph.increment_version(tensor)  # what was computed from the old values must not be used now
    if form.nbytes:
        layout.fill(leaf.region + leaf.offset, form.nbytes, target_of(raw_view(tensor)), path)
    return slot


def _empty(leaf: TensorLeaf, dtype: torch.dtype, device: torch.device, path: Path) -> torch.Tensor:
    try:
        return torch.empty(leaf.shape, dtype=dtype, device=device)
    except RuntimeError as error:
        raise FormatError(
            f"{_name(path)}: torch has no tensor of shape {leaf.shape}", defect="impossible shape"
        ) from error


def _flagged(tensor: torch.Tensor, flags: str) -> torch.Tensor:
    if "p" in flags:
        return torch.nn.Parameter(tensor, requires_grad="g" in flags)
    return tensor.requires_grad_() if "g" in flags else tensor
