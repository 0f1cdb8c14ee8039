"""One save, from the snapshot to the committed checkpoint, as it runs in the worker thread.

Order (docs/ordering.md): pack, index, read back if asked for, MANIFEST, then retention. A save that fails before its
MANIFEST removes its own files and touches nothing else.
"""

import asyncio
import platform
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from asyncckpt.encode.base import Codec
from asyncckpt.errors import CheckpointError, SaveError
from asyncckpt.events import Event, OnEvent, Phases, emit, logger
from asyncckpt.manifest.catalog import CheckpointInfo, info_of, is_committed, scan_steps
from asyncckpt.manifest.documents import VERSION, Manifest, ShardEntry
from asyncckpt.manifest.names import new_save_id, step_folder
from asyncckpt.publish.auto import AutoCompression, Written
from asyncckpt.publish.blocks import Blocks
from asyncckpt.publish.commit import clean_attempt, commit
from asyncckpt.publish.keep import Keep
from asyncckpt.publish.retention import apply_retention, sweep
from asyncckpt.publish.shard import write_shard
from asyncckpt.publish.verify import verify_shard
from asyncckpt.store.base import Store


@dataclass(slots=True)
class Publisher:
    """How this checkpointer's saves are published. Used by the worker thread only, one save at a time.

    Attributes:
        codec: what frames are coded with; None: not at all.
        auto: decides anew for every save whether to use its own codec, in place of ``codec``.
        resumed: the step the run resumed from, which retention spares until a newer one is durable.
        swept: whether the leftovers of earlier runs have been removed.
        warned: whether it was said that newer steps exist than the one being saved.
    """

    store: Store
    codec: Codec | None
    keep: Keep | None
    verify: bool
    on_event: OnEvent
    versions: Mapping[str, str]
    auto: AutoCompression | None = None
    resumed: int | None = None
    swept: bool = False
    warned: bool = False

    async def publish(self, save: "SaveRequest", encoders: Executor) -> CheckpointInfo:
        """Write, commit, then retire old checkpoints; ``CheckpointError`` with step and save_id if it fails."""
        with naming(save):
            await self._sweep_once(save)
            info = await self._write_and_commit(save, encoders)
        await self._retire(save)
        return info

    async def _sweep_once(self, save: "SaveRequest") -> None:
        if not self.swept:
            await sweep(self.store, in_flight={save.save_id})
            self.swept = True

    async def _write_and_commit(self, save: "SaveRequest", encoders: Executor) -> CheckpointInfo:
        folders = await scan_steps(self.store)
        existing = folders.get(save.step)
        self._warn_of_newer(save.step, max(folders, default=save.step))
        folder = existing or step_folder(save.step)
        replacing = existing is not None and await is_committed(self.store, existing)
        try:
            shard = await self._write_shard(save, folder, encoders)
            if self.verify:
                with save.phases("verify"):
                    await verify_shard(self.store, folder, shard)
            manifest = self._manifest(save, shard)
            with save.phases("publish"):
                await commit(self.store, folder, manifest, replacing=replacing)
        except BaseException:
            await asyncio.shield(clean_attempt(self.store, folder, save.save_id))
            raise
        return info_of(manifest, f"{self.store.url}/{folder}")

    async def _write_shard(self, save: "SaveRequest", folder: str, encoders: Executor) -> ShardEntry:
        codec = self.codec if self.auto is None else self.auto.begin(len(save.blocks.frames))
        started = time.perf_counter()
        shard = await write_shard(
            self.store,
            folder,
            save.blocks,
            save_id=save.save_id,
            step=save.step,
            codec=codec,
            encoders=encoders,
            phases=save.phases,
        )
        if self.auto is not None:
            spent = save.phases.seconds()
            waited = spent.get("write", 0.0) + spent.get("sync", 0.0)
            self.auto.learn(Written(save.blocks.raw_bytes, shard.pack_bytes, waited, time.perf_counter() - started))
        return shard

    def _warn_of_newer(self, step: int, newest: int) -> None:
        """A run that went back: what it saves is not what ``latest`` finds until it has passed the old steps."""
        if newest > step and not self.warned:
            self.warned = True
            logger.warning(
                "step %d is saved while step %d exists in %s: resuming goes by the highest step, so it will take %d; "
                "to go on from here, remove the newer steps or use another root",
                step,
                newest,
                self.store.url,
                newest,
            )

    def _manifest(self, save: "SaveRequest", shard: ShardEntry) -> Manifest:
        return Manifest(
            version=VERSION,
            digest="",
            step=save.step,
            save_id=save.save_id,
            created=time.time(),
            metrics=dict(save.metrics),
            metadata=save.metadata,
            raw_bytes=save.blocks.raw_bytes,
            stored_bytes=shard.pack_bytes + shard.index_bytes,
            timings=save.phases.seconds(),
            versions=dict(self.versions),
            shards=[shard],
        )

    async def _retire(self, save: "SaveRequest") -> None:
        """Apply the keep policy. The new checkpoint is durable: nothing that goes wrong here may fail the save."""
        if self.keep is None:
            return
        try:
            await apply_retention(
                self.store,
                self.keep,
                written=save.step,
                resumed=self.resumed,
                in_flight={save.save_id},
                emit=self._emit,
            )
        except Exception:
            logger.exception("retention after step %d failed; it is tried again after the next save", save.step)
        if self.resumed is not None and save.step > self.resumed:
            self.resumed = None

    def _emit(self, event: Event) -> None:
        emit(self.on_event, event)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """What is to be saved, with everything that was said about it in the caller's thread."""

    step: int
    blocks: Blocks
    metrics: Mapping[str, Any]
    metadata: Any
    phases: Phases
    save_id: str = field(default_factory=new_save_id)


@contextmanager
def naming(save: SaveRequest) -> Iterator[None]:
    """Give errors of the lower layers their step and save_id; wrap those that are not checkpoint errors."""
    try:
        yield
    except BaseException as error:
        cause = _single(error)
        if isinstance(cause, CheckpointError):
            cause.step = save.step if cause.step is None else cause.step
            cause.save_id = cause.save_id or save.save_id
            if cause is error:
                raise
            raise cause from cause.__cause__
        raise SaveError(
            f"the save of step {save.step} failed: {type(cause).__name__}: {cause}",
            step=save.step,
            save_id=save.save_id,
        ) from cause


def _single(error: BaseException) -> BaseException:
    """The error inside groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def library_versions() -> dict[str, str]:
    """Versions as they stand in every manifest."""
    import torch

    from asyncckpt import __version__

    return {"asyncckpt": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
