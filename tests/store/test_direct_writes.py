"""How the bytes of a file are cut into writes, direct and buffered."""

import errno
import fcntl
import mmap
import os
import threading

import numpy as np
import pytest

from asyncckpt.store import direct
from asyncckpt.store.direct import LARGE, PAGE, PIECE
from asyncckpt.store.local import LocalStore

F_SETFL = fcntl.F_SETFL


class Writes:
    """Records each write: its bytes, whether it was direct, where its memory was."""

    def __init__(self, monkeypatch):
        self.sizes, self.direct, self.addresses = [], [], []
        self._real, self.refuse = os.write, lambda direct: False
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd, data):
        direct_now = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
        if self.refuse(direct_now):
            raise OSError(errno.EINVAL, "invalid")
        self.sizes.append(len(data))
        self.direct.append(direct_now)
        self.addresses.append(np.frombuffer(data, np.uint8).ctypes.data)
        return self._real(fd, data)


@pytest.fixture
def writes(monkeypatch):
    """All calls of ``os.write``."""
    return Writes(monkeypatch)


@pytest.fixture
def refusing_fcntl(monkeypatch):
    """A file system that takes no O_DIRECT."""
    real = fcntl.fcntl

    def call(fd, command, argument=0):
        if command == F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "invalid")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", call)


@pytest.fixture
def hints(monkeypatch):
    """All hints to start write-back."""
    seen = []
    monkeypatch.setattr(direct, "start_writeback", lambda fd, start, count: seen.append((start, count)))
    return seen


def _takes_direct(folder):
    fd = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.fcntl(fd, F_SETFL, os.O_DIRECT)
        os.write(fd, mmap.mmap(-1, PAGE))
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


@pytest.fixture
def direct_store(tmp_path):
    """A store on a file system that takes direct writes."""
    if not _takes_direct(tmp_path):
        pytest.skip(f"SKIPPED DIRECT WRITES: {tmp_path} is on a file system that refuses O_DIRECT")
    return LocalStore(tmp_path / "root")


async def small_parts(data, size=100_003):
    """The data in parts of an odd size."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def test_small_parts_are_gathered(direct_store, writes, ops):
    """Small parts go out in aligned pieces of 8 MiB, past the page cache; the odd end is buffered."""
    data = os.urandom(2 * PIECE + 3 * PAGE + LARGE + 5)
    ops.put(direct_store, "f/a", small_parts(data))
    assert writes.sizes == [PIECE, PIECE, 3 * PAGE + LARGE, 5]
    assert writes.direct == [True, True, True, False]
    assert all(address % PAGE == 0 for address in writes.addresses[:3])
    assert ops.get(direct_store, "f/a", len(data)) == data


def test_aligned_parts_are_not_copied(direct_store, writes, ops):
    """Large page-aligned parts go straight from the caller's memory, until something odd comes between."""
    part = np.frombuffer(mmap.mmap(-1, 4 << 20), np.uint8)
    part[:] = np.random.default_rng(1).integers(0, 256, part.size)

    async def parts():
        yield part.data
        yield part.data
        yield b"odd"
        yield part.data

    ops.put(direct_store, "f/a", parts())
    assert writes.addresses[:2] == [part.ctypes.data] * 2
    assert writes.sizes == [part.size, part.size, part.size, 3]
    assert writes.direct == [True, True, True, False]
    whole = part.tobytes()
    assert ops.get(direct_store, "f/a", 3 * part.size + 3) == whole + whole + b"odd" + whole


def test_the_odd_end_of_an_aligned_part(direct_store, writes, ops):
    """The whole pages of an aligned part go straight, its rest with what follows."""
    memory = np.frombuffer(mmap.mmap(-1, 4 << 20), np.uint8)
    part = memory[: LARGE + 100].data
    ops.put(direct_store, "f/a", small_parts(part, len(part)))
    assert writes.sizes == [LARGE, 100]


def test_small_files_never_try_direct(store, writes, ops):
    """An index or a manifest is one buffered write."""
    ops.put(store, "f/a", bytes(LARGE - 1))
    assert (writes.sizes, writes.direct) == ([LARGE - 1], [False])


def test_a_file_system_without_direct_writes(store, writes, refusing_fcntl, hints, ops):
    """Refused when asked: all is buffered, write-back is started behind each piece, large parts are not copied."""
    data = os.urandom(PIECE + LARGE)
    ops.put(store, "f/a", small_parts(data))
    assert writes.sizes == [PIECE, LARGE]
    assert not any(writes.direct)
    assert hints == [(0, PIECE), (PIECE, LARGE)]
    assert ops.get(store, "f/a", len(data)) == data


def test_large_parts_are_not_copied_once_writes_are_buffered(store, writes, refusing_fcntl, ops):
    """Alignment does not matter to the page cache."""
    part = np.zeros(LARGE + 1, np.uint8)[1:]

    async def parts():
        yield bytes(PIECE)
        yield bytes(PIECE)
        yield part.data

    ops.put(store, "f/a", parts())
    assert writes.sizes == [PIECE, PIECE, LARGE]
    assert writes.addresses[2] == part.ctypes.data


@pytest.mark.parametrize("good", [0, 1])
def test_direct_writes_refused_only_at_the_write(store, writes, hints, ops, good):
    """EINVAL from a direct write, the first or a later one: the rest is buffered, and no byte is lost."""
    writes.refuse = lambda direct_now: direct_now and len(writes.sizes) >= good
    data = os.urandom(3 * PIECE + 7)
    ops.put(store, "f/a", small_parts(data))
    assert sum(writes.sizes) == len(data)
    assert not any(writes.direct[good:])
    assert ops.get(store, "f/a", len(data)) == data


def test_einval_of_a_buffered_write_is_an_error(store, writes, ops):
    """Only a direct write may be tried again."""
    writes.refuse = lambda direct_now: True
    with pytest.raises(OSError, match=r"[Ii]nvalid"):
        ops.put(store, "f/a", bytes(10))
    with pytest.raises(OSError, match=r"[Ii]nvalid"):
        ops.put(store, "f/a", bytes(3 * PIECE))


def test_copying_and_writing_overlap(store, monkeypatch, ops):
    """While a piece is being written, parts for the next one are taken."""
    real, taken_meanwhile, first = os.write, threading.Event(), [True]

    def write(fd, data):
        if len(data) == PIECE and first.pop():
            first.append(False)
            assert taken_meanwhile.wait(30)
        return real(fd, data)

    async def parts():
        for i in range(3):
            if i == 2:
                taken_meanwhile.set()
            yield bytes(PIECE - 1)

    monkeypatch.setattr(os, "write", write)
    assert ops.put(store, "f/a", parts()) == 3 * (PIECE - 1)
