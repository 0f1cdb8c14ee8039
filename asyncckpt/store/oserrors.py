"""The one place where an error of the operating system becomes a ``StoreError``, transient or permanent."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from asyncckpt.errors import PermanentStoreError, StoreError, TransientStoreError

TRANSIENT = frozenset({
    errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT, errno.ESTALE, errno.ENOLCK,
    errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.ENOBUFS,
    errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EREMOTEIO,
})  # fmt: skip


@contextmanager
def os_errors(path: str, *, passing: tuple[type[OSError], ...] = ()) -> Iterator[None]:
    """Turn every ``OSError`` of the body into a ``StoreError`` that names ``path``; those in ``passing`` go through."""
    through: tuple[type[OSError], ...] = (StoreError, *passing)
    try:
        yield
    except through:
        raise
    except OSError as error:
        kind = TransientStoreError if error.errno in TRANSIENT else PermanentStoreError
        raise kind(f"{path}: {error.strerror or error}", errno=error.errno, path=path) from error
