"""Folders of a local root: made on demand, and durable before a file in them is called durable."""

# os by the names of the system calls: their order and their errors are what matters here
# ruff: noqa: PTH103, PTH112, PTH120

import errno
import os

MAKE_TRIES = 5
NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})  # file systems where a folder cannot be synced at all


def sync_folder(path: str) -> None:
    """Make the names in a folder durable: what was created, renamed or removed there."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


class Folders:
    """The folders below one root, and which of them are known to survive a power cut. Any thread."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._durable: set[str] = set()

    def ensure(self, folder: str) -> None:
        """Make the folder, the root and all between them exist, durably."""
        for level in self._levels(folder):
            self._ensure_one(level)

    def forget(self, folder: str) -> None:
        """The folder is about to be removed."""
        self._durable.discard(folder)

    def _levels(self, folder: str) -> list[str]:
        levels = [folder]
        while levels[-1] != self._root:
            levels.append(os.path.dirname(levels[-1]))
        return levels[::-1]

    def _ensure_one(self, folder: str) -> None:
        missing = _missing(folder)
        if not missing and folder in self._durable:
            return
        make(folder)
        made_in = {os.path.dirname(made) for made in missing}
        for parent in _above(folder) if folder == self._root else [self._root]:
            _sync_parent(parent, ours=parent in made_in)
        self._durable.add(folder)


def make(folder: str) -> None:
    """``makedirs`` that tolerates others who make or remove the same folders meanwhile, and answers of old caches."""
    for _ in range(MAKE_TRIES):
        try:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        except FileNotFoundError:
            continue
        return
    os.makedirs(folder, exist_ok=True)


def _missing(folder: str) -> list[str]:
    """The folder and its ancestors, as far as they do not exist, outermost first."""
    missing: list[str] = []
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing[::-1]


def _above(root: str) -> list[str]:
    """The folders that the root lies in, as far as its file system goes, outermost first."""
    above: list[str] = []
    while not os.path.ismount(root) and root != os.path.dirname(root):
        root = os.path.dirname(root)
        above.append(root)
    return above[::-1]


def _sync_parent(folder: str, *, ours: bool) -> None:
    """Sync a folder in which a folder was made: by us, or by someone else, perhaps just now, and unsynced.

    The lock of a root makes it without a sync, as does a run that is killed before it gets that far. A folder that is
    unreadable to us was made long ago by its owner.
    """
    try:
        sync_folder(folder)
    except PermissionError:
        if ours:
            raise
