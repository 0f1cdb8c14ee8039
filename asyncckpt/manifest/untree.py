"""The reading half of tree.py: nodes that came from a file, and nobody has checked, to values."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

from asyncckpt.errors import FormatError, RestoreError
from asyncckpt.manifest import registry
from asyncckpt.manifest.numpy_values import NUMPY_DECODERS
from asyncckpt.manifest.paths import Attribute, Path, render
from asyncckpt.manifest.values import DECODERS, JSON_SCALARS, REFUSALS, Node

MAX_DEPTH: Final = 200  # containers in each other
# Tags of values whose bytes lie in the pack; they cannot be keys. The rest of the foreign tags can.
DATA_TAGS: Final = frozenset(
    {"tensor", "array", "data", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "quantized"}
)
_DECODERS: Final = DECODERS | NUMPY_DECODERS
_FACTORIES: Final = {kind.__name__: kind for kind in (list, dict, set, int, float, str, tuple, bool)}
Build = Callable[[str, list[Any], Path], object]


def unflatten(node: Node, build: Build, *, allow_pickle: bool = False, path: Path = ()) -> object:
    """The state of a tree.

    Args:
        node: as decoded from JSON.
        build: makes the values of all tags that are not this room's, from the tag and the rest of the node. It checks
            what it is given and raises ``FormatError`` itself.
        allow_pickle: let ``build`` see nodes of tag ``data`` that end in ``pickle``.
        path: where the value is, for the paths given to ``build`` and in errors.

    Raises:
        FormatError: a node that ``flatten`` would not have written.
        RestoreError: a pickle while ``allow_pickle`` is off, or a type that is not registered in this process.
    """
    try:
        return _Unflattener(build, allow_pickle).value(node, path)
    except RecursionError as error:
        raise FormatError("the tree is nested too deep", defect="nested too deep") from error


def leaves(node: Node, build: Build | None = None) -> Iterator[tuple[Path, str, list[Any]]]:
    """Path, tag and arguments of every node that ``unflatten`` would give to ``build``, in the same order.

    Keys and members of sets are left out: they hold no data. Nothing is built but keys; ``build`` makes those that
    are not this room's (without it, a text stands for such a key in the paths). Raises ``FormatError`` for malformed
    containers, and ``RestoreError`` for keys of a type that is not registered.
    """
    keys = _Unflattener(build or _opaque, allow_pickle=False)
    stack: list[tuple[Path, Node]] = [((), node)]
    while stack:
        path, node = stack.pop()
        if type(node) in JSON_SCALARS:
            continue
        tag = _tag(node, path)
        children = _CHILDREN.get(tag)
        if children is not None:
            stack.extend(reversed([*children(keys, node[1:], path)]))
        elif tag not in _DECODERS:
            yield path, tag, node[1:]


def _opaque(tag: str, args: list[Any], _path: Path) -> object:
    return f"<{tag} {args!r}>"


def malformed(path: Path, defect: str) -> NoReturn:
    """Refuse the node at ``path``."""
    raise FormatError(f"the tree is malformed at {render(path) or 'its root'}: {defect}", defect=defect)


def _tag(node: Node, path: Path) -> str:
    if type(node) is not list or not node or type(node[0]) is not str:
        malformed(path, "a node must be a JSON scalar or a list that begins with a tag")
    tag: str = node[0]
    return tag


class _Unflattener:
    """One call of ``unflatten``. ``depth``: containers around the node that is being read."""

    __slots__ = ("_allow_pickle", "_build", "_depth", "_in_key")

    def __init__(self, build: Build, allow_pickle: bool) -> None:
        self._build = build
        self._allow_pickle = allow_pickle
        self._depth = 0
        self._in_key = False

    def value(self, node: Node, path: Path) -> Any:
        """The value of any node."""
        if type(node) in JSON_SCALARS:
            return node
        tag = _tag(node, path)
        decode = _DECODERS.get(tag)
        if decode is not None:
            try:
                return decode(node[1:])
            except REFUSALS as error:
                raise FormatError(
                    f"the tree is malformed at {render(path) or 'its root'}: bad {tag}: {error}", defect=f"bad {tag}"
                ) from error
        shape = _CONTAINERS.get(tag)
        if shape is None:
            return self._foreign(tag, node[1:], path)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            malformed(path[:8], f"more than {MAX_DEPTH} containers in each other")
        read, make = shape  # two frames of Python's stack for a level of the usual containers, see MAX_DEPTH
        result = read(self, node[1:], path)
        self._depth -= 1
        return result if make is None else make(result)

    def key(self, node: Node, path: Path) -> Any:
        """The value of a node that is a dict's key or a set's member: hashable, and no bulk data."""
        if type(node) in JSON_SCALARS:
            return node
        before, self._in_key = self._in_key, True
        key = self.value(node, path)
        self._in_key = before
        try:
            hash(key)
        except TypeError:
            malformed(path, "unhashable key")
        return key

    def items(self, nodes: Sequence[Node], path: Path) -> list[Any]:
        """The values of a sequence's nodes."""
        scalars = JSON_SCALARS
        result = []
        for i, node in enumerate(nodes):
            result.append(node if type(node) in scalars else self.value(node, (*path, i)))
        return result

    def pairs(self, nodes: Sequence[Node], path: Path) -> dict[Any, Any]:
        """The dict of a run of key, value, key, value, ..."""
        scalars = JSON_SCALARS
        result: dict[Any, Any] = {}
        for key, node in self._paired(nodes, path):
            result[key] = node if type(node) in scalars else self.value(node, (*path, key))
        if 2 * len(result) != len(nodes):
            malformed(path, "duplicate key")
        return result

    def members(self, nodes: Sequence[Node], path: Path) -> set[Any]:
        """The members of a set."""
        result = {self.key(node, (*path, i)) for i, node in enumerate(nodes)}
        if len(result) != len(nodes):
            malformed(path, "duplicate member of a set")
        return result

    def sequence_children(self, nodes: Sequence[Node], path: Path) -> Iterator[tuple[Path, Node]]:
        """Path and node of the entries of a sequence that are not JSON scalars."""
        return (((*path, i), node) for i, node in enumerate(nodes) if type(node) not in JSON_SCALARS)

    def pair_children(self, nodes: Sequence[Node], path: Path) -> Iterator[tuple[Path, Node]]:
        """Path and node of the values of a dict that are not JSON scalars."""
        return (((*path, key), node) for key, node in self._paired(nodes, path) if type(node) not in JSON_SCALARS)

    def _paired(self, nodes: Sequence[Node], path: Path) -> Iterator[tuple[Any, Node]]:
        if len(nodes) % 2:
            malformed(path, "a key without a value")
        for key, node in zip(nodes[::2], nodes[1::2], strict=True):
            yield (key if type(key) is str else self.key(key, path)), node

    def _foreign(self, tag: str, args: list[Any], path: Path) -> object:
        if self._in_key and tag in DATA_TAGS:
            malformed(path, f"a {tag} as a key")
        if tag == "data" and not self._allow_pickle and args and args[-1] == "pickle":
            raise RestoreError(
                f"{render(path) or 'the state'} was saved by pickle. Unpickling runs code from the file; if you trust "
                "its origin, pass allow_pickle=True"
            )
        return self._build(tag, args, path)


