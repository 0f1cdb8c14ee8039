"""Which checkpoints a root holds, and which of them are good.

A folder is a checkpoint if its name is of ours and it has a MANIFEST. It is *valid* if the cheap checks hold: the
manifest is intact and speaks of this step, and every pack and index is there with its size. Content is verified by
digests when it is read. Errors of the store are raised: a store that does not answer is no damage.

Folders are looked at by ``LOOK_AHEAD`` calls side by side, so that a remote root answers in a few round trips.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from asyncckpt.errors import FormatError, IntegrityError
from asyncckpt.manifest.documents import MAX_MANIFEST_BYTES, Manifest
from asyncckpt.manifest.format import decode_manifest
from asyncckpt.manifest.names import MANIFEST_NAME, parse_step_folder, step_folder
from asyncckpt.manifest.paths import Path
from asyncckpt.manifest.untree import malformed, unflatten
from asyncckpt.store.base import Entry, ManyListings, Store, read_all

LOOK_AHEAD: Final = 16
UNCOMMITTED: Final = f"no {MANIFEST_NAME}: the save did not finish"
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What there is to know of a checkpoint without reading its data.

    Attributes:
        step: the step it was saved at.
        path: absolute path or URL of its folder.
        save_id: id of the attempt that wrote it.
        created: when its manifest was written, in UTC.
        metrics: as given to ``save()``.
        metadata: as given to ``save()``.
        raw_bytes: size of the state's data.
        stored_bytes: size of its files.
        timings: seconds by phase.
        versions: of asyncckpt, torch and python.
    """

    step: int
    path: str
    save_id: str
    created: datetime
    metrics: dict[str, float]
    metadata: dict[Any, Any]
    raw_bytes: int
    stored_bytes: int
    timings: dict[str, float]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A folder that was examined.

    Attributes:
        step: its step; -1 if that was not given and no manifest tells.
        folder: its name.
        manifest: if it could be read, also when files are missing.
        reason: why the checkpoint cannot be used, in words; None if it can.
    """

    step: int
    folder: str
    manifest: Manifest | None
    reason: str | None


# ---- one checkpoint ------------------------------------------------------------------------------------------------


def info_of(manifest: Manifest, url: str) -> CheckpointInfo:
    """The description in a manifest; ``FormatError`` if its metrics or metadata are malformed."""
    return CheckpointInfo(
        step=manifest.step,
        path=url,
        save_id=manifest.save_id,
        created=datetime.fromtimestamp(manifest.created, UTC),
        metrics={name: _metric(node, name) for name, node in manifest.metrics.items()},
        metadata=_metadata(manifest.metadata),
        raw_bytes=manifest.raw_bytes,
        stored_bytes=manifest.stored_bytes,
        timings=dict(manifest.timings),
        versions=dict(manifest.versions),
    )


def _metric(node: Any, name: str) -> float:
    value = unflatten(node, _refuse, path=("metrics", name))
    if type(value) is not float:
        malformed(("metrics", name), "a metric must be a float")
    return value


def _metadata(node: Any) -> dict[Any, Any]:
    value = unflatten(node, _refuse, path=("metadata",))
    if type(value) is not dict:
        malformed(("metadata",), "metadata must be a dict")
    return value


def _refuse(tag: str, _args: list[Any], path: Path) -> object:
    malformed(path, f"a {tag!r:.80} in a manifest")


async def examine(store: Store, step: int | None, folder: str) -> Found:
    """Check one checkpoint cheaply: a listing and its manifest are all that is read.

    Args:
        store: the root.
        step: the step that the folder's name says; None to take any.
        folder: the folder.
    """
    return await _examine(store, step, folder, await store.list(folder))


async def _examine(store: Store, step: int | None, folder: str, listing: Sequence[Entry]) -> Found:
    files = {entry.name: entry for entry in listing}
    entry = files.get(MANIFEST_NAME)
    number = -1 if step is None else step
    if entry is None or entry.is_folder:
        return Found(number, folder, None, UNCOMMITTED)
    try:
        manifest = await _read_manifest(store, folder, entry)
    except FileNotFoundError:
        return Found(number, folder, None, UNCOMMITTED)  # removed since the listing
    except (IntegrityError, FormatError) as error:
        return Found(number, folder, None, str(error).removeprefix(f"{folder}/"))
    reason = _missing(manifest, files)
    if step is not None and step != manifest.step:
        reason = f"{MANIFEST_NAME} is that of step {manifest.step}"
    return Found(manifest.step if step is None else step, folder, manifest, reason)


async def _read_manifest(store: Store, folder: str, entry: Entry) -> Manifest:
    key = f"{folder}/{MANIFEST_NAME}"
    if entry.size > MAX_MANIFEST_BYTES:
        raise FormatError(f"{key} has {entry.size} bytes, {MAX_MANIFEST_BYTES} allowed", defect="manifest too large")
    try:
        data = await read_all(store, key, entry.size)
    except EOFError as error:
        raise IntegrityError(f"{key} became shorter while it was read", file=key) from error
    return decode_manifest(data, file=key)


def _missing(manifest: Manifest, files: Mapping[str, Entry]) -> str | None:
    """The first file that is not there in full."""
    for shard in manifest.shards:
        for kind, name, size in (("pack", shard.pack, shard.pack_bytes), ("index", shard.index, shard.index_bytes)):
            entry = files.get(name)
            if entry is None or entry.is_folder:
                return f"{kind} {name} is missing"
            if entry.size != size:
                return f"{kind} {name} has {entry.size} bytes, {size} expected"
    return None


# ---- all checkpoints -----------------------------------------------------------------------------------------------


async def scan_steps(store: Store) -> dict[int, str]:
    """Step -> folder name of every step folder, committed or not. Foreign names are left out.

    Of several folders of one step (other zero padding) one that has a MANIFEST goes first, then our own spelling.
    """
    folders: dict[int, list[str]] = {}
    for entry in await store.list(""):
        step = parse_step_folder(entry.name) if entry.is_folder else None
        if step is not None:
            folders.setdefault(step, []).append(entry.name)
    return {step: await _preferred(store, step, names) for step, names in folders.items()}


async def _preferred(store: Store, step: int, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    names.sort(key=lambda name: (name != step_folder(step), name))
    with_manifest = [name for name in names if await is_committed(store, name)]
    return [*with_manifest, *names][0]


async def is_committed(store: Store, folder: str) -> bool:
    """Whether there is a MANIFEST in the folder, good or damaged."""
    return _has_manifest(await store.list(folder))


def _has_manifest(listing: Sequence[Entry]) -> bool:
    return any(entry.name == MANIFEST_NAME and not entry.is_folder for entry in listing)


async def committed(store: Store) -> list[int]:
    """The steps that have a MANIFEST, ascending."""
    folders = await scan_steps(store)
    steps = sorted(folders)
    listings = await _listings(store, [folders[step] for step in steps])
    return [step for step, listing in zip(steps, listings, strict=True) if _has_manifest(listing)]


async def examine_all(store: Store) -> list[Found]:
    """Every step folder, examined, ascending by step."""
    folders = sorted((await scan_steps(store)).items())
    listings = await _listings(store, [folder for _, folder in folders])
    pairs = list(zip(folders, listings, strict=True))
    return await _side_by_side(lambda pair: _examine(store, *pair[0], pair[1]), pairs)


async def _listings(store: Store, folders: Sequence[str]) -> Sequence[Sequence[Entry]]:
    if isinstance(store, ManyListings):
        return await store.list_many(folders)
    return await _side_by_side(store.list, folders)


async def valid(store: Store) -> list[Found]:
    """The checkpoints that pass the cheap checks, ascending by step."""
    return [found for found in await examine_all(store) if found.reason is None]


async def newest_valid(store: Store) -> Found | None:
    """The valid checkpoint of the highest step; older ones are looked at only if newer ones fail."""
    folders = await scan_steps(store)
    for step in sorted(folders, reverse=True):
        found = await examine(store, step, folders[step])
        if found.reason is None:
            return found
    return None


async def _side_by_side(call: Callable[[S], Awaitable[T]], items: Sequence[S]) -> list[T]:
    """The results of a call for each item, in order; a few at a time. The first error is raised as it is."""
    places = asyncio.Semaphore(LOOK_AHEAD)

    async def one(item: S) -> T:
        async with places:
            return await call(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- the best ------------------------------------------------------------------------------------------------------


def best_of(infos: Iterable[CheckpointInfo], metric: str, mode: str) -> CheckpointInfo | None:
    """The checkpoint with the smallest (``mode="min"``) or largest (``"max"``) value of a metric.

    NaN is worse than any number; of equals the highest step wins; checkpoints without the metric do not count.
    """
    if mode not in {"min", "max"}:
        raise ValueError(f'mode={mode!r} must be "min" or "max"')

    def rank(info: CheckpointInfo) -> tuple[bool, float, int]:
        value = info.metrics[metric]
        if math.isnan(value):
            return False, 0.0, info.step
        return True, value if mode == "max" else -value, info.step

    return max((info for info in infos if metric in info.metrics), key=rank, default=None)
