"""The lock of a local root: over processes, within one, and in forked children."""

import contextlib
import errno
import fcntl
import logging
import os
import subprocess
import sys

import pytest

from asyncckpt.errors import PermanentStoreError, RootInUseError
from asyncckpt.store import lock
from asyncckpt.store.local import LocalStore

HOLD = """
import sys
from asyncckpt.store.local import LocalStore
with LocalStore(sys.argv[1]).writer_lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(root):
    """Another process that holds the root."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_two_holders_in_one_process(root):
    """The second is refused, with the name of the holder; after release it is let in."""
    with LocalStore(root).writer_lock():
        with pytest.raises(RootInUseError, match=rf"in use by another writer: process {os.getpid()} on ") as caught:
            LocalStore(root).writer_lock().__enter__()
        assert caught.value.path == str(root)
        assert caught.value.errno == errno.EWOULDBLOCK
    with LocalStore(root).writer_lock():
        pass


def test_two_processes(root, holder):
    """Case 43: a second job on the same root is refused, and told who is there."""
    with pytest.raises(RootInUseError, match=f"process {holder.pid} on "):
        LocalStore(root).writer_lock().__enter__()


def test_a_killed_holder_leaves_no_lock(root, holder):
    """However the holder died, the next writer comes in; the file stays."""
    holder.kill()
    holder.wait()
    with LocalStore(root).writer_lock():
        assert (root / lock.LOCK_NAME).read_text().startswith(f"process {os.getpid()} ")
    assert (root / lock.LOCK_NAME).exists()


def _in_child(run):
    """Fork; give the child's exit status. ``run`` gives True for success."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if run() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _refused(root):
    try:
        with LocalStore(root).writer_lock():
            return False
    except RootInUseError:
        return True


def test_a_forked_child_does_not_release_the_lock(root):
    """Case 70: a child that leaves the with block, and ends, takes nothing from its parent."""
    held = LocalStore(root).writer_lock()
    with held:
        assert _in_child(lambda: held.__exit__(None, None, None) is None) == 0
        assert _refused(root)
        assert _in_child(lambda: _refused(root)) == 0
    assert not _refused(root)


def test_a_forked_child_does_not_keep_the_lock(root):
    """Case 70: a child that outlives its parent's writer does not keep others out, even if nobody unlocks."""
    (go_on, let_go), (is_up, say_up) = os.pipe(), os.pipe()
    held = LocalStore(root).writer_lock()
    held.__enter__()
    pid = os.fork()
    if pid == 0:
        os.write(say_up, b"x")
        os.close(let_go)
        os.read(go_on, 1)
        os._exit(0)
    try:
        os.read(is_up, 1)
        os.close(held._fd)  # as if the parent had been killed: closed, never unlocked
        lock._held.discard(held)
        assert not _refused(root)
    finally:
        os.close(let_go)
        os.waitpid(pid, 0)
        for fd in (go_on, is_up, say_up):
            os.close(fd)


def test_a_started_program_does_not_inherit_the_lock(root):
    """Programs started by a writer do not keep its root."""
    held = LocalStore(root).writer_lock()
    held.__enter__()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as process:
        os.close(held._fd)
        lock._held.discard(held)
        assert not _refused(root)
        process.stdin.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks(root, monkeypatch, caplog, number):
    """One warning, and the writer goes on."""

    def flock(fd, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING, "asyncckpt"), LocalStore(root).writer_lock():
        pass
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no file locks here" in caplog.text


def test_a_root_that_cannot_be_made(tmp_path):
    """An error of the system comes out as a store error, with nothing left open."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentStoreError):
        LocalStore(tmp_path / "file" / "root").writer_lock().__enter__()


def test_a_failing_lock_call_leaves_no_descriptor(root, monkeypatch):
    """The descriptor is closed when locking fails for another reason."""
    opened, real = [], os.open

    def flock(fd, how):
        opened.append(fd)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(PermanentStoreError):
        LocalStore(root).writer_lock().__enter__()
    assert real is os.open
    with contextlib.suppress(OSError):
        os.fstat(opened[0])
        pytest.fail("still open")
