"""What a disk may hold after a power loss: the model of docs/crash-safety.md. Pure; no torch.

* A file's bytes are certain up to its last sync. Each later write, on its own: whole, not at all, only its first 512 or
  4096 bytes, without its first 512, garbage, zeros (the length without the data), or what lay there before: bytes of
  another file of its kind.
* A folder's names are certain up to its last sync. Of the later changes any subset has happened, in order. One change
  (a rename, above all) happens as a whole or not at all.
* A sync of a file does nothing for its name, that of a folder nothing for files or folders in it.

A tree is the result: (name, bytes of a file or tree of a folder) pairs, sorted by name.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

from recording import Data, Names, Note, Size, Sync

GARBAGE = random.Random(7).randbytes(1 << 16)


@dataclass
class Disk:
    """A disk on which something is going on.

    Attributes:
        names, files: what is certain.
        changes: folder -> changes of names since its last sync.
        writes: file -> writes since its last sync.
        stale: bytes that a reused block may show.
    """

    names: dict
    files: dict
    changes: dict = field(default_factory=dict)
    writes: dict = field(default_factory=dict)
    stale: bytes = b""

    @classmethod
    def of(cls, image):
        """All of it certain."""
        manifests = [data for data in image.files.values() if data.startswith(b"{")]
        return cls(
            {number: dict(names) for number, names in image.folders.items()},
            dict(image.files),
            stale=max(manifests, key=len, default=b""),
        )

    def apply(self, event):
        """One more event; True if other states are possible after it."""
        if isinstance(event, Names):
            for _, number in event.changes:
                if event.is_folder:
                    self.names[number] = {}
                elif number is not None:
                    self.files.setdefault(number, b"")
            self.changes.setdefault(event.folder, []).append(event.changes)
        elif isinstance(event, Data | Size):
            self.writes.setdefault(event.file, []).append(event)
        elif isinstance(event, Sync):
            self._sync(event.number)
        return not isinstance(event, Note)

    def _sync(self, number):
        for changes in self.changes.pop(number, ()):
            _change(self.names[number], changes)
        for write in self.writes.pop(number, ()):
            self.files[number] = _written(self.files[number], write)

    def trees(self) -> Iterator[tuple]:
        """All states that a power loss may leave now; some may come twice. The plainest come first."""
        unsure = list(self.writes)
        for contents in product(*(self._contents(number) for number in unsure)):
            files = {**self.files, **dict(zip(unsure, contents, strict=True))}
            yield from self._folder(0, files)

    def _contents(self, number):
        """What may be in a file, each once."""
        found = [self.files[number]]
        for write in self.writes[number]:
            found = [after for before in found for after in outcomes(before, write, self.stale)]
            found = list(dict.fromkeys(found))
        return found

    def _folder(self, number, files):
        for names in self._listings(number):
            order = sorted(names)
            inner = [self._entry(names[name], files) for name in order]
            for found in product(*inner):
                yield tuple(zip(order, found, strict=True))

    def _entry(self, number, files):
        return [files[number]] if number in files else list(dict.fromkeys(self._folder(number, files)))

    def _listings(self, number):
        """What names a folder may hold, each once."""
        pending = self.changes.get(number, ())
        seen = {}
        for count in range(len(pending), -1, -1):
            for chosen in combinations(pending, count):
                names = dict(self.names[number])
                for changes in chosen:
                    _change(names, changes)
                seen[tuple(sorted(names.items()))] = names
        return list(seen.values())


def _change(names, changes):
    for name, number in changes:
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _written(before, write):
    if isinstance(write, Size):
        return before[: write.size].ljust(write.size, b"\0")
    before = before.ljust(write.offset, b"\0")
    return before[: write.offset] + write.data + before[write.offset + len(write.data) :]


def outcomes(before, write, stale):
    """What a file may be after one write that was not synced."""
    whole = _written(before, write)
    yield whole
    yield before
    if isinstance(write, Size):
        return
    data = write.data
    parts = [data[:512], data[:4096]]
    disguises = [
        bytes(min(512, len(data))) + data[512:],
        (GARBAGE * (len(data) // len(GARBAGE) + 1))[: len(data)],
        bytes(len(data)),
        stale[: len(data)],
    ]
    for instead in (*parts, *disguises):
        if instead:
            yield _written(before, Data(write.file, write.offset, instead))


def states(base, events) -> Iterator[tuple]:
    """(number of events before the power loss, tree): all that may be left, for every moment. Each moment's once."""
    disk, found = Disk.of(base), []
    for at in range(len(events) + 1):
        if not at or disk.apply(events[at - 1]):
            found = dict.fromkeys(disk.trees())
        for tree in found:
            yield at, tree


def paths_of(tree, prefix="") -> dict:
    """Path -> bytes of a file, or None for a folder."""
    found = {}
    for name, content in tree:
        path = prefix + name
        if isinstance(content, bytes):
            found[path] = content
        else:
            found[path] = None
            found.update(paths_of(content, path + "/"))
    return found