# ---- containers: how each tag is read, and where its children are --------------------------------------------------

_Read = Callable[[_Unflattener, list[Any], Path], Any]
_Children = Callable[[_Unflattener, list[Any], Path], Iterator[tuple[Path, Node]]]


def _deque(walk: _Unflattener, args: list[Any], path: Path) -> deque[Any]:
    size = args[0] if args else -1
    if size is not None and (type(size) is not int or not max(0, len(args) - 1) <= size < 2**63):
        malformed(path, "a deque needs a size of at least its length, or null")
    return deque(walk.items(args[1:], path), size)


def _slice(walk: _Unflattener, args: list[Any], path: Path) -> slice:
    if len(args) != 3:  # noqa: PLR2004 - start, stop, step
        malformed(path, "a slice has three parts")
    return slice(*walk.items(args, path))


def _defaultdict(walk: _Unflattener, args: list[Any], path: Path) -> defaultdict[Any, Any]:
    name = args[0] if args else ""
    if name is not None and (type(name) is not str or name not in _FACTORIES):
        malformed(path, "unknown factory of a defaultdict")
    return defaultdict(None if name is None else _FACTORIES[name], walk.pairs(args[1:], path))


def _counter(counts: dict[Any, Any]) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    dict.update(counter, counts)
    return counter


