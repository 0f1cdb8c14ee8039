"""What is to be copied into a snapshot: flat runs of bytes with a kind, taken from live memory."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from asyncckpt.capture.layout import Group
from asyncckpt.encode.base import Kind

HOST = torch.device("cpu")
_WIDTHS = {1, 2, 4, 8}


@dataclass(slots=True)
class Source:
    """One region's bytes.

    Attributes:
        group: how it is coded, and its dtype.
        nbytes: length in the logical byte string.
        tensor: flat or of any shape; its elements in order are the bytes. None if ``array`` is given.
        array: flat uint8 view of host memory. None if ``tensor`` is given.
        gathered: the flat bytes while a copy of a tensor with holes is under way that takes several pieces.
    """

    group: Group
    nbytes: int
    tensor: torch.Tensor | None = None
    array: npt.NDArray[np.uint8] | None = None
    gathered: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the bytes are now."""
        return self.tensor.device if self.tensor is not None else HOST

    def piece(self, start: int, nbytes: int) -> torch.Tensor:
        """Bytes of a tensor as flat uint8: the live memory itself, or a copy if that has holes.

        Pieces are asked for in order. The copy is made once, for the first, and let go with the last; on a device it
        is enqueued on the current stream, which must be the same for all.
        """
        assert self.tensor is not None  # noqa: S101 - arrays are copied by numpy
        flat = bytes_of(self.tensor) if self.gathered is None else self.gathered
        self.gathered = flat if start + nbytes < self.nbytes else None
        return flat[start : start + nbytes]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in order as flat uint8, without a copy if it is contiguous. Any dtype, any device."""
    whole = tensor.contiguous()
    flat = torch.empty(0, dtype=torch.uint8, device=whole.device)
    start = whole.storage_offset() * whole.element_size()
    return flat.set_(whole.untyped_storage(), start, (whole.numel() * whole.element_size(),), (1,))


def storage_range(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Bytes ``[start, stop)`` of a tensor's storage as flat uint8; no copy."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), start, (stop - start,), (1,))


@cache
def group_of(dtype: torch.dtype) -> Group:
    """How elements of a dtype are coded."""
    return Group(_kind_of(dtype), name_of(dtype))


def _kind_of(dtype: torch.dtype) -> Kind:
    width = dtype.itemsize
    if dtype.is_complex:
        return _kind("f", width // 2)
    if dtype.is_floating_point and not name_of(dtype).startswith("float4"):
        return _kind("f", width)
    return _kind("b", width)


def _kind(letter: str, width: int) -> Kind:
    return f"{letter}{width}" if width in _WIDTHS else "b1"  # type: ignore[return-value]


@cache
def name_of(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def array_group(dtype: np.dtype[np.generic]) -> Group:
    """How a numpy array's elements are coded."""
    native = dtype.isnative and dtype.itemsize in _WIDTHS
    if dtype.kind == "f" and native:
        return Group(_kind("f", dtype.itemsize), f"numpy.{dtype.str}")
    if dtype.kind == "c" and dtype.isnative:
        return Group(_kind("f", dtype.itemsize // 2), f"numpy.{dtype.str}")
    width = dtype.itemsize if dtype.kind in "iumM" and native else 1
    return Group(_kind("b", width), f"numpy.{dtype.str}")
