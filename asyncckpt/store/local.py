"""A folder on a local or network file system as a store. What it relies on: docs/storage.md.

A ``put`` runs: temporary file in the same folder, data (direct.py), sync, rename, sync of the folder (draft.py). Each
operation does its blocking calls on one thread of its own (calls.py), so callers bound how many run side by side.
"""

# os by the names of the system calls: their order and their errors are what matters here
# ruff: noqa: PTH100, PTH106, PTH108, PTH111, PTH118, PTH120

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, suppress

from asyncckpt.store.base import Buffer, Entry, single
from asyncckpt.store.calls import closing, finished, own_thread, run
from asyncckpt.store.direct import LARGE, DataFile, gathering
from asyncckpt.store.draft import Draft
from asyncckpt.store.folders import Folders, sync_folder
from asyncckpt.store.lock import RootLock
from asyncckpt.store.oserrors import os_errors
from asyncckpt.store.reading import LocalFile, Threads, read_exactly

LISTERS = 4  # threads that list many folders


class LocalStore:
    """Keys are paths below ``root``, which is made absolute now and created by the first write."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        self._folders = Folders(self._root)
        self._readers = Threads()

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r})"

    @property
    def url(self) -> str:
        """The absolute path of the root. Symbolic links in it are not resolved."""
        return self._root

    async def put(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """See ``Store``. The mode of the file follows the umask."""
        return await self._write(key, parts, exclusive=False)

    async def put_new(self, key: str, data: bytes) -> None:
        """See ``Store``. Exclusive by a hard link, or where links are refused by ``renameat2(RENAME_NOREPLACE)``."""
        await self._write(key, single(data), exclusive=True)

    async def read(self, key: str, start: int, into: memoryview) -> None:
        """See ``Store``."""
        path = self._path(key)
        with os_errors(path, passing=(FileNotFoundError,)):
            await self._readers.call(_read, path, start, into.cast("B"))

    def opened(self, key: str, *, shared: bool) -> LocalFile:
        """See ``base.BlockingReads``."""
        return LocalFile(self._path(key), shared=shared)

    async def list(self, folder: str) -> Sequence[Entry]:
        """See ``Store``. A link to a folder is not listed as one, and a dangling link has size 0."""
        (listing,) = await self.list_many([folder])
        return listing

    async def list_many(self, folders: Sequence[str]) -> Sequence[Sequence[Entry]]:
        """See ``base.ManyListings``. A few threads share the folders: a network file system answers each one late."""
        paths = [self._path(folder) if folder else self._root for folder in folders]
        share = -(-len(paths) // LISTERS)
        shares = [paths[i : i + share] for i in range(0, len(paths), share)] if paths else []
        found = await asyncio.gather(*(self._readers.call(_scan_all, part) for part in shares))
        return [listing for part in found for listing in part]

    async def delete(self, keys: Sequence[str]) -> None:
        """See ``Store``. In the order given; stops at the first name that cannot be removed."""
        paths = [self._path(key) for key in keys]
        async with own_thread(background=True) as thread:
            await run(thread, self._remove, paths)

    def writer_lock(self) -> AbstractContextManager[None]:
        """See ``Store``. Creates the root."""
        return RootLock(self._root)

    def _path(self, key: str) -> str:
        names = key.split("/")
        if "\0" in key or any(name in {"", ".", ".."} for name in names):
            raise ValueError(f"not a key: {key!r}")
        return os.path.join(self._root, *names)

    async def _write(self, key: str, parts: AsyncIterator[Buffer], *, exclusive: bool) -> int:
        async with closing(parts), own_thread(background=True) as thread:
            path = self._path(key)
            draft = Draft(path, self._folders)
            try:
                size, last = await _fill(draft, path, parts, thread)
                with os_errors(path, passing=(FileExistsError,) if exclusive else ()):
                    await run(thread, _finish, draft, last, exclusive)
            except BaseException:
                await finished(thread.submit(draft.abandon))
                raise
            thread.submit(draft.drop_backup)
        return size

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            with os_errors(path), suppress(FileNotFoundError):
                os.unlink(path)
        for folder in dict.fromkeys(map(os.path.dirname, paths)):
            with os_errors(folder), suppress(FileNotFoundError):
                sync_folder(folder)
                self._remove_if_empty(folder)

    def _remove_if_empty(self, folder: str) -> None:
        if folder == self._root:
            return
        self._folders.forget(folder)
        try:
            os.rmdir(folder)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
        else:
            sync_folder(os.path.dirname(folder))


async def _fill(draft: Draft, path: str, parts: AsyncIterator[Buffer], thread: Executor) -> tuple[int, Buffer | None]:
    """Write all parts to the draft; give their size.

    A small file is only collected, and given as well: its whole life is then one call in the thread. Only our own
    errors are mapped, never those of ``parts``.
    """
    start, following = await _start_of(parts)
    if following is None:
        return len(start), start
    with os_errors(path):
        fd = await run(thread, draft.create)
    async with gathering(fd, thread, getattr(parts, "nbytes", None)) as gatherer:
        with os_errors(path):
            await gatherer.add(start)
            await gatherer.add(following)
        async for part in parts:
            with os_errors(path):
                await gatherer.add(part)
        with os_errors(path):
            await gatherer.finish()
    return gatherer.size, None


async def _start_of(parts: AsyncIterator[Buffer]) -> tuple[bytearray, Buffer | None]:
    """A copy of the first bytes, fewer than ``LARGE``, and the part that follows, if there are more."""
    start = bytearray()
    async for part in parts:
        view = memoryview(part).cast("B")
        if len(start) + len(view) >= LARGE:
            return start, view
        start += view
    return start, None


def _finish(draft: Draft, whole: Buffer | None, exclusive: bool) -> None:
    """What is left to do in the thread; for a small file, that is everything."""
    if whole is not None:
        DataFile(draft.create()).finish(memoryview(whole))
    draft.publish(exclusive=exclusive)


def _read(path: str, start: int, into: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read_exactly(fd, path, start, into)
    finally:
        os.close(fd)


def _scan_all(paths: Sequence[str]) -> list[list[Entry]]:
    listings = []
    for path in paths:
        with os_errors(path):
            listings.append(_scan(path))
    return listings


def _scan(path: str) -> list[Entry]:
    try:
        with os.scandir(path) as entries:
            return [found for entry in entries if (found := _entry(entry)) is not None]
    except FileNotFoundError:
        return []


def _entry(entry: os.DirEntry[str]) -> Entry | None:
    """One name, or None if it has just vanished."""
    if entry.is_dir(follow_symlinks=False):
        return Entry(entry.name, 0, is_folder=True)
    try:
        return Entry(entry.name, entry.stat().st_size)
    except OSError as error:
        if entry.is_symlink() and error.errno in {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EACCES}:
            return Entry(entry.name, 0)
        if error.errno == errno.ENOENT:
            return None
        raise
