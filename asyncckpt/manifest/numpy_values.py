"""numpy's scalars and simple dtypes as JSON nodes and back, by the rules of values.py."""

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from asyncckpt.manifest.values import Args, Node, NotPlainError, decode_bytes, encode_str, from_base64, text, to_base64

_SCALAR_DTYPE = re.compile(r"[<|][biufcmMV][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?|[qQ]")
_ANY_DTYPE = re.compile(r"[<>|][biufcmMVSUO][0-9]{0,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?|[qQ]")


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """``dtype.str``, or the one-letter code where two C types share that."""
    name = dtype.str if np.dtype(dtype.str).type is dtype.type else dtype.char
    if dtype.names is not None or dtype.subdtype is not None or dtype.metadata or np.dtype(name) != dtype:
        raise NotPlainError(f"its dtype {dtype} is not a simple one; a numpy array of this dtype can be saved")
    return name


def _dtype(name: Any, pattern: re.Pattern[str]) -> np.dtype[Any]:
    if not pattern.fullmatch(name):
        raise ValueError("unknown dtype")
    dtype: np.dtype[Any] = np.dtype(name)
    if name not in {dtype.str, dtype.char}:
        raise ValueError("a dtype must be written in its one form")
    return dtype


def _encode_scalar(value: Any) -> Node:
    return ["numpy", _dtype_name(value.dtype), to_base64(value.tobytes())]


def _scalar(args: Args) -> Any:
    name, encoded = args
    dtype, data = _dtype(name, _SCALAR_DTYPE), from_base64(encoded)
    if len(data) != dtype.itemsize or (dtype.kind == "b" and data not in {b"\0", b"\1"}):
        raise ValueError(f"these bytes are no {name}")
    return np.frombuffer(bytearray(data), dtype)[0] if data else np.zeros((), dtype)[()]


def _encode_numpy_str(value: str) -> Node:
    return ["numpy.str_", encode_str(str.__str__(value))]  # numpy's own str() drops trailing NULs


def _numpy_str(args: Args) -> np.str_:
    (node,) = args
    return np.str_(text(node))


def _encode_numpy_bytes(value: bytes) -> Node:
    return ["numpy.bytes_", to_base64(value)]


def _numpy_bytes(args: Args) -> np.bytes_:
    return np.bytes_(decode_bytes(args))


def _encode_dtype(value: np.dtype[Any]) -> Node:
    return ["numpy.dtype", _dtype_name(value)]


def _numpy_dtype(args: Args) -> np.dtype[Any]:
    (name,) = args
    return _dtype(name, _ANY_DTYPE)


# By exact type; these never fail.
NUMPY_ENCODERS: Final[dict[type, Callable[[Any], Node]]] = {
    **dict.fromkeys(set(np.sctypeDict.values()) - {np.object_, np.void}, _encode_scalar),
    np.str_: _encode_numpy_str,
    np.bytes_: _encode_numpy_bytes,
}

# By exact type; these raise NotPlainError for what they cannot write.
NUMPY_PICKY_ENCODERS: Final[dict[type, Callable[[Any], Node]]] = {
    np.void: _encode_scalar,
    **{type(np.dtype(code)): _encode_dtype for code in "?bBhHiIlLqQefdgFDGSUVOMm"},
}

# By tag; these raise one of values.REFUSALS.
NUMPY_DECODERS: Final[dict[str, Callable[[Args], Any]]] = {
    "numpy": _scalar,
    "numpy.str_": _numpy_str,
    "numpy.bytes_": _numpy_bytes,
    "numpy.dtype": _numpy_dtype,
}
