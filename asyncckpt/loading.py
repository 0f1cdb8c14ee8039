"""Finding the checkpoint to read, and the calls that need no checkpointer: ``load`` and ``inspect``.

``latest`` is the highest step, by number, whose MANIFEST and files pass the cheap checks. While it is read every frame
is verified; damage found then makes the search go on with the next older step.
"""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypeVar

from asyncckpt.encode.base import Codec
from asyncckpt.encode.frame import known_codecs
from asyncckpt.errors import CheckpointNotFoundError, FormatError, IntegrityError
from asyncckpt.events import logger
from asyncckpt.manifest.catalog import UNCOMMITTED, CheckpointInfo, Found, best_of, examine, info_of, scan_steps, valid
from asyncckpt.manifest.documents import Manifest
from asyncckpt.manifest.names import MANIFEST_NAME
from asyncckpt.store.base import Store
from asyncckpt.store.opening import open_store
from asyncckpt.threads import run_blocking

StepChoice = int | Literal["latest", "best"]
MapLocation = Any  # str, torch.device, dict or callable, as torch.load takes it
T = TypeVar("T")


def info_at(store: Store, found: Found) -> CheckpointInfo:
    """The description of a step that is known to be good."""
    assert found.manifest is not None  # noqa: S101 - a good step has its manifest
    return info_of(found.manifest, f"{store.url}/{found.folder}")


def good_infos(store: Store) -> list[CheckpointInfo]:
    """The checkpoints that pass the cheap checks, ascending by step."""
    return [info_at(store, found) for found in run_blocking(lambda: valid(store))]


