"""Looking into the containers of a tree without building what is in them. Pure, no torch."""

from collections.abc import Iterator
from typing import Any, Final

from asyncckpt.errors import FormatError
from asyncckpt.manifest.tree import Node, Path, PathPart, render, unflatten

# Tags of dicts -> position in the node of the first key.
DICT_TAGS: Final = {"dict": 1, "OrderedDict": 1, "Counter": 1, "state_dict": 2, "defaultdict": 2}
SEQUENCE_TAGS: Final = frozenset({"list", "tuple"})


def tag_of(node: Node) -> str | None:
    """The tag of a node; None for JSON scalars and for what is no node at all."""
    return node[0] if type(node) is list and node and type(node[0]) is str else None


def entries(node: Node, path: Path = ()) -> Iterator[tuple[PathPart, Node]]:
    """Key and node of a dict's values, position and node of a sequence's; nothing for all else."""
    tag = tag_of(node)
    if tag in SEQUENCE_TAGS:
        yield from enumerate(node[1:])
    elif tag in DICT_TAGS:
        first = DICT_TAGS[tag]
        if (len(node) - first) % 2:
            where = render(path) or "its root"
            raise FormatError(
                f"the tree is malformed at {where}: a key without a value", defect="a key without a value"
            )
        for i in range(first, len(node), 2):
            yield key_of(node[i], path), node[i + 1]


def key_of(node: Node, path: Path) -> Any:
    """A dict's key. Keys of torch's own types, which this module cannot make, are told apart by their nodes."""
    return node if type(node) is str else unflatten(node, _opaque, path=path)


def find(node: Node, path: Path) -> tuple[bool, Node]:
    """Whether there is a value at ``path``, and its node."""
    for i, part in enumerate(path):
        below = [child for key, child in entries(node, path[:i]) if type(key) is type(part) and key == part]
        if not below:
            return False, None
        node = below[0]
    return True, node


def _opaque(tag: str, args: list[Any], _path: Path) -> object:
    return f"<{tag} {args!r}>"
