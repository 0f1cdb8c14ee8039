"""What a store is: a flat set of named byte strings, durable when a call returns.

Keys are relative, ``/``-separated, and never start or end with ``/``. One level of folders is enough for us.

What every store guarantees, and what the commit protocol of docs/ordering.md rests on:

1. When ``put`` or ``put_new`` returns, the bytes **and the name** survive a power cut. Until then the old content, or
   nothing, is under the name: never a part.
2. ``put_new`` is exclusive: of any number of racing callers, on any machines, exactly one succeeds.
3. When ``delete`` returns, the names are gone and stay gone after a power cut.
4. A failed or cancelled call leaves nothing under a final name, and cleans up its temporary files as far as it can.
   What it cannot clean up ends in ``.tmp``.

Errors: ``FileNotFoundError``, ``FileExistsError`` and ``EOFError`` (object shorter than the range asked for) are
ordinary answers. All else is a ``TransientStoreError`` or ``PermanentStoreError`` with the original as its cause;
which of the two is decided in the store.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

Buffer = bytes | bytearray | memoryview
PAGE = 4096  # bytes; what memory and places in a file are aligned to where the page cache is passed by


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder: ``name`` is its last part, ``size`` in bytes (0 for a folder)."""

    name: str
    size: int
    is_folder: bool = False


@runtime_checkable
class Store(Protocol):
    """Where checkpoints live. All calls but ``writer_lock`` run on an event loop; they may run side by side."""

    @property
    def url(self) -> str:
        """Where this is, for people: an absolute path or a URL, without credentials."""
        ...

    async def put(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Write an object from its parts, replacing an old one atomically; give its size in bytes.

        A part is not touched after the next one has been asked for: the producer may reuse its memory then. The
        store asks for one part at a time, so the slowest stage sets the pace. The iterator's own exception goes
        through unchanged, after cleaning up. The iterator is closed (``aclose``) in any case.
        """
        ...

    async def put_new(self, key: str, data: bytes) -> None:
        """Write a small object only if the name is free; else ``FileExistsError``."""
        ...

    async def read(self, key: str, start: int, into: memoryview) -> None:
        """Fill ``into`` (writable, contiguous bytes) from byte ``start`` on; ``EOFError`` if there are fewer."""
        ...

    async def list(self, folder: str) -> Sequence[Entry]:
        """The names right below ``folder`` (``""``: the root), in no order. A folder that is not there is empty.

        A listing that fails raises: it is never taken for an empty one.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove these names; one that is not there is fine. A folder left empty goes too (never the root)."""
        ...

    def writer_lock(self) -> AbstractContextManager[None]:
        """Hold the root as its only writer; ``RootInUseError`` if another holds it. Blocking, brief, any thread.

        A store that cannot lock gives a context that does nothing.
        """
        ...


class OpenFile(Protocol):
    """One object that is being read by one thread at a time; a context that closes it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...

    def fetch(self, start: int, nbytes: int, into: memoryview | None, room: memoryview) -> memoryview:
        """Bytes ``[start, start + nbytes)``, wherever they have come to lie. Blocks.

        Args:
            start: first byte.
            nbytes: how many, at least one.
            into: where they are wanted, ``nbytes`` long; None if that does not matter.
            room: page-aligned memory of at least ``nbytes`` and two pages.

        Returns:
            ``into`` itself, or a part of ``room``.

        Raises:
            FileNotFoundError, EOFError, StoreError: as ``Store.read``.
        """
        ...


@runtime_checkable
class ManyListings(Protocol):
    """What a store may have besides: listing many folders for little more than one."""

    async def list_many(self, folders: Sequence[str]) -> Sequence[Sequence[Entry]]:
        """What ``Store.list`` gives for each of them."""
        ...


@runtime_checkable
class BlockingReads(Protocol):
    """What a store may have besides: reading large objects in the calling thread, without an event loop in between."""

    def opened(self, key: str, *, shared: bool) -> OpenFile:
        """An object to read from; does not block, the first ``fetch`` looks for it. Any thread.

        ``shared``: other processes are about to read the same bytes.
        """
        ...


async def single(data: Buffer) -> AsyncIterator[Buffer]:
    """One buffer as the parts of a ``put``."""
    yield data


async def read_all(store: Store, key: str, size: int) -> bytes:
    """The ``size`` bytes of a small object."""
    data = bytearray(size)
    await store.read(key, 0, memoryview(data))
    return bytes(data)
