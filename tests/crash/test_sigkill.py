"""A real process on a real folder is killed at the k-th operation, for every k."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from crash_model import SCENARIOS, Ledger, Run, check, check_tidy

from asyncckpt.store.local import LocalStore
from asyncckpt.threads import PlainExecutor

CHILD = Path(__file__).with_name("crash_child.py")


def read_diary(path):
    """What the dead process had promised."""
    ledger = Ledger()
    for line in path.read_text().splitlines():
        word, step, version = line.split()
        ledger.note(word, int(step), int(version))
    return ledger


async def after_the_kill(home, encoders):
    """The dead process's root is as promised; a second process sweeps it, goes on, and leaves it tidy."""
    store, ledger = LocalStore(home / "root"), read_diary(home / "diary")
    await check(store, ledger)
    run = Run(store, encoders, ledger.note)
    await run.sweep()
    await check(store, ledger)
    await check_tidy(store)
    await run.save(30, 1)
    await run.retire(30)
    await check(store, ledger)
    await check_tidy(store)


SLOW = {"resumed run": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in SCENARIOS])
def test_a_kill_at_every_operation(name, tmp_path):
    """Case 29, 30, 68: killed anywhere in a save, a replacement, a deletion or a sweep, a root keeps its promises."""
    subprocess.run([sys.executable, str(CHILD), name, str(tmp_path)], check=True, timeout=100)
    homes = sorted(tmp_path.iterdir(), key=lambda home: int(home.name))
    assert len(homes) > 3
    encoders = PlainExecutor(1, "encoder", background=False)
    for home in homes:
        asyncio.run(after_the_kill(home, encoders))
    encoders.shutdown()
