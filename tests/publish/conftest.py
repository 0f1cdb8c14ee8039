"""A root in memory, encoder threads, and checkpoints made of a few bytes."""

import asyncio
import time
from dataclasses import dataclass

import pytest

from asyncckpt.events import Phases
from asyncckpt.manifest.catalog import scan_steps
from asyncckpt.manifest.documents import VERSION, Manifest
from asyncckpt.manifest.names import new_save_id, step_folder
from asyncckpt.publish.commit import commit
from asyncckpt.publish.shard import write_shard
from asyncckpt.testing import MemoryStore
from asyncckpt.testing.blocks import ListBlocks
from asyncckpt.threads import PlainExecutor


@pytest.fixture
def encoders():
    """Two encoder threads."""
    executor = PlainExecutor(2, "encoder", background=False)
    yield executor
    executor.shutdown()


@dataclass
class Root:
    """A store with the steps of a publishing run, from blocking code."""

    store: object
    encoders: object

    def shard(
        self, blocks, *, store=None, save_id="0123456789ab", step=1, folder=None, codec=None, phases=None, **keywords
    ):
        """Run ``write_shard``."""
        return asyncio.run(
            write_shard(
                store or self.store, folder or step_folder(step), blocks, save_id=save_id, step=step, codec=codec,
                encoders=self.encoders, phases=phases or Phases(), **keywords,
            )
        )  # fmt: skip

    def attempt(self, step, *, metrics=None, save_id=None, folder=None):
        """Pack and index, and the manifest that would commit them."""
        save_id = save_id or new_save_id()
        blocks = ListBlocks([bytes([step % 251]) * 100], tree=step)
        shard = self.shard(blocks, save_id=save_id, step=step, folder=folder)
        return Manifest(
            version=VERSION, digest="", step=step, save_id=save_id, created=time.time(), metrics=metrics or {},
            metadata=["dict"], raw_bytes=100, stored_bytes=shard.pack_bytes + shard.index_bytes, timings={}, versions={},
            shards=[shard],
        )  # fmt: skip

    def commit(self, manifest, *, store=None, replacing=False, folder=None):
        """Run ``commit``."""
        folder = folder or step_folder(manifest.step)
        asyncio.run(commit(store or self.store, folder, manifest, replacing=replacing))

    def save(self, *steps, metrics=None):
        """Committed checkpoints."""
        for step in steps:
            self.commit(self.attempt(step, metrics=metrics))

    def plant(self, key, data=b"foreign"):
        """A file that we did not write."""
        asyncio.run(self.store.put_new(key, data))

    def steps(self):
        """Those that have a folder."""
        return sorted(asyncio.run(scan_steps(self.store)))

    def names(self, step):
        """The files of a step."""
        folder = f"{step_folder(step)}/"
        return sorted(key.removeprefix(folder) for key in self.store.objects if key.startswith(folder))


@pytest.fixture
def root(encoders):
    """An empty root in memory."""
    return Root(MemoryStore(), encoders)
