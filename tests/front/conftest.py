"""Stores that hold still or fail on demand, over a real local root."""

import errno
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asyncckpt.errors import PermanentStoreError
from asyncckpt.store.local import LocalStore
from asyncckpt.testing import GateStore


@dataclass
class Gate:
    """A local root behind a gate: every ``put`` waits until the gate is opened."""

    root: Path
    store: Any

    @property
    def entered(self) -> threading.Event:
        return self.store.entered

    def open(self) -> None:
        self.store.open()


@pytest.fixture
def gate(tmp_path):
    """A root whose writes wait until the test opens the gate."""
    root = tmp_path / "run"
    held = Gate(root, GateStore(LocalStore(root), {"put"}))
    yield held
    held.open()


class Faulty:
    """A local root whose writes fail with ENOSPC while ``failing`` is set."""

    def __init__(self, root: Path) -> None:
        self.root, self.failing = root, False
        self.store = self
        self._inner = LocalStore(root)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def put(self, key, parts):
        if not self.failing:
            return await self._inner.put(key, parts)
        await parts.aclose()
        full = OSError(errno.ENOSPC, "No space left on device", key)
        raise PermanentStoreError(f"no space left for {key}", errno=errno.ENOSPC, path=key) from full


@pytest.fixture
def faulty(tmp_path):
    """A root whose writes can be made to fail."""
    return Faulty(tmp_path / "run")
