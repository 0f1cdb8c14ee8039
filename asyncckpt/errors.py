"""Every error of the library.

::

    CheckpointError                       .step .save_id
      SaveError
        UnsupportedStateError (TypeError)        .path: the key path of the value
        BackpressureError     (TimeoutError)     no room for another snapshot
        SaveSkippedError                         asked of a save that was skipped or superseded
        PeerFailedError                          .rank
        TornSnapshotError                        the state was written while it was being copied
      RestoreError
        CheckpointNotFoundError (FileNotFoundError)  .reasons: step -> why it is no good
        IntegrityError                           .file .key: damaged bytes
        FormatError                              .defect: a document that breaks the format's rules
        StateMismatchError                       .missing .unexpected .mismatched
      StoreError (OSError)                       .errno .path
        TransientStoreError                      worth another try
        PermanentStoreError                      no space, no permission, ...
        RootInUseError                           another writer holds this root
    ClosedError (RuntimeError)            misuse, outside the tree

An original error stays as ``__cause__``, with its type, errno and traceback. Low layers raise bare errors
(``ValueError``, ``OSError``); the layer that knows the file adds it, the one that knows the step adds that.
"""

from collections.abc import Mapping, Sequence


class CheckpointError(Exception):
    """Base of all that can go wrong with a checkpoint.

    Attributes:
        step: the step being saved or restored, where known.
        save_id: the attempt's id, where known.
    """

    def __init__(self, message: str, *, step: int | None = None, save_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.step = step
        self.save_id = save_id

    def __str__(self) -> str:
        return self.message


class SaveError(CheckpointError):
    """A save did not become a checkpoint; what existed before is untouched."""


class UnsupportedStateError(SaveError, TypeError):
    """The state holds a value that cannot be saved. Raised by ``save()`` itself, before any byte is written.

    Attributes:
        path: where the value is, as ``scheduler.lr_lambdas[0]``.
    """

    def __init__(self, message: str, *, path: str, step: int | None = None) -> None:
        super().__init__(message, step=step)
        self.path = path


class BackpressureError(SaveError, TimeoutError):
    """There was no room for another snapshot, and ``when_full="raise"``."""


class SaveSkippedError(SaveError):
    """Raised by ``result()`` of a save that was skipped or superseded: it wrote nothing."""


class PeerFailedError(SaveError):
    """Another rank failed or died, so this checkpoint was not committed.

    Attributes:
        rank: the rank that failed, or None if unknown.
    """

    def __init__(self, message: str, *, rank: int | None = None, step: int | None = None) -> None:
        super().__init__(message, step=step)
        self.rank = rank


class TornSnapshotError(SaveError):
    """The state was written between ``save()`` and the end of its copies; nothing was published."""


class RestoreError(CheckpointError):
    """A checkpoint could not be restored."""


class CheckpointNotFoundError(RestoreError, FileNotFoundError):
    """No checkpoint that was asked for is there, or none of those there is good.

    Attributes:
        reasons: for each step that exists, why it cannot be used.
    """

    def __init__(self, message: str, *, reasons: Mapping[int, str] | None = None, step: int | None = None) -> None:
        super().__init__(message, step=step)
        self.reasons = dict(reasons or {})


class IntegrityError(RestoreError):
    """Bytes on disk are not those that were written.

    Attributes:
        file: key of the damaged file below the root.
        key: path of a value stored there, where known.
    """

    def __init__(self, message: str, *, file: str, key: str | None = None, step: int | None = None) -> None:
        super().__init__(message, step=step)
        self.file = file
        self.key = key


class FormatError(RestoreError):
    """A document is intact but breaks the rules of docs/format.md, or is of an unknown version.

    Attributes:
        defect: the rule that is broken, in a few words.
    """

    def __init__(self, message: str, *, defect: str, step: int | None = None) -> None:
        super().__init__(message, step=step)
        self.defect = defect


class StateMismatchError(RestoreError):
    """The checkpoint and the objects to restore into do not fit. Raised before anything is changed.

    Attributes:
        missing: key paths that the target has and the checkpoint has not.
        unexpected: key paths that the checkpoint has and the target has not.
        mismatched: key path -> what differs.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Mapping[str, str] | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(message, step=step)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = dict(mismatched or {})


class StoreError(CheckpointError, OSError):
    """The file system or bucket refused. Also an ``OSError``, with its ``errno`` (an int, or None for buckets).

    Attributes:
        path: the file or key concerned.
    """

    def __init__(
        self, message: str, *, errno: int | None = None, path: str | None = None, step: int | None = None
    ) -> None:
        super().__init__(message, step=step)
        self.errno = errno
        self.path = path
        self.filename = path


class TransientStoreError(StoreError):
    """A failure that another try may overcome."""


class PermanentStoreError(StoreError):
    """A failure that another try will not overcome: no space, no permission, read-only, ..."""


class RootInUseError(StoreError):
    """Another live writer, in this process or another, holds the lock of this root."""


class ClosedError(RuntimeError):
    """The checkpointer was closed. A mistake of the caller, so outside the tree of checkpoint errors."""
