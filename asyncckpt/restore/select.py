"""``only=``: choosing values by their key paths, and cutting a tree down to them. Pure, no torch.

A name chooses the value at that path and all that is below it. A dict that is cut keeps its type and the order of its
keys; a list or tuple that is cut keeps its chosen entries, closed up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from asyncckpt.errors import StateMismatchError
from asyncckpt.manifest.tree import Node, Path, PathPart, render
from asyncckpt.restore.nodes import DICT_TAGS, SEQUENCE_TAGS, key_of, tag_of

_SEPARATORS: Final = (".", "[")
_GONE: Final = object()


@dataclass(frozen=True, slots=True)
class Selection:
    """Whether a path is chosen; with no names, all are."""

    names: tuple[str, ...] | None

    def __call__(self, path: Path) -> bool:
        """Whether the value at ``path`` is chosen."""
        return self.names is None or any(_within(render(path), name) for name in self.names)

    def reaches(self, path: Path) -> bool:
        """Whether something below ``path`` may be chosen."""
        return self.names is None or any(_within(name, render(path)) for name in self.names)

    def unused(self, paths: Sequence[Path]) -> list[str]:
        """The names that have nothing to do with any of ``paths``, which are all that was chosen."""
        texts = [render(path) for path in paths]
        related = (
            (name, any(_within(text, name) or _within(name, text) for text in texts)) for name in self.names or ()
        )
        return [name for name, used in related if not used]


def selected(only: str | Sequence[str] | None) -> Selection:
    """The choice that ``only=`` spells: one key path such as ``"model"`` or ``"layers[0].weight"``, or several."""
    if only is None:
        return Selection(None)
    return Selection((only,) if isinstance(only, str) else tuple(only))


def prune(node: Node, selection: Selection) -> Node:
    """The tree without what is not chosen.

    Raises:
        StateMismatchError: a name chooses nothing.
    """
    if selection.names is None:
        return node
    kept: list[Path] = []
    pruned = _pruned(node, (), selection, kept.append)
    missing = selection.unused(kept)
    if missing:
        raise StateMismatchError(f"the checkpoint holds nothing at {', '.join(missing)}", missing=missing)
    return pruned


def _within(text: str, name: str) -> bool:
    """Whether ``text`` is ``name`` or a path below it; the empty name is the state itself."""
    return not name or text == name or (text.startswith(name) and text[len(name)] in _SEPARATORS)


def _pruned(node: Node, path: Path, selection: Selection, keep: Callable[[Path], None]) -> Any:
    if selection(path):
        keep(path)
        return node
    if not selection.reaches(path):
        return _GONE
    tag = tag_of(node)
    if tag in DICT_TAGS:
        return _pruned_dict(node, path, selection, keep)
    if tag in SEQUENCE_TAGS:
        below = (_pruned(child, (*path, i), selection, keep) for i, child in enumerate(node[1:]))
        return [tag, *(child for child in below if child is not _GONE)]
    return _GONE


def _pruned_dict(node: Node, path: Path, selection: Selection, keep: Callable[[Path], None]) -> Node:
    first = DICT_TAGS[node[0]]
    out = node[:first]
    for key, child in zip(node[first::2], node[first + 1 :: 2], strict=False):
        below = _pruned(child, (*path, _part(key, path)), selection, keep)
        if below is not _GONE:
            out += [key, below]
    return out


def _part(key: Node, path: Path) -> PathPart:
    part: PathPart = key_of(key, path)
    return part
