"""Where a value is in the state, for machines (``Path``) and for people (``render``)."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """A step to something that a container carries beside its items, such as ``_metadata`` of a state dict."""

    name: str


# A dict's key, the position in a sequence or set, or an Attribute.
PathPart = Hashable
Path = tuple[PathPart, ...]


def render(path: Path) -> str:
    """``scheduler.lr_lambdas[0]``: string keys after dots, all else in brackets; ``""`` for the state itself."""
    return "".join(map(_spell, path)).removeprefix(".")


def _spell(part: PathPart) -> str:
    if type(part) is str:
        return f".{part}"
    return f".{part.name}" if type(part) is Attribute else f"[{part!r}]"
