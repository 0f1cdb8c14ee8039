"""The state as a tree of JSON nodes (``flatten``) and back (``unflatten``). docs/format.md, "Tree", lists every node.

What is guaranteed:

1. ``flatten`` copies: its nodes share no mutable object with the state.
2. Types are exact. A value whose type is not listed is refused by its key path, never saved as something like it.
3. ``unflatten`` builds only values of the listed types and runs no code that the document names. Whatever the nodes
   look like, it answers with a value or a ``FormatError``.

A container that occurs twice in the state comes back as two copies; one that contains itself is refused. Values that
are no business of this room (tensors, arrays, long bytes) go through the caller's ``leaf`` and ``build``. Any thread.
"""

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal, NoReturn, TypeVar

from asyncckpt.errors import UnsupportedStateError
from asyncckpt.manifest import registry
from asyncckpt.manifest.numpy_values import NUMPY_ENCODERS, NUMPY_PICKY_ENCODERS
from asyncckpt.manifest.paths import Attribute, Path, PathPart, render
from asyncckpt.manifest.untree import DATA_TAGS, MAX_DEPTH, leaves, unflatten
from asyncckpt.manifest.values import ENCODERS, PICKY_ENCODERS, Node, NotPlainError, to_base64

__all__ = [
    "INLINE_BYTES", "MAX_DEPTH", "NOT_LEAF", "Attribute", "Leaf", "Node", "Path", "PathPart", "Pickled",
    "flatten", "leaves", "register_type", "render", "unflatten",
]  # fmt: skip

INLINE_BYTES: Final = 512  # longer bytes and bytearrays are offered to ``leaf``
_PLAIN: Final = ENCODERS | NUMPY_ENCODERS
_PICKY: Final = PICKY_ENCODERS | NUMPY_PICKY_ENCODERS
_FACTORIES: Final = frozenset({list, dict, set, int, float, str, tuple, bool, None})
_FACTORY_TYPES: Final = (type, type(None))  # others may not be hashable
T = TypeVar("T")


class _NotLeaf(Enum):
    NOT_LEAF = "not a leaf"


NOT_LEAF: Final = _NotLeaf.NOT_LEAF
Leaf = Callable[[object, Path], Node | Literal[_NotLeaf.NOT_LEAF]]


class Pickled(bytes):
    """The pickle of a value that cannot be saved otherwise; ``leaf`` is given this in the value's place."""

    __slots__ = ()


def flatten(
    value: object, leaf: Leaf, *, allow_pickle: bool = False, path: Path = (), leaf_types: Collection[type] = ()
) -> Node:
    """The tree of a state, copied.

    Args:
        value: the state.
        leaf: asked for every value whose exact type is neither in docs/format.md nor registered, for bytes and
            bytearrays longer than ``INLINE_BYTES``, and for ``Pickled``. Gives a node, which goes into the tree as it
            is, or ``NOT_LEAF``.
        allow_pickle: pickle what is unsupported and offer that to ``leaf`` as ``Pickled``.
        path: where ``value`` is, for the paths given to ``leaf`` and in errors.
        leaf_types: exact types that ``leaf`` gives a node for, always: a shorter way for what is met most.

    Raises:
        UnsupportedStateError: a value that cannot be saved, a cycle, or more than ``MAX_DEPTH`` containers in each
            other; ``.path`` says where.
    """
    try:
        return _Flattener(leaf, allow_pickle, set(), leaf_types).node(value, path)
    except RecursionError as error:
        raise UnsupportedStateError("the state is nested too deep to be saved from here", path=render(path)) from error


def register_type(cls: type[T], *, name: str, encode: Callable[[T], object], decode: Callable[[Any], T]) -> None:
    """Teach asyncckpt to save values whose type is exactly ``cls``.

    Args:
        cls: the type; not one that is supported already.
        name: what stands for it in checkpoints. It must not change.
        encode: gives a supported value that says all; called in the thread that calls ``save()``.
        decode: makes the object from that value again. Must be registered before restoring as well.

    Raises:
        ValueError: the type is supported already, or the name belongs to another type.
    """
    if _is_known(cls):
        raise ValueError(f"{cls.__qualname__} is supported already")
    registry.add(registry.Registered(cls, name, encode, decode))


