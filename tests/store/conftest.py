"""What the tests of the stores share."""

import asyncio
import os

import pytest

from asyncckpt.store.base import read_all, single
from asyncckpt.store.local import LocalStore

CALLS = ("open", "write", "fsync", "close", "replace", "link", "unlink", "makedirs")


class Disk:
    """Records the system calls of a store by name and path, and makes chosen ones fail."""

    def __init__(self, monkeypatch):
        self.calls = []
        self.failing = None  # called with (name, path, number of the call); an errno makes it fail
        self._paths = {}
        for name in CALLS:
            monkeypatch.setattr(os, name, self._patched(name, getattr(os, name)))

    def names(self):
        return [name for name, _ in self.calls]

    def _patched(self, name, real):
        def call(*args, **kwargs):
            path = self._paths.get(args[0], args[0]) if isinstance(args[0], int) else os.fspath(args[0])
            self.calls.append((name, path))
            number = self.failing(name, path, len(self.calls)) if self.failing else None
            if name == "close":
                real(*args)  # as on Linux: the descriptor is gone, whatever close says
            if number:
                raise OSError(number, os.strerror(number))
            if name == "close":
                return None
            result = real(*args, **kwargs)
            if name == "open":
                self._paths[result] = path
            return result

        return call


@pytest.fixture
def disk(monkeypatch):
    """The system calls of the store, recorded and breakable."""
    return Disk(monkeypatch)


def put(store, key, data):
    """Put some bytes, or an async iterator, and wait."""
    return asyncio.run(_put(store, key, data))


async def _put(store, key, data):
    return await store.put(key, single(data) if isinstance(data, bytes) else data)


def get(store, key, size):
    """Read the first bytes of an object."""
    return asyncio.run(_get(store, key, size))


async def _get(store, key, size):
    return await read_all(store, key, size)


def do(call):
    """Run one call of a store, given as a function without arguments."""

    async def main():
        return await call()

    return asyncio.run(main())


@pytest.fixture
def ops():
    """Blocking forms of the calls of a store."""

    class Ops:
        pass

    def names(folder):
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    Ops.put, Ops.get, Ops.do, Ops.names = map(staticmethod, (put, get, do, names))
    return Ops


@pytest.fixture
def root(tmp_path):
    """The root of ``store``; not there yet."""
    return tmp_path / "root"


@pytest.fixture
def store(root):
    """A fresh local store."""
    return LocalStore(root)
