"""From what the user wrote as root to a store."""

import pathlib

import pytest

from asyncckpt.store.local import LocalStore
from asyncckpt.store.opening import open_store
from asyncckpt.testing import MemoryStore


def test_paths_and_file_urls(tmp_path, monkeypatch):
    """Paths in any form and file URLs give a local store."""
    monkeypatch.chdir(tmp_path)
    spaced = (tmp_path / "a b%20").as_uri()
    for root, expected in (
        ("runs/x", tmp_path / "runs" / "x"),
        (pathlib.Path("runs"), tmp_path / "runs"),
        (".", tmp_path),
        (f"file://{tmp_path}/y", tmp_path / "y"),
        (f"file://localhost{tmp_path}/y", tmp_path / "y"),
        (spaced, tmp_path / "a b%20"),
        ("name:with/colon", tmp_path / "name:with" / "colon"),
    ):
        store = open_store(root)
        assert isinstance(store, LocalStore)
        assert store.url == str(expected)
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_itself():
    """What is a store already is used as it is."""
    store = MemoryStore()
    assert open_store(store) is store


@pytest.mark.parametrize("root", ["s3://b/p", "gs://b", "az://c/p", "S3://b/p", pathlib.Path("s3://b/p")])
def test_remote_roots_are_refused_for_now(root, tmp_path, monkeypatch):
    """Case 76: a clear error at construction, and no local folder called "s3:", not even by way of pathlib."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="remote roots are not available yet"):
        open_store(root)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", ["ftp://host/x", "memory://b/run", "file://host/x", "file:///x?y=1", ""])
def test_other_roots_are_refused(root):
    """Unknown schemes, file URLs of other hosts and the empty string are mistakes."""
    with pytest.raises(ValueError):
        open_store(root)


def test_credentials_do_not_show_in_the_error():
    """A URL may carry a password or a signature: neither is repeated."""
    with pytest.raises(ValueError) as caught:
        open_store("s3://key:secret@host/p?sig=hidden")
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_options_for_a_local_root_are_refused(tmp_path):
    """Options that would have no effect are not swallowed; none and empty are fine."""
    open_store(tmp_path, {})
    with pytest.raises(ValueError, match="storage_options"):
        open_store(tmp_path, {"region": "x"})
