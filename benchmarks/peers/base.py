"""What every contestant offers, so that one loop can drive them all.

The loop calls ``save`` after an update, goes on, and calls ``before_update`` and ``updating`` around every
``optimizer.step()``: there a contestant does what its own documentation asks for. ``finish`` waits until the last save
is complete. Everything is called from the training thread.
"""

import contextlib
import os
from pathlib import Path
from typing import Any, ClassVar

import torch


class Contestant:
    """One way to save; this base is a contestant whose saves are synchronous and need no care.

    Attributes:
        package: distribution whose version the report gives.
        durable_by_source: what reading its source says, for machines without strace.
    """

    package: ClassVar[str] = "torch"
    durable_by_source: ClassVar[str] = "data no, directory no"

    def __init__(self, root: Path, live: Any) -> None:
        self.root, self.live = root, live
        root.mkdir(parents=True, exist_ok=True)

    def warm(self) -> None:
        """Whatever the contestant offers to do before the first save."""

    def save(self, step: int) -> None:
        """Start or make a save; returns when the contestant gives the thread back."""
        raise NotImplementedError

    def before_update(self) -> None:
        """What must have happened before the next write to the state."""

    def updating(self) -> contextlib.AbstractContextManager[Any]:
        """Held around the write to the state."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Wait until the last save is complete; raise if it failed."""

    def load(self, step: int) -> Any:
        """The state as nested dicts, from disk into fresh memory."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""

    def place(self, step: int) -> Path:
        """The file or folder of one save."""
        return self.root / f"step-{step:012d}"


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, final: Path) -> None:
    """The idiom that users are told to write: fsync the file, rename it, fsync the directory."""
    fsync_path(temporary)
    temporary.replace(final)
    fsync_path(final.parent)


def blank(value: Any) -> Any:
    """The same nesting with fresh tensors: a target to load into."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value)
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [blank(item) for item in value]
    return value


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Key path -> leaf."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {prefix: value}
    return {
        path: leaf
        for key, item in items
        for path, leaf in flat(item, f"{prefix}.{key}" if prefix else str(key)).items()
    }