class _Flattener:
    """One call of ``flatten``. ``active``: ids of the containers that the walk is inside of."""

    __slots__ = ("_active", "_direct", "_keys", "_leaf", "_pickle")

    def __init__(
        self, leaf: Leaf, allow_pickle: bool, active: set[int], direct: Collection[type] = (), *, in_key: bool = False
    ) -> None:
        self._leaf = leaf
        self._direct = direct
        self._pickle = allow_pickle
        self._active = active
        self._keys = self if in_key else _Flattener(self._key_leaf, False, active, in_key=True)

    def node(self, value: Any, path: Path) -> Node:
        """The node of any value."""
        kind = type(value)
        encode = _PLAIN.get(kind)
        if encode is not None:
            return encode(value)
        tag_and_walk = _CONTAINERS.get(kind)
        if tag_and_walk is None:
            return self._other(value, path)
        active, key = self._active, id(value)
        if key in active or len(active) >= MAX_DEPTH:
            self._refuse_depth(value, path)
        active.add(key)
        tag, walk = tag_and_walk  # two frames of Python's stack for a level of the usual containers, see MAX_DEPTH
        out = walk(self, [tag], value, path)
        active.discard(key)
        return out

    def items(self, out: list[Node], values: Iterable[Any], path: Path) -> Node:
        """Append the nodes of a sequence."""
        plain, direct = _PLAIN, self._direct
        append = out.append
        for i, value in enumerate(values):
            kind = type(value)
            encode = plain.get(kind)
            if encode is not None:
                append(encode(value))
            else:
                append((self._leaf if kind in direct else self.node)(value, (*path, i)))
        return out

    def members(self, out: list[Node], values: Iterable[Any], path: Path) -> Node:
        """Append the nodes of a set's members, which are subject to the rules for keys."""
        return self._keys.items(out, values, path)

    def pairs(self, out: list[Node], values: Mapping[Any, Any], path: Path) -> Node:
        """Append key, value, key, value, ... in order."""
        plain, direct = _PLAIN, self._direct
        append = out.append
        for key, value in values.items():
            encode = plain.get(type(key))
            append(encode(key) if encode is not None else self._keys.node(key, (*path, key)))
            kind = type(value)
            encode = plain.get(kind)
            if encode is not None:
                append(encode(value))
            else:
                append((self._leaf if kind in direct else self.node)(value, (*path, key)))
        return out

    def ordered(self, out: list[Node], value: OrderedDict[Any, Any], path: Path) -> Node:
        """An OrderedDict, with the ``_metadata`` that torch hangs on state dicts."""
        extra = dict(vars(value))
        if not extra:
            return self.pairs(out, value, path)
        metadata = extra.pop("_metadata", None)
        if extra:
            return self._unsupported(value, path, f"it carries attributes of its own: {', '.join(extra)}")
        return self.pairs(["state_dict", self.node(metadata, (*path, Attribute("_metadata")))], value, path)

    def defaulting(self, out: list[Node], value: defaultdict[Any, Any], path: Path) -> Node:
        """A defaultdict whose factory is a plain builtin, or None."""
        factory: Any = value.default_factory
        if not isinstance(factory, _FACTORY_TYPES) or factory not in _FACTORIES:
            return self._unsupported(value, path, f"its factory {factory!r:.80} is not a plain builtin type")
        out.append(None if factory is None else factory.__name__)
        return self.pairs(out, value, path)

    def bounded(self, out: list[Node], value: deque[Any], path: Path) -> Node:
        """A deque and its maximal length."""
        out.append(value.maxlen)
        return self.items(out, value, path)

    def ends(self, out: list[Node], value: slice, path: Path) -> Node:
        """A slice."""
        return self.items(out, (value.start, value.stop, value.step), path)

    def _enter(self, value: object, path: Path) -> None:
        if id(value) in self._active or len(self._active) >= MAX_DEPTH:
            self._refuse_depth(value, path)
        self._active.add(id(value))

    def _refuse_depth(self, value: object, path: Path) -> NoReturn:
        if id(value) in self._active:
            raise UnsupportedStateError(f"{_where(path)} contains itself; a cycle cannot be saved", path=render(path))
        raise UnsupportedStateError(
            f"more than {MAX_DEPTH} containers in each other, at {_where(path):.200}", path=render(path)
        )

    def _other(self, value: Any, path: Path) -> Node:
        """A value of a type that needs more than a table look-up; the order of the questions is documented."""
        kind = type(value)
        if kind in _BYTES:
            return self._bytes(value, path)
        entry = registry.of_type(kind)
        if entry is not None:
            return self._registered(entry, value, path)
        encode = _PICKY.get(kind)
        if encode is not None:
            try:
                return encode(value)
            except NotPlainError as error:
                return self._unsupported(value, path, str(error))
        node = self._leaf(value, path)
        return self._unsupported(value, path, _hint(value)) if node is NOT_LEAF else node

    def _bytes(self, value: bytes | bytearray, path: Path) -> Node:
        if len(value) > INLINE_BYTES:
            node = self._leaf(value, path)
            if node is not NOT_LEAF:
                return node
        return [type(value).__name__, to_base64(value)]

    def _registered(self, entry: registry.Registered, value: object, path: Path) -> Node:
        self._enter(value, path)
        try:
            plain = entry.encode(value)
        except Exception as error:
            raise UnsupportedStateError(
                f"{_where(path)}: the registered encode of {entry.name!r} failed: {error}", path=render(path)
            ) from error
        out = ["registered", entry.name, self.node(plain, path)]
        self._active.discard(id(value))
        return out

    def _unsupported(self, value: object, path: Path, why: str) -> Node:
        """The last resort: a pickle if that is allowed, else the error."""
        if self._pickle:
            node = self._leaf(Pickled(_pickled(value, path)), path)
            if node is not NOT_LEAF:
                return node
        kind = type(value)
        raise UnsupportedStateError(
            f"{_where(path)} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved{why and ': ' + why}. "
            "Replace it by plain values, teach its type with asyncckpt.register_type, or pass allow_pickle=True",
            path=render(path),
        )

    def _key_leaf(self, value: object, path: Path) -> Any:
        """Keys must come back from the tree alone, so that they can be compared before any data is read."""
        if type(value) in _BYTES:
            return NOT_LEAF
        node = self._leaf(value, path)
        if node is not NOT_LEAF and node[0] in DATA_TAGS:
            raise UnsupportedStateError(
                f"{_where(path)}: a {type(value).__qualname__} cannot be saved as a key or a member of a set",
                path=render(path),
            )
        return node