def _state_dict(walk: _Unflattener, args: list[Any], path: Path) -> OrderedDict[Any, Any]:
    (metadata,) = _metadata(args, path)
    carried = walk.value(metadata[1], metadata[0])
    result = OrderedDict(walk.pairs(args[1:], path))
    result._metadata = carried  # type: ignore[attr-defined]  # noqa: SLF001 - torch's name
    return result


def _state_dict_children(walk: _Unflattener, args: list[Any], path: Path) -> Iterator[tuple[Path, Node]]:
    yield from _metadata(args, path)
    yield from walk.pair_children(args[1:], path)


def _metadata(args: list[Any], path: Path) -> list[tuple[Path, Node]]:
    if not args:
        malformed(path, "a state_dict without its metadata")
    return [((*path, Attribute("_metadata")), args[0])]


def _registered(walk: _Unflattener, args: list[Any], path: Path) -> Any:
    ((_, plain),) = _registered_children(walk, args, path)
    entry = registry.of_name(args[0])
    if entry is None:
        raise RestoreError(
            f"{render(path) or 'the state'} is of the type {args[0]!r:.80}, which is not registered in this process; "
            "call asyncckpt.register_type for it before restoring"
        )
    value = walk.value(plain, path)
    try:
        return entry.decode(value)
    except Exception as error:
        raise RestoreError(f"{render(path)}: the registered decode of {entry.name!r} failed: {error}") from error


def _registered_children(_walk: _Unflattener, args: list[Any], path: Path) -> Iterator[tuple[Path, Node]]:
    if len(args) != 2 or type(args[0]) is not str:  # noqa: PLR2004 - name, node
        malformed(path, "a registered value is a name and a node")
    return iter([(path, args[1])])


def _none(_walk: _Unflattener, _args: list[Any], _path: Path) -> Iterator[tuple[Path, Node]]:
    return iter(())


# How the arguments of a tag are read, and what is made of the result.
_CONTAINERS: Final[dict[str, tuple[_Read, Callable[[Any], Any] | None]]] = {
    "list": (_Unflattener.items, None),
    "tuple": (_Unflattener.items, tuple),
    "set": (_Unflattener.members, None),
    "frozenset": (_Unflattener.members, frozenset),
    "dict": (_Unflattener.pairs, None),
    "OrderedDict": (_Unflattener.pairs, OrderedDict),
    "state_dict": (_state_dict, None),
    "defaultdict": (_defaultdict, None),
    "Counter": (_Unflattener.pairs, _counter),
    "deque": (_deque, None),
    "slice": (_slice, None),
    "registered": (_registered, None),
}
_CHILDREN: Final[dict[str, _Children]] = {
    **dict.fromkeys(["list", "tuple", "slice"], _Unflattener.sequence_children),
    **dict.fromkeys(["set", "frozenset"], _none),
    **dict.fromkeys(["dict", "OrderedDict", "Counter"], _Unflattener.pair_children),
    "deque": lambda walk, args, path: walk.sequence_children(args[1:], path),
    "defaultdict": lambda walk, args, path: walk.pair_children(args[1:], path),
    "state_dict": _state_dict_children,
    "registered": _registered_children,
}
