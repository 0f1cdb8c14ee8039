"""What a run does to a root, what it has promised by then, and whether the root keeps the promises. No torch."""

import time
from dataclasses import dataclass, field

from asyncckpt.encode.frame import decode_frame, known_codecs
from asyncckpt.events import Phases
from asyncckpt.manifest.catalog import UNCOMMITTED, examine_all, newest_valid, scan_steps
from asyncckpt.manifest.documents import VERSION, Manifest
from asyncckpt.manifest.format import decode_index
from asyncckpt.manifest.names import MANIFEST_NAME, new_save_id, part_name, step_folder
from asyncckpt.publish.commit import clean_attempt, commit
from asyncckpt.publish.keep import KeepLast
from asyncckpt.publish.retention import apply_retention, sweep
from asyncckpt.publish.shard import write_shard
from asyncckpt.store.base import read_all, single
from asyncckpt.testing.blocks import ListBlocks

FOREIGN = {
    "notes.txt": b"mine",
    "step-000000000010/notes.txt": b"mine too",
    "step-000000000002/abc.pack": b"not one of theirs",
    "step_30/7f3a9c7f3a9c-00000-of-00001.pack": b"another tool's folder",
    "lost+found/x": b"x",
}


def frames_of(step, version, nbytes=100):
    """Content that differs in every byte between versions: 5 frames of odd sizes from ``nbytes`` on."""
    return [bytes([(7 * step + version + i) % 251]) * (nbytes + i) for i in range(5)]


@dataclass
class Ledger:
    """What was tried and what was promised.

    Attributes:
        tried: step -> versions whose save was begun.
        promised: step -> the version that is durable.
        refused: (step, version) whose save was said to have failed.
        retired: steps that may be gone.
    """

    WORDS = frozenset({"tries", "promises", "refuses", "retires"})

    tried: dict = field(default_factory=dict)
    promised: dict = field(default_factory=dict)
    refused: set = field(default_factory=set)
    retired: set = field(default_factory=set)

    def note(self, word, step, version):
        """One line of the diary."""
        if word == "tries":
            self.tried.setdefault(step, []).append(version)
        elif word == "promises":
            self.promised[step] = version
        elif word == "refuses":
            self.refused.add((step, version))
        else:
            self.retired.add(step)


class Run:
    """A run on a store: saves, retires and sweeps as the worker does, and keeps its diary.

    ``nbytes``: of one frame, about.
    """

    def __init__(self, store, encoders, note, nbytes=100):
        self.store, self.encoders, self.note, self.nbytes = store, encoders, note, nbytes

    async def save(self, step, version):
        """Pack, index, MANIFEST; a failure is cleaned up after."""
        self.note("tries", step, version)
        save_id = new_save_id()
        try:
            await self._save(step, version, save_id)
        except BaseException:
            await clean_attempt(self.store, step_folder(step), save_id)
            self.note("refuses", step, version)
            raise
        self.note("promises", step, version)

    async def _save(self, step, version, save_id):
        folder = step_folder(step)
        replacing = any(entry.name == MANIFEST_NAME for entry in await self.store.list(folder))
        blocks = ListBlocks(frames_of(step, version, self.nbytes), tree=version)
        try:
            shard = await write_shard(
                self.store,
                folder,
                blocks,
                save_id=save_id,
                step=step,
                codec=None,
                encoders=self.encoders,
                phases=Phases(),
            )
        finally:
            assert blocks.held() == 0
        manifest = Manifest(
            version=VERSION, digest="", step=step, save_id=save_id, created=time.time(), metrics={}, metadata=["dict"],
            raw_bytes=blocks.raw_bytes, stored_bytes=shard.pack_bytes + shard.index_bytes, timings={}, versions={},
            shards=[shard],
        )  # fmt: skip
        await commit(self.store, folder, manifest, replacing=replacing)

    async def retire(self, written):
        """Keep the newest only."""
        for step in await scan_steps(self.store):
            if step < written:
                self.note("retires", step, 0)
        await apply_retention(
            self.store, KeepLast(1), written=written, resumed=None, in_flight=set(), emit=lambda event: None
        )

    async def sweep(self):
        """As a new run does first."""
        await sweep(self.store, in_flight=set())


