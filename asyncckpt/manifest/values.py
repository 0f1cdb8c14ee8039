"""Plain values as JSON nodes and back: everything that is no container and holds no bulk data.

A JSON scalar stands for itself; every other value is a list ``[tag, ...]``. Types are exact: a subclass is another
type. Encoders copy; decoders take the node's arguments as they came from a file that nobody has checked, and raise
one of ``REFUSALS`` for whatever does not look as the encoder would have written it.
"""

import base64
import datetime as dt
import math
import pathlib
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from types import NoneType
from typing import Any, Final

Node = Any
Args = list[Any]

REFUSALS: Final = (ValueError, TypeError, ArithmeticError, LookupError, NotImplementedError)
JSON_SCALARS: Final = frozenset({NoneType, bool, int, float, str})
_HEX = re.compile(r"-?[0-9a-f]+")
_FLOAT_BITS = re.compile(r"[0-9a-f]{16}")


class NotPlainError(Exception):
    """A value of a known type that holds something that cannot be written; the text says what."""


# ---- numbers and text ----------------------------------------------------------------------------------------------


def _same(value: Any) -> Node:
    return value


def encode_int(value: int) -> Node:
    """An int; beyond 64 bits as hex digits, which have no length limit and no quadratic cost."""
    return value if -(2**63) <= value < 2**64 else ["int", format(value, "x")]


def _big_int(args: Args) -> int:
    (digits,) = args
    value = int(digits, 16) if _HEX.fullmatch(digits) else 0
    if type(encode_int(value)) is int or format(value, "x") != digits:
        raise ValueError("an int must be written in its one form")
    return value


def whole(node: Node) -> int:
    """An int from its node."""
    if type(node) is int:
        return node
    return _big_int(_arguments(node, "int"))


def encode_float(value: float) -> Node:
    """A float; NaN (every bit of it) and the infinities as the 16 hex digits of their IEEE 754 form."""
    return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]


def _special_float(args: Args) -> float:
    (bits,) = args
    if not _FLOAT_BITS.fullmatch(bits):
        raise ValueError("a float needs 16 hex digits")
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    if math.isfinite(value):
        raise ValueError("a finite float must be a JSON number")
    return float(value)


def _real(node: Node) -> float:
    return node if type(node) is float else _special_float(_arguments(node, "float"))


def _encode_complex(value: complex) -> Node:
    return ["complex", encode_float(value.real), encode_float(value.imag)]


def _complex(args: Args) -> complex:
    real, imag = args
    return complex(_real(real), _real(imag))


