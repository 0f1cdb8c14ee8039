"""What a failure at any call of a local store leaves behind."""

import errno
import os
import shutil

import pytest

from asyncckpt.errors import PermanentStoreError, StoreError, TransientStoreError

OLD, NEW = b"old" * 1000, b"new" * 2000


@pytest.mark.parametrize(("exclusive", "replacing"), [(False, False), (False, True), (True, False)])
def test_a_failure_at_any_call_changes_nothing(store, root, disk, ops, exclusive, replacing):
    """Case 26: whichever call fails, the old object or nothing is there, no temporary file, and the next try works."""
    write = (lambda: store.put_new("f/a", NEW)) if exclusive else None
    seen = []
    for k in range(1, 100):
        shutil.rmtree(root, ignore_errors=True)
        if replacing:
            ops.put(store, "f/a", OLD)
        disk.calls.clear()
        disk.failing = lambda name, path, number, k=k: errno.EIO if number == k else None
        try:
            ops.do(write) if write else ops.put(store, "f/a", NEW)
        except PermanentStoreError as error:
            disk.failing = None
            seen.append((error.errno, type(error.__cause__)))
            assert ops.names(root / "f") == (["a"] if replacing else [])
            assert not replacing or ops.get(store, "f/a", len(OLD)) == OLD
            ops.do(write) if write else ops.put(store, "f/a", NEW)
        disk.failing = None
        assert ops.get(store, "f/a", len(NEW)) == NEW
        if len(disk.calls) < k:
            break
    assert k > 8
    assert set(seen) == {(errno.EIO, OSError)}


@pytest.mark.parametrize("replacing", [False, True])
def test_a_disk_that_stays_broken(store, root, disk, ops, replacing):
    """Case 26: when every call from the k-th on fails, the error comes out, and what is under the name is whole."""
    for k in range(1, 100):
        disk.failing = None
        shutil.rmtree(root, ignore_errors=True)
        if replacing:
            ops.put(store, "f/a", OLD)
        disk.calls.clear()
        disk.failing = lambda name, path, number, k=k: errno.EIO if number >= k else None
        try:
            ops.put(store, "f/a", NEW)
        except PermanentStoreError:
            finals = [name for name in ops.names(root / "f") if not name.endswith(".tmp")]
            assert [(root / "f" / name).read_bytes() in {OLD, NEW} for name in finals] in ([], [True])
            assert finals or not replacing
        else:
            break
    assert k > 8


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("after", [0, 1_000_000, 5_000_000, 10_000_000])
def test_a_write_that_fails_half_way(store, root, monkeypatch, ops, number, after):
    """Case 26: errno and path come out, nothing stays, and when there is room again the next put works."""
    real, left = os.write, after

    def write(fd, data):
        nonlocal left
        if left is None:
            return real(fd, data)
        if not left:
            raise OSError(number, os.strerror(number))
        taken = real(fd, data[:left])
        left -= taken
        return taken

    async def parts():
        for _ in range(24):
            yield bytes(500_000)

    ops.put(store, "f/old", OLD)
    monkeypatch.setattr(os, "write", write)
    with pytest.raises(PermanentStoreError) as caught:
        ops.put(store, "f/a", parts())
    assert (caught.value.errno, caught.value.path) == (number, str(root / "f" / "a"))
    assert isinstance(caught.value.__cause__, OSError)
    assert ops.names(root / "f") == ["old"]
    left = None
    assert ops.put(store, "f/a", parts()) == 12_000_000


@pytest.mark.parametrize("call", ["fsync", "close", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failure_after_the_last_byte(store, root, disk, ops, call, number):
    """Case 26: network file systems report a full disk as late as sync, close or rename."""
    ops.put(store, "f/a", OLD)
    disk.failing = lambda name, path, _: number if name == call and path.endswith(".tmp") else None
    with pytest.raises(PermanentStoreError) as caught:
        ops.put(store, "f/a", NEW)
    assert caught.value.errno == number
    assert ops.names(root / "f") == ["a"]
    assert ops.get(store, "f/a", len(OLD)) == OLD


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ESTALE, TransientStoreError), (errno.ETIMEDOUT, TransientStoreError), (errno.EROFS, PermanentStoreError)],
)
def test_errors_are_sorted_into_transient_and_permanent(store, disk, ops, number, kind):
    """Every operation maps errors of the system, with errno and cause."""
    ops.put(store, "f/a", OLD)
    disk.failing = lambda name, path, _: number if name in {"open", "unlink"} else None
    calls = (
        lambda: store.put_new("f/b", b"x"),
        lambda: store.read("f/a", 0, memoryview(bytearray(1))),
        lambda: store.delete(["f/a"]),
    )
    for call in calls:
        with pytest.raises(StoreError) as caught:
            ops.do(call)
        assert type(caught.value) is kind
        assert caught.value.errno == caught.value.__cause__.errno == number


