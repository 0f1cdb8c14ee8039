"""The types that users taught us with ``register_type``: one table for the process, as for ``copyreg``."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Registered:
    """One taught type: ``encode`` gives a supported value, ``decode`` makes the object again."""

    cls: type
    name: str
    encode: Callable[[Any], object]
    decode: Callable[[Any], Any]


_lock = threading.Lock()
_by_type: dict[type, Registered] = {}
_by_name: dict[str, Registered] = {}


def add(entry: Registered) -> None:
    """Register, or replace what was registered for the same class under the same name; else ``ValueError``."""
    with _lock:
        old = _by_name.get(entry.name) or _by_type.get(entry.cls)
        if old is not None and (old.name, _identity(old.cls)) != (entry.name, _identity(entry.cls)):
            raise ValueError(f"{old.cls.__qualname__} is registered as {old.name!r} already")
        if old is not None:
            _by_type.pop(old.cls, None)  # the same class, defined anew in a reloaded module
        _by_name[entry.name] = _by_type[entry.cls] = entry


def of_type(cls: type) -> Registered | None:
    """The entry for exactly this class."""
    return _by_type.get(cls)


def of_name(name: str) -> Registered | None:
    """The entry of this name."""
    return _by_name.get(name)


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
