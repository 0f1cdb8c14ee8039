"""The bulk data of a state: its tensors and arrays, measured all at once.

Python code for every tensor is what a save of many tensors costs, so properties are taken in one pass each, by
``map`` over all tensors, and compared as whole lists with those of the save before (``Shapes``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Addresses = npt.NDArray[np.int64]
_DTYPE, _SHAPE, _DEVICE, _GRAD = map(attrgetter, ("dtype", "shape", "device", "requires_grad"))


@dataclass(slots=True)
class Leaves:
    """Tensors in the order of the walk, and flat uint8 views of arrays and bytes; they keep the live data referenced.

    ``described``: what is known of each array besides its bytes, to be compared with the next save's.
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    arrays: list[Bytes] = field(default_factory=list)
    described: list[Any] = field(default_factory=list)

    def addresses(self) -> Addresses:
        """Of the first byte of every leaf: arrays first, then tensors. 0 where there is no memory."""
        of_arrays = [array.__array_interface__["data"][0] for array in self.arrays]
        return np.fromiter((*of_arrays, *map(torch.Tensor.data_ptr, self.tensors)), np.int64)

    def alive(self) -> list[Any]:
        """Everything that must live while bytes are copied by address."""
        return [self.tensors, self.arrays]


class Shapes(NamedTuple):
    """All that decides where things lie, save for addresses. Two states with equal ones have the same layout."""

    kinds: list[type]
    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    strides: list[tuple[int, ...]]
    devices: list[torch.device]
    leafs_with_grad: list[bool]
    described: list[Any]


def shapes_of(leaves: Leaves) -> Shapes:
    """Measure strided tensors; for others strides do not exist, and this raises RuntimeError."""
    tensors = leaves.tensors
    return Shapes(
        list(map(type, tensors)),
        list(map(_DTYPE, tensors)),
        list(map(_SHAPE, tensors)),
        list(map(torch.Tensor.stride, tensors)),
        list(map(_DEVICE, tensors)),
        [grad and tensor.is_leaf for grad, tensor in zip(map(_GRAD, tensors), tensors, strict=True)],
        leaves.described,
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements lie in its storage as they are: dense, and no lazy conjugate or negative."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_neg() or tensor.is_conj())
    )


def none_lazy(tensors: Sequence[torch.Tensor], dtypes: Iterable[torch.dtype]) -> bool:
    """Whether no tensor is a lazy negative, nor, among those of complex numbers, a lazy conjugate."""
    complex_too = any(dtype.is_complex for dtype in set(dtypes))
    return not any(map(torch.Tensor.is_neg, tensors)) and not (complex_too and any(map(torch.Tensor.is_conj, tensors)))