def encode_str(value: str) -> Node:
    """A str; with lone surrogates, which JSON cannot carry, as base64 of its UTF-8-like bytes."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return ["str", to_base64(value.encode("utf-8", "surrogatepass"))]
    return value


def _surrogate_str(args: Args) -> str:
    (data,) = args
    return from_base64(data).decode("utf-8", "surrogatepass")


def text(node: Node) -> str:
    """A str from its node."""
    return node if type(node) is str else _surrogate_str(_arguments(node, "str"))


def _arguments(node: Node, tag: str) -> Args:
    if type(node) is not list or not node or node[0] != tag:
        raise TypeError(f"not of type {tag}")
    return node[1:]


def to_base64(data: bytes | bytearray) -> str:
    """Standard base64, padded."""
    return base64.b64encode(data).decode("ascii")


def from_base64(data: Any) -> bytes:
    """Bytes of standard base64; strict about alphabet and padding."""
    if type(data) is not str:
        raise TypeError("base64 must be a string")
    return base64.b64decode(data, validate=True)


def decode_bytes(args: Args) -> bytes:
    """Bytes from the arguments of their node."""
    (data,) = args
    return from_base64(data)


def _bytearray(args: Args) -> bytearray:
    return bytearray(decode_bytes(args))


def _encode_range(value: range) -> Node:
    return ["range", encode_int(int(value.start)), encode_int(int(value.stop)), encode_int(int(value.step))]


def _range(args: Args) -> range:
    start, stop, step = args
    return range(whole(start), whole(stop), whole(step))


def _encode_decimal(value: Decimal) -> Node:
    return ["Decimal", str(value)]


def _decimal(args: Args) -> Decimal:
    (digits,) = args
    value = Decimal(digits) if type(digits) is str else Decimal(0)
    if str(value) != digits:
        raise ValueError("a Decimal must be written in its one form")
    return value


# ---- paths and times -----------------------------------------------------------------------------------------------

_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
    "PosixPath": pathlib.PosixPath,
    "WindowsPath": pathlib.WindowsPath,
}
_HERE: Final = type(pathlib.Path()).__name__  # the other system's concrete paths come back pure


def _encode_path(value: pathlib.PurePath) -> Node:
    return ["path", type(value).__name__, encode_str(str(value))]


def _path(args: Args) -> pathlib.PurePath:
    name, spelled = args
    foreign = name in {"PosixPath", "WindowsPath"} and name != _HERE
    return _PATHS[f"Pure{name}" if foreign else name](text(spelled))


def _encode_date(value: dt.date) -> Node:
    return ["date", value.year, value.month, value.day]


def _encode_timedelta(value: dt.timedelta) -> Node:
    return ["timedelta", value.days, value.seconds, value.microseconds]


def _encode_timezone(value: dt.timezone) -> Node:
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]  # the only way to an explicit name
    return ["timezone", *_encode_timedelta(offset)[1:], encode_str(name[0]) if name else None]


def _timezone(args: Args) -> dt.timezone:
    *offset, name = args
    delta = _timedelta(offset)
    return dt.timezone(delta) if name is None else dt.timezone(delta, text(name))


def _encode_zone(zone: dt.tzinfo | None) -> Node:
    if zone is None:
        return None
    if type(zone) is not dt.timezone:
        raise NotPlainError(f"its time zone is a {type(zone).__name__}, not a fixed datetime.timezone")
    return _encode_timezone(zone)


def _zone(node: Node) -> dt.timezone | None:
    return None if node is None else _timezone(_arguments(node, "timezone"))


def _encode_time(value: dt.time) -> Node:
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return ["time", *clock, value.fold, _encode_zone(value.tzinfo)]


def _encode_datetime(value: dt.datetime) -> Node:
    day = [value.year, value.month, value.day]
    return ["datetime", *day, *_encode_time(value.timetz())[1:]]


def _integers(args: Args, count: int) -> list[int]:
    if len(args) != count or any(type(arg) is not int for arg in args):
        raise TypeError(f"{count} whole numbers expected")
    return args


def _date(args: Args) -> dt.date:
    return dt.date(*_integers(args, 3))


def _timedelta(args: Args) -> dt.timedelta:
    value = dt.timedelta(*_integers(args, 3))
    if _encode_timedelta(value)[1:] != args:
        raise ValueError("a timedelta must be written in its one form")
    return value


def _time(args: Args) -> dt.time:
    *numbers, zone = args
    *clock, fold = _integers(numbers, 5)
    hour, minute, second, microsecond = clock
    return dt.time(hour, minute, second, microsecond, _zone(zone), fold=fold)


def _datetime(args: Args) -> dt.datetime:
    return dt.datetime.combine(_date(args[:3]), _time(args[3:]))


# ---- tables --------------------------------------------------------------------------------------------------------

# By exact type; these never fail.
ENCODERS: Final[dict[type, Callable[[Any], Node]]] = {
    NoneType: _same,
    bool: _same,
    int: encode_int,
    float: encode_float,
    complex: _encode_complex,
    str: encode_str,
    range: _encode_range,
    Decimal: _encode_decimal,
    **dict.fromkeys(_PATHS.values(), _encode_path),
    dt.date: _encode_date,
    dt.timedelta: _encode_timedelta,
    dt.timezone: _encode_timezone,
}

# By exact type; these raise NotPlainError for what they cannot write.
PICKY_ENCODERS: Final[dict[type, Callable[[Any], Node]]] = {
    dt.time: _encode_time,
    dt.datetime: _encode_datetime,
}

# By tag; these raise one of REFUSALS.
DECODERS: Final[dict[str, Callable[[Args], Any]]] = {
    "int": _big_int,
    "float": _special_float,
    "complex": _complex,
    "str": _surrogate_str,
    "bytes": decode_bytes,
    "bytearray": _bytearray,
    "range": _range,
    "Decimal": _decimal,
    "path": _path,
    "date": _date,
    "time": _time,
    "datetime": _datetime,
    "timedelta": _timedelta,
    "timezone": _timezone,
}
