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
    """

    group: Group
    nbytes: int
    tensor: torch.Tensor | None = None
    array: npt.NDArray[np.uint8] | None = None

    @property
    def device(self) -> torch.device:
        """Where the bytes are now."""
        return self.tensor.device if self.tensor is not None else HOST

    def flat_bytes(self) -> torch.Tensor:
        """The bytes as one flat uint8 tensor: the live memory itself, or a copy if that has holes.

        On a device the copy is enqueued on the current stream.
        """
        if self.tensor is None:
            assert self.array is not None  # noqa: S101 - one of the two is there
            return torch.from_numpy(self.array)
        return bytes_of(self.tensor)


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
