"""Records what a local store does to its disk: every change of a name, of bytes, every sync. No torch.

In place of ``os`` the modules of the store get ``RecordingOs``: the real calls on a real folder, each change noted as an
event. Files and folders are known by numbers, as a disk knows them, so that a rename moves names and not bytes. A call
that it does not know is refused: nothing changes the disk unseen.
"""

import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncckpt.store import direct, draft, folders, local, lock, reading, room

MODULES = (direct, draft, folders, local, lock, reading, room)
READING = frozenset({
    "environ", "fsdecode", "fsencode", "fspath", "fstat", "fstatvfs", "getpid", "lstat", "path", "pread", "preadv",
    "register_at_fork", "scandir", "stat", "strerror",
})  # fmt: skip
STORE = str(Path(draft.__file__).parent)


@dataclass(frozen=True, slots=True)
class Names:
    """An atomic change in one folder: name -> number, or None for a name that goes. ``is_folder``: of what comes."""

    folder: int
    changes: tuple
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes written into a file."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Size:
    """A file cut or stretched."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A file's bytes or a folder's names are durable now. ``site``: the function of the store that asked for it."""

    number: int
    site: str


@dataclass(frozen=True, slots=True)
class Note:
    """Not of the disk: what was begun, promised or said, in the words of the diary."""

    words: tuple


@dataclass
class Image:
    """What a disk holds: folder -> {name: number}, file -> bytes. Number 0 is the top folder."""

    folders: dict
    files: dict

    @classmethod
    def of(cls, top):
        """What there is below a real folder. Names, numbers and bytes all count as durable."""
        image = cls({0: {}}, {})
        image._take(Path(top), 0)
        return image

    def _take(self, path, number):
        for child in sorted(path.iterdir()):
            new = self.next()
            self.folders[number][child.name] = new
            if child.is_dir():
                self.folders[new] = {}
                self._take(child, new)
            else:
                self.files[new] = child.read_bytes()

    def next(self):
        """A number that is free."""
        return len(self.folders) + len(self.files)


class DeadError(OSError):
    """The recorded process is dead: it does nothing more."""


class RecordingOs:
    """``os`` for a store below ``top``.

    Attributes:
        base: the disk as it was at the beginning.
        events: what has happened since.
        die_at: the process is dead after so many events: all calls fail from then on, until it is set to None.
        failing: called with ``"fsync"`` and the site; an errno makes that call fail.
    """

    def __init__(self, top):
        self.top = os.path.realpath(top)
        self.base = Image.of(top)
        self.events = []
        self.die_at = None
        self.failing = lambda name, site: None
        self._folders = {number: dict(names) for number, names in self.base.folders.items()}
        self._count = self.base.next()
        self._open = {}
        self._mutex = threading.RLock()

    def __getattr__(self, name):
        if name in READING or not name.islower():
            return getattr(os, name)
        raise AssertionError(f"the recorder does not know os.{name}")

    def note(self, *words):
        """A line of the diary, in its place among the events. The dead write none."""
        with self._mutex:
            if self.die_at is None or len(self.events) < self.die_at:
                self.events.append(Note(words))

    def notes(self):
        """The words of all notes."""
        return [event.words for event in self.events if isinstance(event, Note)]

    # ---- names ----

    def open(self, path, flags, mode=0o777):
        with self._alive():
            known = self._number(path)
            fd = os.open(path, flags, mode)
            if known is None and flags & os.O_CREAT:
                known = self._new()
                self._change(path, known)
            self._open[fd] = known
            return fd

    def mkdir(self, path):
        with self._alive():
            os.mkdir(path)
            number = self._new()
            self._folders[number] = {}
            self._change(path, number, is_folder=True)

    def makedirs(self, path, exist_ok=False):
        assert exist_ok
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            self.makedirs(parent, exist_ok=True)
        if not os.path.isdir(path):
            self.mkdir(path)

    def rmdir(self, path):
        with self._alive():
            os.rmdir(path)
            self._change(path, None)

    def unlink(self, path):
        with self._alive():
            os.unlink(path)
            self._change(path, None)

    def link(self, source, target):
        with self._alive():
            os.link(source, target)
            self._change(target, self._number(source))

    def replace(self, source, target):
        with self._alive():
            os.replace(source, target)
            assert os.path.dirname(source) == os.path.dirname(target)
            self._change(target, self._number(source), gone=os.path.basename(source))

    # ---- bytes ----

    def write(self, fd, data):
        with self._alive():
            offset = os.lseek(fd, 0, os.SEEK_CUR)
            count = os.write(fd, data)
            self._add(Data(self._open[fd], offset, bytes(memoryview(data).cast("B")[:count])))
            return count

    def pwrite(self, fd, data, offset):
        with self._alive():
            count = os.pwrite(fd, data, offset)
            self._add(Data(self._open[fd], offset, bytes(data[:count])))
            return count

    def ftruncate(self, fd, size):
        with self._alive():
            os.ftruncate(fd, size)
            self._add(Size(self._open[fd], size))

    def fsync(self, fd):
        with self._alive():
            site = _site()
            number = self.failing("fsync", site)
            if number:
                raise OSError(number, os.strerror(number))
            self._add(Sync(self._open[fd], site))  # nothing to wait for: the real folder outlives the test

    def close(self, fd):
        """Also of a dead process: its descriptors are closed for it."""
        os.close(fd)
        self._open.pop(fd, None)

    # ---- book-keeping ----

    @contextmanager
    def _alive(self):
        with self._mutex:
            if self.die_at is not None and len(self.events) >= self.die_at:
                raise DeadError(5, "dead")
            yield

    def _new(self):
        self._count += 1
        return self._count - 1

    def _add(self, event):
        self.events.append(event)

    def _change(self, path, number, *, gone=None, is_folder=False):
        folder, name = self._number(os.path.dirname(path)), os.path.basename(path)
        changes = ((name, number), (gone, None)) if gone else ((name, number),)
        for key, value in changes:
            if value is None:
                self._folders[folder].pop(key, None)
            else:
                self._folders[folder][key] = value
        self._add(Names(folder, changes, is_folder))

    def _number(self, path):
        """The number under a path; None if there is none, or if it lies outside."""
        path = os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path) if path != self.top else path
        if path != self.top and not path.startswith(self.top + "/"):
            return None
        number = 0
        for name in os.path.relpath(path, self.top).split("/"):
            if name != ".":
                number = self._folders.get(number, {}).get(name)
        return number


def _site():
    """Which functions of the store are on the stack, innermost first, as ``file:function``."""
    frame, names = sys._getframe(2), []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(STORE):
            names.append(f"{Path(code.co_filename).name}:{code.co_name}")
        frame = frame.f_back
    return " < ".join(names[:3])


@contextmanager
def recorded(top):
    """Stores made anywhere in the process run on the recorder meanwhile."""
    recorder = RecordingOs(top)
    kept = [module.os for module in MODULES]
    for module in MODULES:
        module.os = recorder
    plain, draft.rename_new = draft.rename_new, recorder.replace
    try:
        yield recorder
    finally:
        draft.rename_new = plain
        for module, real in zip(MODULES, kept, strict=True):
            module.os = real