# ---- scenarios: a beginning without faults, then what the fault strikes ----------------------------------------------


async def some_checkpoints(run):
    """Steps 2 and 10, and foreign files around them."""
    await run.save(2, 1)
    await run.save(10, 1)
    for key, data in FOREIGN.items():
        await run.store.put(key, single(data))


async def leftovers(run):
    """As above, and what dead attempts leave: beside a checkpoint, in a folder of their own, cut short."""
    await some_checkpoints(run)
    dead = new_save_id()
    for folder in (step_folder(10), step_folder(20)):
        for suffix in ("pack", "index", "pack.0123abcd.tmp"):
            await run.store.put(f"{folder}/{part_name(dead, 0, 1, suffix)}", single(b"dead"))
        await run.store.put(f"{folder}/{MANIFEST_NAME}.0123abcd.tmp", single(b"cut short"))


async def many(run):
    """Four checkpoints."""
    for step in (2, 4, 6, 10):
        await run.save(step, 1)
    for key, data in FOREIGN.items():
        await run.store.put(key, single(data))


async def saves(run):
    """A new step."""
    await run.save(20, 1)


async def replaces(run):
    """A step that exists, again."""
    await run.save(10, 2)


async def retires(run):
    """All but the newest."""
    await run.retire(10)


async def sweeps(run):
    """Leftovers."""
    await run.sweep()


async def resumes(run):
    """All of it, as a new run does."""
    await run.sweep()
    await run.save(10, 2)
    await run.save(20, 1)
    await run.retire(20)


SCENARIOS = {
    "save": (some_checkpoints, saves),
    "replacement": (some_checkpoints, replaces),
    "retention": (many, retires),
    "sweep": (leftovers, sweeps),
    "resumed run": (leftovers, resumes),
}


# ---- what must hold at every moment ----------------------------------------------------------------------------------


async def check(store, ledger, *, answers_are_true=True, foreign=FOREIGN):
    """Every listed step is whole and one that was saved; everything promised is there; foreign files are untouched."""
    seen = {}
    for found in await examine_all(store):
        if found.reason != UNCOMMITTED:
            assert found.reason is None, found
            seen[found.step] = await _version_of(store, found)
    for step, version in seen.items():
        assert version in ledger.tried[step], (step, version)
        assert not answers_are_true or (step, version) not in ledger.refused, (step, version)
        assert version >= ledger.promised.get(step, 0), (step, version)
    missing = set(ledger.promised) - ledger.retired - set(seen)
    assert not missing, missing
    assert not ledger.promised or seen, "a durable checkpoint there was, and none is left"
    newest = await newest_valid(store)
    assert (newest.step if newest else None) == max(seen, default=None)
    for key, data in foreign.items():
        assert await read_all(store, key, len(data)) == data, key


async def _version_of(store, found):
    (shard,) = found.manifest.shards
    index_key, pack_key = f"{found.folder}/{shard.index}", f"{found.folder}/{shard.pack}"
    index = decode_index(
        await read_all(store, index_key, shard.index_bytes), file=index_key, entry=shard, step=found.step
    )
    assert index.save_id == found.manifest.save_id
    expected, start = frames_of(found.step, index.tree, index.frames.raw[0]), 0
    for i, (stored, raw) in enumerate(zip(index.frames.stored, index.frames.raw, strict=True)):
        into = bytearray(raw)
        data = bytearray(stored)
        await store.read(pack_key, start, memoryview(data))
        decode_frame(
            memoryview(data), index.frames.encodings[i], index.frames.kinds[i], memoryview(into), known_codecs()
        )
        assert bytes(into) == expected[i]
        start += stored
    return index.tree


async def check_tidy(store):
    """Besides foreign files there is nothing but committed checkpoints."""
    for folder in {entry.name for entry in await store.list("") if entry.is_folder and entry.name.startswith("step-")}:
        names = {entry.name for entry in await store.list(folder)}
        names -= {key.removeprefix(f"{folder}/") for key in FOREIGN}
        found = {each.folder: each.manifest for each in await examine_all(store)}[folder]
        ours = {MANIFEST_NAME, found.shards[0].pack, found.shards[0].index} if found else set()
        assert names == ours, folder
