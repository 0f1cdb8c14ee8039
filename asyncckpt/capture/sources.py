"""How dtypes are coded, and tensors as flat runs of bytes."""

from functools import cache

import numpy as np
import torch

from asyncckpt.capture.layout import Group
from asyncckpt.encode.base import Kind

_WIDTHS = {1, 2, 4, 8}


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in order as flat uint8, without a copy if it is contiguous. Any dtype, any device."""
    whole = tensor.contiguous()
    return memory_of(whole, 0, whole.numel() * whole.element_size())


def memory_of(tensor: torch.Tensor, start: int, nbytes: int) -> torch.Tensor:
    """Bytes of a tensor's storage as flat uint8, ``start`` counted from the tensor's first element; no copy."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    first = int(tensor.storage_offset()) * tensor.element_size() + start
    return flat.set_(tensor.untyped_storage(), first, (nbytes,), (1,))


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
