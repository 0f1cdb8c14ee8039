"""Disk space taken ahead of the writes: what does not fit shows early, and nothing is left over."""

import errno
import os

import pytest

from asyncckpt.errors import PermanentStoreError
from asyncckpt.store import room
from asyncckpt.store.direct import LARGE, PIECE
from asyncckpt.store.linux import allocate
from asyncckpt.store.room import STEP, Room

BLOCK = 512  # bytes of one unit of st_blocks


class Parts:
    """Bytes in pieces of 1 MiB, with their number if it is known."""

    def __init__(self, data, nbytes=None):
        self._data, self.nbytes = data, nbytes
        self.asked = 0

    def __aiter__(self):
        return self

    async def __anext__(self):
        start = self.asked * LARGE
        if start >= len(self._data):
            raise StopAsyncIteration
        self.asked += 1
        return self._data[start : start + LARGE]


def answer(monkeypatch, reply):
    """Let ``reply(offset, count)`` decide over each request for space: an errno refuses it; give those that were made."""
    asked = []

    def call(fd, offset, nbytes):
        asked.append((offset, nbytes))
        number = reply(offset, nbytes)
        if number:
            raise OSError(number, os.strerror(number))
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(room, "allocate", call)
    return asked


def takes_space(folder):
    with (folder / "probe").open("wb") as file:
        try:
            allocate(file.fileno(), 0, LARGE)
        except OSError:
            return False
        return os.fstat(file.fileno()).st_blocks * BLOCK >= LARGE


@pytest.fixture
def taking(tmp_path):
    """A folder whose file system takes space ahead."""
    if not takes_space(tmp_path):
        pytest.skip(f"SKIPPED SPACE TAKEN AHEAD: {tmp_path} is on a file system without fallocate")
    return tmp_path


def test_a_known_size_is_taken_whole_before_the_first_write(store, root, monkeypatch, ops):
    """One request for all of it, and none beyond."""
    asked = answer(monkeypatch, lambda offset, count: 0)
    data = os.urandom(3 * PIECE + 5)
    assert ops.put(store, "f/a", Parts(data, len(data))) == len(data)
    assert asked == [(0, len(data))]
    assert (root / "f/a").read_bytes() == data


@pytest.mark.parametrize("known", [None, 2 * PIECE + 3, 9 * PIECE])
def test_nothing_taken_ahead_is_left_in_the_file(taking, store, root, ops, known):
    """Blocks behind the end are given back, also where the producer promised more than it gave."""
    data = os.urandom(2 * PIECE + 3)
    ops.put(store, "f/a", Parts(data, known))
    stat = (root / "f/a").stat()
    assert stat.st_size == len(data)
    assert stat.st_blocks * BLOCK <= len(data) + 2 * stat.st_blksize


def test_space_is_taken_and_given_back_for_real(taking):
    """The size stays, the blocks come and go."""
    with (taking / "a").open("wb") as file:
        ahead = Room(file.fileno(), None)
        ahead.reach(1)
        taken = os.fstat(file.fileno())
        assert (taken.st_size, taken.st_blocks * BLOCK >= STEP) == (0, True)
        ahead.trim(0)
        assert os.fstat(file.fileno()).st_blocks == 0


def test_unknown_sizes_are_taken_in_steps(taking, monkeypatch):
    """A step is taken only when the writes reach it."""
    asked = answer(monkeypatch, lambda offset, count: 0)
    with (taking / "a").open("wb") as file:
        ahead = Room(file.fileno(), None)
        ahead.reach(STEP)
        assert asked == [(0, STEP)]
        ahead.reach(STEP + 1)
        assert asked == [(0, STEP), (STEP, STEP)]


def full(monkeypatch, free):
    """A disk with so many bytes left."""
    monkeypatch.setattr(room, "_free", lambda fd: free)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_shows_before_the_first_byte(store, root, monkeypatch, ops, number):
    """The bytes are known not to fit: no write is begun, and nothing is left."""
    full(monkeypatch, PIECE)
    answer(monkeypatch, lambda offset, count: number)
    parts = Parts(bytes(5 * PIECE), 5 * PIECE)
    with pytest.raises(PermanentStoreError) as caught:
        ops.put(store, "f/a", parts)
    assert caught.value.errno == number
    assert parts.asked * LARGE < 3 * PIECE
    assert ops.names(root / "f") == []


@pytest.mark.parametrize(
    ("number", "known"),
    [
        (errno.EOPNOTSUPP, True),
        (errno.ENOSYS, True),
        (errno.EINTR, False),
        (errno.ENOSPC, True),  # although there is room: about something else
        (errno.ENOSPC, False),
        (errno.EDQUOT, False),
    ],
)
def test_a_refusal_that_proves_nothing_is_no_error(store, root, monkeypatch, ops, number, known):
    """Without fallocate, or where less than a step may be needed, the writes themselves decide; nobody asks again."""
    full(monkeypatch, 100 * PIECE if known else 0)
    asked = answer(monkeypatch, lambda offset, count: number)
    data = os.urandom(2 * PIECE + 1)
    assert ops.put(store, "f/a", Parts(data, len(data) if known else None)) == len(data)
    assert len(asked) == 1
    assert (root / "f/a").read_bytes() == data


def test_more_than_was_promised_is_written_all_the_same(store, root, monkeypatch, ops):
    """A wrong size costs nothing but the room."""
    asked = answer(monkeypatch, lambda offset, count: 0)
    data = os.urandom(2 * PIECE)
    ops.put(store, "f/a", Parts(data, PIECE))
    assert asked == [(0, PIECE)]
    assert (root / "f/a").read_bytes() == data


def test_small_files_take_no_room(store, monkeypatch, ops):
    """An index is one write: there is nothing to be early for."""
    asked = answer(monkeypatch, lambda offset, count: 0)
    ops.put(store, "f/a", b"x" * 100)
    assert asked == []
