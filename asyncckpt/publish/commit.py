"""The moment at which a checkpoint comes into being, and the clean-up of attempts that never did.

A checkpoint exists if and only if its MANIFEST does. The MANIFEST is written last and exclusively; where a step is
saved again it is swapped atomically for the old one, and only then the old attempt's files are removed.

Relies on the store: a ``put`` or ``put_new`` that returned is durable; one that failed left the name as it was.
"""

from collections.abc import Sequence

from asyncckpt.errors import SaveError
from asyncckpt.events import logger
from asyncckpt.manifest.catalog import examine
from asyncckpt.manifest.documents import Manifest
from asyncckpt.manifest.format import encode_manifest
from asyncckpt.manifest.names import MANIFEST_NAME
from asyncckpt.publish.attempts import files_of
from asyncckpt.store.base import Entry, Store, single


async def commit(store: Store, folder: str, manifest: Manifest, *, replacing: bool) -> None:
    """Make the checkpoint exist. Durable on return.

    Args:
        store: the root.
        folder: the step's folder, where the manifest's packs and indexes are durable already.
        manifest: its digest is filled in here.
        replacing: this step was committed before and is to be replaced.

    Raises:
        SaveError: not ``replacing``, and another attempt committed this step; names its save_id.
        StoreError: the store refused. What was committed before is still committed.
    """
    if replacing:
        await _replace(store, folder, manifest)
        return
    try:
        await store.put_new(f"{folder}/{MANIFEST_NAME}", encode_manifest(manifest))
    except FileExistsError as error:
        winner = await _committed(store, folder)
        if winner is None or winner.save_id != manifest.save_id:  # if it is ours, the answer of our own call was lost
            name = winner.save_id if winner else "that cannot be read"
            raise SaveError(
                f"step {manifest.step} is committed already, by save_id {name}", step=manifest.step
            ) from error


async def clean_attempt(store: Store, folder: str, save_id: str) -> None:
    """Remove what a failed save has left, and nothing else. Never raises.

    Nothing is removed if the MANIFEST names this attempt, or cannot be read: the commit may have happened. The next
    sweep decides.
    """
    try:
        entries = await store.list(folder)
        if await _may_be_committed(store, folder, entries, save_id):
            logger.warning("%s: the files of the failed save %s stay: it may be committed", folder, save_id)
            return
        await _delete(store, folder, files_of(entries, save_id))
    except Exception as error:
        logger.warning("%s: the files of the failed save %s are left for the next sweep: %s", folder, save_id, error)


async def _replace(store: Store, folder: str, manifest: Manifest) -> None:
    old = await _committed(store, folder)
    await store.put(f"{folder}/{MANIFEST_NAME}", single(encode_manifest(manifest)))
    if old is None or old.save_id == manifest.save_id:
        return
    names = [*(shard.index for shard in old.shards), *(shard.pack for shard in old.shards)]
    try:
        await _delete(store, folder, names)
    except OSError as error:
        logger.warning("%s: the replaced files of save %s are left for the next sweep: %s", folder, old.save_id, error)


async def _committed(store: Store, folder: str) -> Manifest | None:
    """The folder's MANIFEST; None if there is none or it is damaged."""
    return (await examine(store, None, folder)).manifest


async def _may_be_committed(store: Store, folder: str, entries: Sequence[Entry], save_id: str) -> bool:
    if all(entry.name != MANIFEST_NAME for entry in entries):
        return False
    manifest = await _committed(store, folder)
    return manifest is None or manifest.save_id == save_id


async def _delete(store: Store, folder: str, names: list[str]) -> None:
    if names:
        await store.delete([f"{folder}/{name}" for name in names])
