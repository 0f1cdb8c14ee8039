"""What is deleted, when, and in which order.

Retention runs only after a newer checkpoint is durable. A checkpoint goes MANIFEST first, durably, and the rest after:
at no moment does one exist that is not whole. Never deleted: the step just written, the newest good one, the one that
the run resumed from until a newer one is durable, damaged ones, and anything that is not ours. What cannot be deleted
now is a warning, and is tried again by the next retention or sweep.

Both run under the store's writer lock: no other process writes to this root.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from asyncckpt.errors import FormatError
from asyncckpt.events import DeleteEvent, logger
from asyncckpt.manifest.catalog import UNCOMMITTED, CheckpointInfo, Found, examine, examine_all, info_of
from asyncckpt.manifest.names import MANIFEST_NAME, parse_step_folder, step_folder
from asyncckpt.publish.attempts import attempts_in, dead_files
from asyncckpt.publish.keep import Keep
from asyncckpt.store.base import Entry, Store

Emit = Callable[[DeleteEvent], object]
SIDE_BY_SIDE: Final = 16  # folders swept at a time, so that a remote root takes a few round trips


# ---- retention -----------------------------------------------------------------------------------------------------


async def apply_retention(
    store: Store,
    keep: Keep | None,
    *,
    written: int,
    resumed: int | None,
    in_flight: Collection[str],
    emit: Emit,
) -> list[int]:
    """Delete the checkpoints that the policy does not keep; give their steps.

    Args:
        store: the root.
        keep: the policy; None or one that keeps everything: nothing is looked at.
        written: the step just committed.
        resumed: the step that the run resumed from, if any.
        in_flight: save_ids that are being written; nothing of theirs is touched.
        emit: told of every checkpoint deleted.

    Raises:
        StoreError: the root could not be read. Deletions that fail are warnings.
    """
    if keep is None or keep.keeps_all():
        return []
    found = await examine_all(store)
    good = {info.step: info for info in map(_described, found) if info is not None}
    spared = keep.kept(list(good.values())) | _protected(good, written, resumed)
    deleted = [
        each.step
        for each in found
        if each.step in good and each.step not in spared and await _delete_checkpoint(store, each, in_flight, emit)
    ]
    for each in found:
        if each.reason == UNCOMMITTED:  # half of a deletion, or of a save, that failed
            await _sweep_folder(store, each.folder, in_flight)
    return deleted


def _described(found: Found) -> CheckpointInfo | None:
    """What the policy is told of a checkpoint; None if it is not good."""
    if found.reason is not None or found.manifest is None:
        return None
    try:
        return info_of(found.manifest, found.folder)
    except FormatError as error:
        logger.warning("step %d is not counted by the keep policy: %s", found.step, error)
        return None


def _protected(steps: Collection[int], written: int, resumed: int | None) -> set[int]:
    protected = {written, max(steps, default=written)}
    if resumed is not None and written <= resumed:
        protected.add(resumed)
    return protected


async def _delete_checkpoint(store: Store, found: Found, in_flight: Collection[str], emit: Emit) -> bool:
    """Unpublish, then remove our files. True once it is unpublished, whatever happens to the rest."""
    try:
        await store.delete([f"{found.folder}/{MANIFEST_NAME}"])
    except OSError as error:
        logger.warning("step %d could not be deleted; this is tried again: %s", found.step, error)
        return False
    emit(DeleteEvent(found.folder, "retention"))
    await _sweep_folder(store, found.folder, in_flight)
    return True


# ---- sweep ---------------------------------------------------------------------------------------------------------


async def sweep(store: Store, *, in_flight: Collection[str]) -> list[str]:
    """Remove what dead attempts have left in any step folder; give the keys that were removed.

    Removed are packs and indexes of attempts that no MANIFEST names, temporary files of ours, and step folders that
    are empty then. Never touched: foreign files, attempts in flight, and folders whose MANIFEST is damaged (whose
    files those are is for people to decide). What the store refuses is a warning.
    """
    try:
        folders = sorted(entry.name for entry in await store.list("") if _is_step_folder(entry))
    except OSError as error:
        logger.warning("%s could not be listed, so nothing was swept: %s", store.url, error)
        return []
    removed: list[str] = []
    for i in range(0, len(folders), SIDE_BY_SIDE):
        batch = folders[i : i + SIDE_BY_SIDE]
        for keys in await asyncio.gather(*(_sweep_folder(store, folder, in_flight) for folder in batch)):
            removed += keys
    return removed


def _is_step_folder(entry: Entry) -> bool:
    return entry.is_folder and parse_step_folder(entry.name) is not None


async def _sweep_folder(store: Store, folder: str, in_flight: Collection[str]) -> list[str]:
    try:
        return await _remove_dead(store, folder, in_flight)
    except OSError as error:
        logger.warning("%s: leftovers could not be removed; this is tried again: %s", folder, error)
        return []


async def _remove_dead(store: Store, folder: str, in_flight: Collection[str]) -> list[str]:
    entries = await store.list(folder)
    committed = any(entry.name == MANIFEST_NAME for entry in entries)
    if committed and not _has_leftovers(entries):
        return []
    named = None
    if committed:
        manifest = (await examine(store, None, folder)).manifest
        if manifest is None:
            return []
        named = manifest.save_id
    dead = [f"{folder}/{name}" for name in dead_files(entries, named=named, in_flight=in_flight)]
    if dead:
        logger.debug("%s: removing %d files that no manifest names", folder, len(dead))
    if doomed := dead or _emptiness(folder, entries):
        await store.delete(doomed)
    return dead


def _has_leftovers(entries: Sequence[Entry]) -> bool:
    """Whether a committed folder may hold more than its checkpoint: only then its MANIFEST must be read."""
    attempts = attempts_in(entries)
    return len(attempts) > 1 or bool(dead_files(entries, named=next(iter(attempts), None), in_flight=()))


def _emptiness(folder: str, entries: Sequence[Entry]) -> list[str]:
    """A name that is not there: deleting it removes a folder of ours that is empty, and nothing else."""
    step = parse_step_folder(folder)
    ours = step is not None and folder == step_folder(step)
    return [f"{folder}/{MANIFEST_NAME}"] if ours and not entries else []
