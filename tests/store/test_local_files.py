"""A local store on real files: sizes, modes, odd entries, full disks, threads."""

import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from asyncckpt.errors import PermanentStoreError
from asyncckpt.store.base import Entry
from asyncckpt.store.local import LocalStore


def test_short_writes_are_continued(store, monkeypatch, ops):
    """Case 63: a write that takes 1000 bytes at a time still ends with the whole file."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:1000]))
    data = os.urandom(1_000_000)
    assert ops.put(store, "f/a", data) == len(data)
    assert ops.get(store, "f/a", len(data)) == data


def test_short_direct_writes_are_continued(store, monkeypatch, ops):
    """Case 63: short counts that break the alignment of a large direct write do no harm."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:1_000_000]))
    data = os.urandom(9_000_001)
    assert ops.put(store, "f/a", data) == len(data)
    assert ops.get(store, "f/a", len(data)) == data


def test_short_reads_are_continued(store, monkeypatch, ops):
    """Case 63: a read that gives 1000 bytes at a time fills the whole buffer."""
    real = os.preadv
    data = os.urandom(100_001)
    ops.put(store, "f/a", data)
    monkeypatch.setattr(os, "preadv", lambda fd, into, start: real(fd, [memoryview(into[0])[:1000]], start))
    assert ops.get(store, "f/a", len(data)) == data


def test_a_write_that_takes_nothing_is_an_error(store, monkeypatch, ops):
    """A file system that takes no bytes and reports no error does not hang the writer."""
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(PermanentStoreError) as caught:
        ops.put(store, "f/a", b"x")
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_umask_is_honoured(store, root, ops, umask):
    """Files and folders have the modes that the user's umask says."""
    before = os.umask(umask)
    try:
        ops.put(store, "f/a", b"x")
        ops.do(lambda: store.put_new("f/b", b"x"))
    finally:
        os.umask(before)
    modes = {path.relative_to(root.parent).as_posix(): path.stat().st_mode & 0o777 for path in root.rglob("*")}
    assert modes == {"root/f": 0o777 & ~umask, "root/f/a": 0o666 & ~umask, "root/f/b": 0o666 & ~umask}


def test_the_root_is_absolute_from_the_start(tmp_path, monkeypatch, ops):
    """A later change of the working folder changes nothing; ~ is expanded; links are not resolved."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = LocalStore("link/root")
    monkeypatch.chdir("/")
    ops.put(store, "f/a", b"x")
    assert store.url == str(tmp_path / "link" / "root")
    assert (tmp_path / "elsewhere" / "root" / "f" / "a").exists()
    assert LocalStore("~/x").url == str(tmp_path / "x")


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "f/../../a", ".", "f/\0"])
def test_keys_that_lead_elsewhere_are_refused(store, root, ops, key):
    """Nothing outside the root can be named, and the iterator is closed all the same."""
    closed = []

    async def parts():
        yield b""

    class Parts:
        def __aiter__(self):
            return parts()

        async def aclose(self):
            closed.append(True)

    with pytest.raises(ValueError, match="not a key"):
        ops.put(store, key, Parts())
    assert closed
    assert not root.exists()


def test_odd_entries_are_listed_as_they_are(store, root, ops):
    """Case 40: links to folders are not folders, links to files have the file's size, dangling and looping ones 0."""
    ops.put(store, "f/a", b"12345")
    (root / "to-folder").symlink_to("f")
    (root / "to-file").symlink_to("f/a")
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    found = {entry.name: entry for entry in ops.do(lambda: store.list(""))}
    assert found["f"] == Entry("f", 0, is_folder=True)
    assert not found["to-folder"].is_folder
    assert (found["to-file"].size, found["dangling"].size, found["loop"].size) == (5, 0, 0)


def test_entries_that_vanish_during_a_listing_are_left_out(store, root, monkeypatch, ops):
    """Another process may clean up meanwhile."""
    ops.put(store, "a", b"1")
    ops.put(store, "b", b"1")
    real = os.scandir

    class Scan:
        def __init__(self, path):
            self.inner = real(path)

        def __enter__(self):
            entries = list(self.inner)
            (root / "a").unlink()
            return iter(entries)

        def __exit__(self, *error):
            self.inner.close()

    monkeypatch.setattr(os, "scandir", Scan)
    assert [entry.name for entry in ops.do(lambda: store.list(""))] == ["b"]


def test_no_thread_is_left_after_a_call(store, ops):
    """Idle threads would hold up the end of the program."""
    before = set(threading.enumerate())
    ops.put(store, "f/a", b"x")
    ops.get(store, "f/a", 1)
    ops.do(lambda: store.delete(["f/a"]))
    assert set(threading.enumerate()) == before


def test_it_works_where_no_thread_can_be_started(store, monkeypatch, ops):
    """At the very end of the interpreter new threads are refused: calls then run in place."""

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    ops.put(store, "f/a", bytes(9 << 20))
    assert ops.get(store, "f/a", 9 << 20) == bytes(9 << 20)
    with pytest.raises(FileNotFoundError):
        ops.get(store, "f/b", 1)


def test_a_put_goes_on_after_the_main_thread_has_ended(tmp_path):
    """Case 20: a store used from a plain thread finishes its file though the script is over."""
    script = """
import asyncio, sys, threading
from asyncckpt.store.local import LocalStore

async def parts():
    threading.main_thread().join()
    for _ in range(3):
        yield bytes(5 << 20)

async def save():
    await LocalStore(sys.argv[1]).put("f/a", parts())

threading.Thread(target=lambda: asyncio.run(save())).start()
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "f" / "a").stat().st_size == 15 << 20


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("SKIPPED THE REAL FULL DISK: there is no mount command")
    if done.returncode:
        pytest.skip(f"SKIPPED THE REAL FULL DISK: mounting a tmpfs needs root ({done.stderr.strip()})")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk, ops):
    """Case 26: ENOSPC comes out, nothing stays, the old object is whole, and with room the next put works."""
    store, old = LocalStore(small_disk / "root"), os.urandom(1 << 20)

    async def parts():
        for _ in range(4):
            yield bytes(3 << 20)

    ops.put(store, "f/old", old)
    with pytest.raises(PermanentStoreError) as caught:
        ops.put(store, "f/a", parts())
    assert caught.value.errno == errno.ENOSPC
    assert ops.names(small_disk / "root" / "f") == ["old"]
    assert ops.get(store, "f/old", len(old)) == old
    assert ops.put(store, "f/b", bytes(5 << 20)) == 5 << 20


def test_a_limit_on_file_size(tmp_path):
    """Case 26: EFBIG of a process that may not write so much comes out as an error, and nothing stays."""
    script = f"""
import asyncio, errno, os, resource, signal, sys
sys.path[:0] = {sys.path!r}
from asyncckpt.errors import PermanentStoreError
from asyncckpt.store.base import single
from asyncckpt.store.local import LocalStore

async def main():
    store = LocalStore(sys.argv[1])
    for size in (4 << 20, 20 << 20):
        try:
            await store.put("f/a", single(bytes(size)))
        except PermanentStoreError as error:
            assert error.errno == errno.EFBIG, error
        else:
            raise SystemExit("no error")
        assert await store.list("f") == []
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.put("f/a", single(bytes(4 << 20)))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_001, resource.RLIM_INFINITY))
asyncio.run(main())
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert Path(tmp_path, "f", "a").stat().st_size == 4 << 20
