"""Values with bulk data that are no dense tensors: numpy arrays, long bytes, pickles; and torch's own small values."""

import math
import pickle
from typing import Any, Final, Protocol

import numpy as np
import torch

from asyncckpt.errors import FormatError, RestoreError
from asyncckpt.manifest.format import ArrayLeaf, BytesLeaf, check_leaf, read_leaf
from asyncckpt.manifest.tree import Path, render
from asyncckpt.restore.memory import HostTarget, Layout
from asyncckpt.restore.tensors import dtype_of

_ARRAY_KINDS: Final = frozenset("biufcSUVmM")  # no objects: their bytes are pointers
_DATA_TYPES: Final = frozenset({"bytes", "bytearray", "pickle"})


class Slot(Protocol):
    """One value on its way: wants its bytes when made, gives the value when they are there."""

    def value(self) -> object:
        """The value. Called once, after everything has been read; runs pickles and nothing else from the file."""
        ...


class ArraySlot:
    """A numpy array."""

    __slots__ = ("_array",)

    def __init__(self, args: list[Any], path: Path, raw_bytes: int, layout: Layout) -> None:
        what = render(path) or "the state"
        leaf = read_leaf(ArrayLeaf, args, what)
        dtype = array_dtype(leaf.dtype, what)
        check_leaf(leaf, raw_bytes, itemsize=dtype.itemsize, what=what)
        layout.claim(leaf.region_bytes)
        layout.check()
        self._array = _new_array(leaf, dtype, what)
        if leaf.region_bytes:
            layout.fill(leaf.region, leaf.region_bytes, HostTarget(_flat(self._array, leaf.order)), path)

    def value(self) -> np.ndarray[Any, Any]:
        """See ``Slot``."""
        return self._array


def array_dtype(spelled: Any, what: str) -> np.dtype[Any]:
    """The dtype that an array leaf spells: ``dtype.str``, or ``descr`` as arrays."""
    try:
        descr = _descr(spelled)
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)
    except (TypeError, ValueError, SyntaxError, RecursionError, OverflowError, AttributeError) as error:
        raise FormatError(f"{what}: unknown dtype of an array", defect="unknown dtype") from error
    if dtype.hasobject or dtype.kind not in _ARRAY_KINDS or np.lib.format.dtype_to_descr(dtype) != descr:
        raise FormatError(f"{what}: a dtype that arrays here cannot have", defect="unknown dtype")
    return dtype


def _descr(spelled: Any) -> Any:
    """A ``descr`` has tuples where JSON has arrays."""
    return [_field(entry) for entry in spelled] if type(spelled) is list else spelled


def _field(entry: Any) -> Any:
    if type(entry) is not list or len(entry) not in {2, 3}:
        return None
    name = tuple(entry[0]) if type(entry[0]) is list else entry[0]
    shape = tuple(tuple(part) if type(part) is list else part for part in entry[2:])
    return (name, _descr(entry[1]), *shape)


def _new_array(leaf: ArrayLeaf, dtype: np.dtype[Any], what: str) -> np.ndarray[Any, Any]:
    try:
        order: Any = leaf.order
        return np.empty(leaf.shape, dtype, order)
    except (ValueError, MemoryError) as error:
        raise FormatError(f"{what}: numpy has no array of shape {leaf.shape}", defect="impossible shape") from error


def _flat(array: np.ndarray[Any, Any], order: str) -> memoryview:
    """The array's bytes in order of memory."""
    return (array.T if order == "F" else array).reshape(-1).view(np.uint8).data


class DataSlot:
    """Long ``bytes``, a ``bytearray``, or a pickled value."""

    __slots__ = ("_allow_pickle", "_data", "_kind", "_what")

    def __init__(self, args: list[Any], path: Path, raw_bytes: int, layout: Layout, allow_pickle: bool) -> None:
        self._what = render(path) or "the state"
        self._kind = args[-1] if args else None
        self._allow_pickle = allow_pickle
        if type(self._kind) is not str or self._kind not in _DATA_TYPES:
            raise FormatError(f"{self._what}: unknown kind of data", defect="unknown kind of data")
        self._refuse_pickle()
        leaf = read_leaf(BytesLeaf, args[:-1], self._what)
        check_leaf(leaf, raw_bytes, what=self._what)
        layout.claim(leaf.region_bytes)
        layout.check()
        self._data = bytearray(leaf.region_bytes)
        layout.fill(leaf.region, leaf.region_bytes, HostTarget(memoryview(self._data)), path)

    def _refuse_pickle(self) -> None:
        if self._kind == "pickle" and not self._allow_pickle:
            raise RestoreError(
                f"{self._what} was saved by pickle. Unpickling runs code from the file; if you trust its origin, pass "
                "allow_pickle=True when restoring, as was done when saving"
            )

    def value(self) -> object:
        """See ``Slot``."""
        if self._kind == "bytearray":
            return self._data
        return bytes(self._data) if self._kind == "bytes" else self._unpickled()

    def _unpickled(self) -> object:
        self._refuse_pickle()
        try:
            return pickle.loads(self._data)  # noqa: S301 - writer and reader both said allow_pickle=True
        except Exception as error:
            raise RestoreError(f"{self._what} cannot be unpickled: {type(error).__name__}: {error}") from error


def small_value(tag: str, args: list[Any], path: Path) -> object:
    """``torch.dtype``, ``torch.device`` or ``torch.Size``: values without data in the pack."""
    what = render(path) or "the state"
    text = args[0] if len(args) == 1 and type(args[0]) is str else ""
    if tag == "torch.dtype":
        return dtype_of(text, what)
    if tag == "torch.device":
        return _device(text, what)
    if tag == "torch.Size" and all(type(n) is int and 0 <= n < 2**63 for n in args):
        return torch.Size(args)
    raise FormatError(f"{what}: unknown or malformed {tag!r:.80}", defect="unknown tag")


def _device(text: str, what: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise FormatError(f"{what}: unknown device {text!r:.80}", defect="unknown device") from error


def count_of(shape: Any, what: str) -> tuple[int, ...]:
    """A shape that stands in a node of its own, checked."""
    if type(shape) is not list or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise FormatError(f"{what}: a malformed shape", defect="malformed shape")
    if math.prod(shape) >= 2**63:
        raise FormatError(f"{what}: too many elements", defect="too many elements")
    return tuple(shape)
