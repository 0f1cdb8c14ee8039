"""In which order a local store makes things durable."""

import errno
import os
import re

import pytest

from asyncckpt.errors import PermanentStoreError, TransientStoreError
from asyncckpt.store.local import LocalStore

NEW = b"new" * 2000


def test_put_syncs_data_then_renames_then_syncs_the_folder(store, root, disk, ops):
    """Case 28: the order is write, sync of the file, close, rename, sync of the folder."""
    ops.put(store, "f/first", b"x")
    disk.calls.clear()
    ops.put(store, "f/a", NEW)
    steps = [call for call in disk.calls if call[0] in {"write", "fsync", "replace"}]
    temp = steps[0][1]
    assert re.fullmatch(re.escape(str(root / "f" / "a.")) + r"[0-9a-f]{8}\.tmp", temp)
    assert steps == [("write", temp), ("fsync", temp), ("replace", temp), ("fsync", str(root / "f"))]


def test_put_new_syncs_data_then_links_then_syncs_the_folder(store, root, disk, ops):
    """Case 28: the exclusive form has the same order, with a link in place of the rename."""
    ops.put(store, "f/first", b"x")
    disk.calls.clear()
    ops.do(lambda: store.put_new("f/a", NEW))
    steps = [name for name, _ in disk.calls if name in {"write", "fsync", "link", "unlink"}]
    assert steps == ["write", "fsync", "link", "unlink", "fsync"]
    assert disk.calls[-2][1] == str(root / "f")


@pytest.mark.parametrize("made", ["", "a", "a/b"])
def test_new_folders_are_durable_before_data_is_written(made, tmp_path, disk, ops):
    """All folders above are synced first, outermost first: who made the upper ones may not have synced them."""
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    ops.put(LocalStore(tmp_path / "a" / "b"), "f/x", NEW)
    before = disk.calls[: disk.names().index("write")]
    parents = [path for name, path in before if name == "fsync"]
    assert parents[-4:] == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_an_unreadable_folder_above_is_passed_by(tmp_path, disk, ops):
    """Its owner made it long ago; but where we have made a folder in it, that cannot be durable and fails."""
    disk.failing = lambda name, path, _: errno.EACCES if name == "open" and path == str(tmp_path) else None
    (tmp_path / "a").mkdir()
    ops.put(LocalStore(tmp_path / "a" / "b"), "f/x", NEW)
    with pytest.raises(PermanentStoreError):
        ops.put(LocalStore(tmp_path / "c"), "f/x", NEW)


def test_a_folder_made_by_another_is_synced_once(store, root, disk, ops):
    """A folder that is there already may not be durable yet: its first use syncs its parent, later ones do not."""
    (root / "f").mkdir(parents=True)
    ops.put(store, "f/x", NEW)
    assert ("fsync", str(root)) in disk.calls
    disk.calls.clear()
    ops.put(store, "f/y", NEW)
    assert ("fsync", str(root)) not in disk.calls


def test_delete_syncs_each_folder_once_and_the_parent_of_a_removed_one(store, root, disk, ops):
    """Names go in the given order, then one sync per folder, then the empty folder, then a sync of its parent."""
    for key in ("f/a", "f/b", "g/c", "g/d"):
        ops.put(store, key, b"x")
    disk.calls.clear()
    ops.do(lambda: store.delete(["f/b", "f/a", "g/c"]))
    steps = [(name, os.path.relpath(path, root)) for name, path in disk.calls if name in {"unlink", "fsync"}]
    gone = [("unlink", "f/b"), ("unlink", "f/a"), ("unlink", "g/c")]
    assert steps == [*gone, ("fsync", "f"), ("fsync", "."), ("fsync", "g")]
    assert ops.names(root) == ["g"]


def test_delete_stops_at_the_first_name_it_cannot_remove(store, root, disk, ops):
    """What makes a checkpoint visible is deleted first: if it stays, the rest must stay."""
    ops.put(store, "f/a", b"x")
    ops.put(store, "f/b", b"x")
    disk.failing = lambda name, path, _: errno.EBUSY if name == "unlink" and path.endswith("a") else None
    with pytest.raises(TransientStoreError) as caught:
        ops.do(lambda: store.delete(["f/a", "f/b"]))
    assert caught.value.path == str(root / "f" / "a")
    assert ops.names(root / "f") == ["a", "b"]


def test_a_failed_sync_is_not_tried_again(store, disk, ops):
    """The kernel may forget the lost pages and report success the second time: the file is given up."""
    disk.failing = lambda name, path, _: errno.EIO if name == "fsync" and path.endswith(".tmp") else None
    with pytest.raises(PermanentStoreError):
        ops.put(store, "f/a", NEW)
    assert sum(name == "fsync" and path.endswith(".tmp") for name, path in disk.calls) == 1