class Search:
    """A walk over steps, newest first, that remembers why each was passed over. Used by one thread."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reasons: dict[int, str] = {}
        self.committed = False  # whether any step has a MANIFEST, good or damaged
        self.read = False  # whether reading one began and failed

    def first(self, use: Callable[[Found], T]) -> T | None:
        """What ``use`` gives for the newest step that is good; None if no step was ever committed.

        Raises:
            CheckpointNotFoundError: steps exist, and none is good; ``reasons`` says why for each.
        """
        folders = run_blocking(lambda: scan_steps(self.store))
        for step in sorted(folders, reverse=True):
            found = run_blocking(lambda step=step: examine(self.store, step, folders[step]))  # type: ignore[misc]
            if self._good(found):
                try:
                    return use(found)
                except (IntegrityError, FormatError) as error:
                    self.read = True
                    self.reject(step, str(error))
        self._complain()
        return None

    def _good(self, found: Found) -> bool:
        if found.reason is None:
            self.committed = True
            return True
        self.committed = self.committed or found.reason != UNCOMMITTED
        self.reject(found.step, found.reason)
        return False

    def reject(self, step: int, reason: str) -> None:
        """Pass over a step, and say so."""
        self.reasons[step] = reason
        logger.warning("step %d in %s is passed over: %s", step, self.store.url, reason)

    def _complain(self) -> None:
        if self.committed:
            raise CheckpointNotFoundError(
                f"{self.store.url}: no checkpoint is good. {spell(self.reasons)}", reasons=self.reasons
            )


def spell(reasons: Mapping[int, str]) -> str:
    """Reasons by step, newest first, in one line."""
    return "; ".join(f"step {step}: {reason}" for step, reason in sorted(reasons.items(), reverse=True))


def best_info(infos: Sequence[CheckpointInfo], metric: tuple[str, str] | None) -> CheckpointInfo | None:
    """The best of good checkpoints; ``ValueError`` if nothing says which metric that is."""
    if metric is None:
        raise ValueError('"best" needs a metric: give the checkpointer keep=KeepBest(...) or schedule=OnBest(...)')
    return best_of(infos, *metric)


def exact(store: Store, step: int) -> Found:
    """One step that was asked for by number, examined.

    Raises:
        CheckpointNotFoundError: it is not there (the message lists those that are), or was never committed.
        IntegrityError: it is damaged.
    """
    folders = run_blocking(lambda: scan_steps(store))
    if step not in folders:
        there = ", ".join(map(str, sorted(folders))) or "none"
        raise CheckpointNotFoundError(f"{store.url} has no step {step}; steps there: {there}", step=step)
    found = run_blocking(lambda: examine(store, step, folders[step]))
    if found.reason is None:
        return found
    reason = f"step {step} in {store.url} cannot be used: {found.reason}"
    if found.reason == UNCOMMITTED:
        raise CheckpointNotFoundError(reason, reasons={step: found.reason}, step=step)
    raise IntegrityError(reason, file=f"{found.folder}/{MANIFEST_NAME}", step=step)


def locate(path: str | PathLike[str], storage_options: Mapping[str, Any] | None) -> tuple[Store, str | None]:
    """The store and, if ``path`` is a checkpoint rather than a root of checkpoints, its folder.

    A checkpoint's folder may have been copied and renamed: what counts is its MANIFEST.
    """
    store = open_store(path, storage_options)
    if all(entry.name != MANIFEST_NAME for entry in run_blocking(lambda: store.list(""))):
        return store, None
    parent, folder = posixpath.split(store.url.rstrip("/"))
    return open_store(parent or "/", storage_options), folder


def load(
    path_or_root: str | PathLike[str],
    *,
    step: int | Literal["latest"] = "latest",
    only: str | Sequence[str] | None = None,
    map_location: MapLocation = "cpu",
    allow_pickle: bool = False,
    codecs: Iterable[Codec] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> dict[Any, Any]:
    """Read a checkpoint's state as plain values, with no objects to restore into.

    Args:
        path_or_root: a folder of checkpoints, or one checkpoint's folder.
        step: which one, in a folder of checkpoints. ``"latest"`` falls back over damaged ones, with a warning.
        only: key paths such as ``"model"`` or ``"optimizer.state"``; only their bytes are read.
        map_location: where tensors go: a device, a dict or a callable as for ``torch.load``.
        allow_pickle: unpickle values that were saved with ``allow_pickle=True``. This runs code from the file.
        codecs: codecs of your own that the checkpoint was written with.
        storage_options: for remote roots.

    Returns:
        The state as it was given to ``save()``, objects replaced by their ``state_dict()``.

    Raises:
        CheckpointNotFoundError: nothing there, or nothing good.
        IntegrityError: damaged bytes (of an exact step).
        FormatError: not written by a version that this one understands.
    """
    from asyncckpt.restore.load import load_tree

    known = known_codecs(codecs)

    def use(store: Store, found: Found) -> dict[Any, Any]:
        assert found.manifest is not None  # noqa: S101 - only good steps are used
        manifest: Manifest = found.manifest
        return run_blocking(
            lambda: load_tree(
                store,
                found.folder,
                manifest,
                only=only,
                map_location=map_location,
                codecs=known,
                allow_pickle=allow_pickle,
            )
        )

    return _chosen(path_or_root, step, storage_options, use)


def inspect(
    path: str | PathLike[str],
    *,
    step: int | Literal["latest"] = "latest",
    storage_options: Mapping[str, Any] | None = None,
) -> CheckpointInfo:
    """Describe a checkpoint from its manifest alone; no tensor data is read. Takes a root as well, like ``load``."""
    return _chosen(path, step, storage_options, info_at)


def _chosen(
    path: str | PathLike[str],
    step: int | Literal["latest"],
    storage_options: Mapping[str, Any] | None,
    use: Callable[[Store, Found], T],
) -> T:
    """What ``use`` gives for the checkpoint at ``path``, or for the one of this step in the root there."""
    store, folder = locate(path, storage_options)
    if folder is not None:
        return use(store, _single(store, folder))
    if step != "latest":
        return use(store, exact(store, step))
    result = Search(store).first(lambda found: use(store, found))
    if result is None:
        raise CheckpointNotFoundError(f"{store.url} holds no checkpoint")
    return result


def _single(store: Store, folder: str) -> Found:
    """One checkpoint's folder, whatever its name, examined."""
    found = run_blocking(lambda: examine(store, None, folder))
    if found.reason is not None:
        raise IntegrityError(f"{store.url}/{folder}: {found.reason}", file=f"{folder}/{MANIFEST_NAME}")
    return found
