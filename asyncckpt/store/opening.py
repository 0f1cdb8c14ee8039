"""From what the user wrote as ``root`` to a store."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from asyncckpt.store.base import Store
from asyncckpt.store.local import LocalStore

REMOTE = frozenset({"s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss"})
# One slash is enough: pathlib turns "s3://b/p" into "s3:/b/p", which must not become a folder called "s3:".
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def open_store(root: str | os.PathLike[str] | Store, storage_options: Mapping[str, Any] | None = None) -> Store:
    """The store for a path, a ``file://`` URL, or a store itself. ``ValueError`` for all other URLs.

    ``storage_options`` are for remote roots; here they are a mistake.
    """
    store = root if isinstance(root, Store) else _open(os.fspath(root))
    if storage_options:
        raise ValueError(f"storage_options are for remote roots, not for {store.url}")
    return store


def _open(root: str) -> Store:
    if not root:
        raise ValueError("the root is empty; write '.' for the current folder")
    scheme = _SCHEME.match(root)
    path = root if scheme is None else _path_of(root, scheme[1].lower())
    if Path(path).expanduser().exists() and not Path(path).expanduser().is_dir():
        raise ValueError(f"the root {path} is a file; a root is a folder")
    return LocalStore(path)


def _path_of(url: str, scheme: str) -> str:
    if scheme in REMOTE:
        raise ValueError(f"remote roots are not available yet: {_bare(url)}")
    if scheme != "file":
        raise ValueError(f"unknown kind of root: {_bare(url)}; use a path or a file:// URL")
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        raise ValueError(f"not a local file URL: {_bare(url)}; write file:///path")
    return unquote(parts.path)


def _bare(url: str) -> str:
    """The URL without what could be a secret."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]
