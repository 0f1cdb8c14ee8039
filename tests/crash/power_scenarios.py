"""What is recorded and then cut: every kind of work that a store does, on a root as another run has left it. No torch."""

import asyncio
import errno
from contextlib import suppress

from crash_model import FOREIGN, SCENARIOS, Ledger, Run, some_checkpoints
from power_checks import Record, Witness
from recording import recorded

from asyncckpt.errors import StoreError
from asyncckpt.store.local import LocalStore
from asyncckpt.threads import PlainExecutor

SIZE = 1000  # bytes of a frame: a pack is longer than a page


async def nothing(run):
    """Not even a root."""


async def first(run):
    """A run that makes its root."""
    with run.store.writer_lock():
        await run.sweep()
        await run.save(10, 1)


async def folders_by_others(run):
    """The step's folder was made by another process, which was killed before it could sync anything."""
    run.store.disk.makedirs(run.store.url + "/step-000000000020", exist_ok=True)
    await run.save(20, 1)


def failing_sync(site, action):
    """The action, while syncs asked for by ``site`` fail."""

    async def act(run):
        run.store.disk.failing = lambda name, found: errno.EIO if found.startswith(site) else None
        with suppress(StoreError):
            await action(run)
        run.store.disk.failing = lambda name, found: None

    return act


async def replaces_in_vain(run):
    """The folder cannot be synced once the new MANIFEST is in place: the old one must come back, for good."""
    disk = run.store.disk

    def fails(name, site):
        placed = any(word.endswith("MANIFEST.json") for note in disk.notes() for word in note if isinstance(word, str))
        if placed and site.startswith("folders.py:sync_folder < draft.py:publish"):
            return errno.EIO
        return None

    disk.failing = fails
    with suppress(StoreError):
        await run.save(10, 2)


POWER_SCENARIOS = {
    "first save": (nothing, first),
    **SCENARIOS,
    "folders by others": (some_checkpoints, folders_by_others),
    "replacement in vain": (some_checkpoints, replaces_in_vain),
}


def record(top, beginning, action, *, nbytes=SIZE, killed_at=None, then=None):
    """Run a scenario under the recorder; its beginning is durable.

    Args:
        top: an empty folder.
        beginning: as in ``crash_model.SCENARIOS``.
        action: as there.
        nbytes: of a frame.
        killed_at: the process dies after so many events ...
        then: ... and another one does this.
    """
    encoders = PlainExecutor(1, "encoder", background=False)
    root = top / "new" / "root"
    ledger = Ledger()
    asyncio.run(beginning(Run(LocalStore(root), encoders, ledger.note, nbytes)))
    with recorded(top) as disk:
        disk.die_at = killed_at
        asyncio.run(_survived(action, _new_run(disk, root, encoders, nbytes)))
        if then is not None:
            disk.die_at = None
            asyncio.run(then(_new_run(disk, root, encoders, nbytes)))
    encoders.shutdown()
    foreign = {} if beginning is nothing else FOREIGN
    return Record(disk.base, disk.events, "new/root", ledger, foreign)


def _new_run(disk, root, encoders, nbytes):
    store = Witness(LocalStore(root), disk.note)
    store.disk = disk
    return Run(store, encoders, disk.note, nbytes)


async def _survived(action, run):
    with suppress(StoreError):
        await action(run)
