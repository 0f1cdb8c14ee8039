"""A store in memory: every guarantee of a store but the power cut."""

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from asyncckpt.errors import RootInUseError
from asyncckpt.store.base import Buffer, Entry
from asyncckpt.store.calls import closing


class MemoryStore:
    """Any thread, any number of event loops."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._mutex = threading.Lock()
        self._writer = threading.Lock()

    @property
    def url(self) -> str:
        """A name for messages."""
        return f"memory://{id(self):x}"

    @property
    def objects(self) -> dict[str, bytes]:
        """A copy of the present content: key -> bytes."""
        with self._mutex:
            return dict(self._objects)

    def damage(self, key: str, data: bytes | None) -> None:
        """Replace an object behind everybody's back, or with None remove it."""
        with self._mutex:
            if data is None:
                del self._objects[key]
            else:
                self._objects[key] = data

    async def put(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """See ``Store``."""
        data = bytearray()
        async with closing(parts):
            async for part in parts:
                data += part
        with self._mutex:
            self._objects[key] = bytes(data)
        return len(data)

    async def put_new(self, key: str, data: bytes) -> None:
        """See ``Store``."""
        with self._mutex:
            if key in self._objects:
                raise FileExistsError(key)
            self._objects[key] = bytes(data)

    async def read(self, key: str, start: int, into: memoryview) -> None:
        """See ``Store``."""
        with self._mutex:
            data = self._objects.get(key)
        if data is None:
            raise FileNotFoundError(key)
        found = memoryview(data)[start : start + len(into)]
        if len(found) < len(into):
            raise EOFError(f"{key} ends {len(into) - len(found)} bytes too early")
        into[:] = found

    async def list(self, folder: str) -> Sequence[Entry]:
        """See ``Store``."""
        prefix = f"{folder}/" if folder else ""
        found: dict[str, Entry] = {}
        for key, data in self.objects.items():
            if key.startswith(prefix):
                name, _, below = key.removeprefix(prefix).partition("/")
                found[name] = Entry(name, 0 if below else len(data), is_folder=bool(below))
        return list(found.values())

    async def delete(self, keys: Sequence[str]) -> None:
        """See ``Store``."""
        with self._mutex:
            for key in keys:
                self._objects.pop(key, None)

    @contextmanager
    def writer_lock(self) -> Iterator[None]:
        """See ``Store``."""
        if not self._writer.acquire(blocking=False):
            raise RootInUseError(f"{self.url} is in use by another writer", path=self.url)
        try:
            yield
        finally:
            self._writer.release()
