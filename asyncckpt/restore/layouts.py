"""Sparse and quantized tensors: made of dense ones, which are leaves of their own. docs/format.md lists their nodes.

Their invariants are checked by torch while they are made: indices that point outside are a ``FormatError``.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from asyncckpt.errors import FormatError
from asyncckpt.manifest.tree import Path, render
from asyncckpt.restore.tensors import TensorSlot, dtype_of
from asyncckpt.restore.values import count_of

MakeTensor = Callable[[list[Any], Path], TensorSlot]
_Pieces = Sequence[torch.Tensor]


class LayoutSlot:
    """A tensor that is made of dense tensors."""

    __slots__ = ("_args", "_make", "_pieces", "_what")

    def __init__(self, tag: str, args: list[Any], path: Path, tensor: MakeTensor) -> None:
        self._what = render(path) or "the state"
        self._make = LAYOUTS[tag]
        self._args = [arg for arg in args if not _is_tensor(arg)]
        self._pieces = [tensor(arg[1:], path) for arg in args if _is_tensor(arg)]

    def value(self) -> torch.Tensor:
        """See ``Slot``."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls sparse and quantized tensors beta or deprecated
                return self._make(self._args, [piece.value() for piece in self._pieces], self._what)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise FormatError(f"{self._what}: impossible pieces: {error}", defect="impossible pieces") from error


def _is_tensor(node: Any) -> bool:
    return type(node) is list and bool(node) and node[0] == "tensor"


def _sparse_coo(args: list[Any], pieces: _Pieces, what: str) -> torch.Tensor:
    shape, coalesced = args
    indices, values = pieces
    made = torch.sparse_coo_tensor(indices, values, count_of(shape, what), check_invariants=True)
    return made._coalesced_(True) if coalesced is True else made


def _compressed(layout: torch.layout) -> Callable[[list[Any], _Pieces, str], torch.Tensor]:
    def make(args: list[Any], pieces: _Pieces, what: str) -> torch.Tensor:
        (shape,) = args
        compressed, plain, values = pieces
        return torch.sparse_compressed_tensor(
            compressed, plain, values, count_of(shape, what), layout=layout, check_invariants=True
        )

    return make


def _quantized(args: list[Any], pieces: _Pieces, what: str) -> torch.Tensor:
    name, scheme, *numbers = args
    if scheme == "per_tensor_affine":
        (values,), (scale, zero_point) = pieces, numbers
        made: torch.Tensor = torch._make_per_tensor_quantized_tensor(values, scale, zero_point)  # noqa: SLF001 - as torch.load does
    elif scheme == "per_channel_affine":
        (scales, points, values), (axis,) = pieces, numbers
        made = torch._make_per_channel_quantized_tensor(values, scales, points, axis)  # noqa: SLF001
    else:
        raise ValueError(f"unknown scheme {scheme!r:.80}")
    if made.dtype != dtype_of(name, what):
        raise ValueError("the integers are not of the quantized dtype")
    return made


LAYOUTS: Final[dict[str, Callable[[list[Any], _Pieces, str], torch.Tensor]]] = {
    "quantized": _quantized,
    "sparse_coo": _sparse_coo,
    "sparse_csr": _compressed(torch.sparse_csr),
    "sparse_csc": _compressed(torch.sparse_csc),
    "sparse_bsr": _compressed(torch.sparse_bsr),
    "sparse_bsc": _compressed(torch.sparse_bsc),
}
