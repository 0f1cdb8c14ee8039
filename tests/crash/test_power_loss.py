"""Every state that a power loss may leave, at every moment of everything a local store does, keeps every promise."""

import asyncio

import pytest
from power_checks import check_states, recover
from power_scenarios import POWER_SCENARIOS, record

from asyncckpt.threads import PlainExecutor


@pytest.fixture
def top(tmp_path):
    """The top folder of the recorded disk."""
    folder = tmp_path / "top"
    folder.mkdir()
    return folder


@pytest.fixture
def encoders():
    executor = PlainExecutor(1, "encoder", background=False)
    yield executor
    executor.shutdown()


@pytest.mark.parametrize("name", POWER_SCENARIOS)
def test_every_state_keeps_every_promise(name, top, tmp_path, encoders):
    """Evidence 5: what a power loss leaves is whole and as promised, and a new run cleans it up and goes on from it."""
    recorded = record(top, *POWER_SCENARIOS[name])

    async def main():
        count, last = await check_states(recorded)
        assert count > len(last) > 10
        for i, (tree, ledger) in enumerate(last.items()):
            await recover(recorded, tree, ledger, encoders, tmp_path / str(i))

    asyncio.run(main())
