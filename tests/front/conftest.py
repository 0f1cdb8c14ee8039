"""Stores that hold still or fail on demand, over a real local root."""

import errno
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asyncckpt.store.local import LocalStore
from asyncckpt.testing import Fault, FaultyStore, GateStore


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

    FULL = Fault(errno=errno.ENOSPC, for_ever=True, where=lambda operation: operation.name == "put")

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, FaultyStore(LocalStore(root))
        self._failing = False

    @property
    def failing(self) -> bool:
        return self._failing

    @failing.setter
    def failing(self, failing: bool) -> None:
        self._failing = failing
        self.store.set_fault(self.FULL if failing else None)


@pytest.fixture
def faulty(tmp_path):
    """A root whose writes can be made to fail."""
    return Faulty(tmp_path / "run")