def test_a_listing_that_fails_raises(store, monkeypatch, ops):
    """An error is never taken for an empty folder."""

    def scandir(path):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermanentStoreError):
        ops.do(lambda: store.list(""))


def test_put_new_where_links_are_refused(store, root, disk, ops):
    """Some network file systems have no hard links: an exclusive rename takes their place."""
    disk.failing = lambda name, path, _: errno.EPERM if name == "link" else None
    ops.do(lambda: store.put_new("f/a", OLD))
    with pytest.raises(FileExistsError):
        ops.do(lambda: store.put_new("f/a", NEW))
    assert ops.names(root / "f") == ["a"]
    assert ops.get(store, "f/a", len(OLD)) == OLD


def test_put_new_where_nothing_exclusive_exists(store, root, disk, ops, monkeypatch):
    """With neither links nor exclusive renames the error says so."""

    def refuse(source, target):
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr("asyncckpt.store.draft.rename_new", refuse)
    disk.failing = lambda name, path, _: errno.ENOTSUP if name == "link" else None
    with pytest.raises(PermanentStoreError, match="neither hard links nor exclusive renames"):
        ops.do(lambda: store.put_new("f/a", OLD))
    assert ops.names(root / "f") == []


def test_replacing_works_where_links_are_refused(store, root, disk, ops):
    """Without links an old object is replaced without a way back."""
    ops.put(store, "f/a", OLD)
    disk.failing = lambda name, path, _: errno.EPERM if name == "link" else None
    ops.put(store, "f/a", NEW)
    assert ops.get(store, "f/a", len(NEW)) == NEW
    assert ops.names(root / "f") == ["a"]


def test_put_new_believes_its_own_link(store, root, monkeypatch, ops):
    """A link whose answer was lost and that was tried again says "exists": it is ours."""
    real = os.link

    def link(source, target):
        real(source, target)
        raise FileExistsError(errno.EEXIST, "exists")

    monkeypatch.setattr(os, "link", link)
    ops.do(lambda: store.put_new("f/a", OLD))
    assert ops.get(store, "f/a", len(OLD)) == OLD
    assert ops.names(root / "f") == ["a"]


def test_a_folder_that_appears_meanwhile_is_fine(store, monkeypatch, ops):
    """Case 33: makedirs says "exists" though told not to mind."""
    real = os.makedirs

    def makedirs(path, exist_ok=False):
        real(path, exist_ok=exist_ok)
        raise FileExistsError(errno.EEXIST, "exists", path)

    monkeypatch.setattr(os, "makedirs", makedirs)
    ops.put(store, "f/a", NEW)
    assert ops.get(store, "f/a", len(NEW)) == NEW


def test_a_parent_that_vanishes_meanwhile_is_made_again(store, monkeypatch, ops):
    """Case 33: someone removes the empty folder between two calls."""
    real, lost = os.makedirs, [1, 1]

    def makedirs(path, exist_ok=False):
        if lost:
            lost.pop()
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        real(path, exist_ok=exist_ok)

    monkeypatch.setattr(os, "makedirs", makedirs)
    ops.put(store, "f/a", NEW)
    assert not lost


def test_a_file_in_the_place_of_a_folder(store, root, ops):
    """A plain file where the folder should be is an error, and is left alone."""
    root.mkdir()
    (root / "f").write_bytes(b"mine")
    with pytest.raises(PermanentStoreError):
        ops.put(store, "f/a", NEW)
    assert (root / "f").read_bytes() == b"mine"


def test_a_root_deleted_before_and_between_writes(store, root, ops):
    """Case 33: the root is made by the first write, and made again if it has gone."""
    assert not root.exists()
    for _ in range(2):
        ops.put(store, "f/a", NEW)
        assert ops.get(store, "f/a", len(NEW)) == NEW
        shutil.rmtree(root)