def _is_known(cls: type) -> bool:
    return cls in _PLAIN or cls in _PICKY or cls in _CONTAINERS or cls in _BYTES


def _where(path: Path) -> str:
    return render(path) or "the state"


def _hint(value: object) -> str:
    base = next((base for base in type(value).__mro__[1:] if base in _PLAIN or base in _CONTAINERS), None)
    return f"only {base.__name__} itself is plain, a subclass is not" if base is not None else ""


def _pickled(value: object, path: Path) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except RecursionError:
        raise
    except Exception as error:
        raise UnsupportedStateError(
            f"{_where(path)} cannot be saved, and pickle refuses it too: {error}", path=render(path)
        ) from error


_BYTES: Final = frozenset({bytes, bytearray})
_CONTAINERS: Final[dict[type, tuple[str, Callable[[_Flattener, list[Node], Any, Path], Node]]]] = {
    list: ("list", _Flattener.items),
    tuple: ("tuple", _Flattener.items),
    set: ("set", _Flattener.members),
    frozenset: ("frozenset", _Flattener.members),
    dict: ("dict", _Flattener.pairs),
    OrderedDict: ("OrderedDict", _Flattener.ordered),
    defaultdict: ("defaultdict", _Flattener.defaulting),
    Counter: ("Counter", _Flattener.pairs),
    deque: ("deque", _Flattener.bounded),
    slice: ("slice", _Flattener.ends),
}
