"""One file on its way to its final name. All methods block; they are called from one thread at a time.

Order: create the temporary file in the final folder, write, sync the file, place it under the final name, sync the
folder. Only then is it durable. A sync that failed is never tried again on the same file: the kernel may have dropped
the pages and would report success.

Until ``publish`` has returned **and** the caller has accepted it, ``abandon`` brings the former state back: the name
is free again, or the old file is under it. For this a replaced file is kept under a second, temporary name meanwhile.
"""

# os by the names of the system calls: their order and their errors are what matters here
# ruff: noqa: PTH105, PTH108, PTH120, PTH121

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress

from asyncckpt.store.folders import Folders, sync_folder
from asyncckpt.store.linux import rename_new

CREATE_TRIES = 5
LINK_REFUSED = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class Draft:
    """A temporary file that may become ``final``."""

    def __init__(self, final: str, folders: Folders) -> None:
        self._final = final
        self._folder = os.path.dirname(final)
        self._folders = folders
        self._temp = self._spare_name()
        self._backup: str | None = None
        self._undo: Callable[[], None] | None = None
        self._fd: int | None = None

    def create(self) -> int:
        """Make the temporary file, and its folder where needed; give its descriptor, which stays ours."""
        for _ in range(CREATE_TRIES):
            with suppress(FileNotFoundError):  # a clean-up elsewhere took the empty folder between the two calls
                return self._create()
        return self._create()

    def publish(self, *, exclusive: bool) -> None:
        """Make the content durable, give it the final name, make that durable.

        ``FileExistsError`` if ``exclusive`` and the name is taken.
        """
        self._seal()
        if exclusive:
            self._place_new()
        else:
            self._replace()
        sync_folder(self._folder)

    def abandon(self) -> None:
        """Bring the former state back and leave no temporary file, as far as the file system lets us."""
        for step in (self._close, self._take_back, self._remove_temp, self.drop_backup):
            with suppress(OSError):
                step()

    def drop_backup(self) -> None:
        """The new file is accepted (or the old one is back): the second name of the old one goes."""
        backup, self._backup = self._backup, None
        if backup is not None:
            with suppress(OSError):
                os.unlink(backup)

    def _spare_name(self) -> str:
        return f"{self._final}.{secrets.token_hex(4)}.tmp"

    def _create(self) -> int:
        self._folders.ensure(self._folder)
        self._fd = os.open(self._temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        return self._fd

    def _seal(self) -> None:
        if self._fd is None:
            raise ValueError("the file is not open")
        os.fsync(self._fd)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None  # whatever close() says, Linux has released the descriptor
        if fd is not None:
            os.close(fd)

    def _replace(self) -> None:
        existed = os.path.lexists(self._final)
        if existed:
            self._keep_old()
        os.replace(self._temp, self._final)
        if not existed:
            self._undo = self._unlink_final

    def _keep_old(self) -> None:
        backup = self._spare_name()
        try:
            os.link(self._final, backup)
        except OSError as error:
            if error.errno in LINK_REFUSED:
                return  # no way back here: a failure of the last sync leaves the new file, whole
            raise
        self._backup = backup
        self._undo = self._restore_old

    def _place_new(self) -> None:
        try:
            os.link(self._temp, self._final)
        except FileExistsError:
            if not os.path.samefile(self._temp, self._final):  # NFS: our own link, whose answer was lost
                raise
        except OSError as error:
            if error.errno not in LINK_REFUSED:
                raise
            _rename_new(self._temp, self._final)
        self._undo = self._unlink_final
        self._remove_temp()

    def _remove_temp(self) -> None:
        with suppress(OSError):
            os.unlink(self._temp)

    def _take_back(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
            sync_folder(self._folder)

    def _unlink_final(self) -> None:
        os.unlink(self._final)

    def _restore_old(self) -> None:
        if self._backup is not None:
            os.replace(self._backup, self._final)


def _rename_new(source: str, target: str) -> None:
    try:
        rename_new(source, target)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOSYS}:
            message = "this file system has neither hard links nor exclusive renames: it cannot hold checkpoints safely"
            raise OSError(errno.ENOTSUP, message) from error
        raise
