"""The store fails at the k-th operation, for every k: what was promised stays, what is listed is whole."""

import asyncio
import errno
import inspect

import pytest
from crash_model import SCENARIOS, Ledger, Run, check, check_tidy

from asyncckpt.errors import StoreError, TransientStoreError
from asyncckpt.testing import Fault, FaultyStore, MemoryStore
from asyncckpt.threads import PlainExecutor

MODES = {
    "once": {},
    "for ever": {"for_ever": True, "errno": errno.ENOSPC},
    "within the bytes": {"after_bytes": 150},
    "after the bytes": {"after_bytes": 1 << 20},
}


@pytest.fixture
def encoders():
    """One thread, so that operations come in the same order every time."""
    executor = PlainExecutor(1, "encoder", background=False)
    yield executor
    executor.shutdown()


class LostAnswer:
    """The k-th call is carried out, and its answer lost. Nothing fails otherwise."""

    def __init__(self, inner, k):
        self.inner, self.left, self.struck = inner, k, False

    def __getattr__(self, name):
        method = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args):
            result = await method(*args)
            self.left -= 1
            if self.left == 0:
                self.struck = True
                raise TransientStoreError(f"the answer to {name} was lost", errno=errno.ETIMEDOUT)
            return result

        return call


async def strike(store, base, scenario, ledger, encoders):
    """The scenario; its faulty part on ``store``, the beginning on ``base``. Errors of the store are expected."""
    beginning, action = scenario
    await beginning(Run(base, encoders, ledger.note))
    try:
        await action(Run(store, encoders, ledger.note))
    except StoreError:
        return


async def second_run(base, ledger, encoders):
    """A new process on the same root: it sweeps and goes on."""
    run = Run(base, encoders, ledger.note)
    await run.sweep()
    await check(base, ledger, answers_are_true=False)
    await check_tidy(base)
    await run.save(30, 1)
    await run.retire(30)
    await check(base, ledger, answers_are_true=False)
    await check_tidy(base)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_at_every_operation(name, mode, encoders):
    """Case 16, 68: for every k the store fails at operation k; nothing promised is lost, and the next run tidies up."""

    async def at(k):
        base, ledger = MemoryStore(), Ledger()
        store = FaultyStore(base, Fault(at=k, **MODES[mode]))
        await strike(store, base, SCENARIOS[name], ledger, encoders)
        await check(base, ledger)
        await second_run(base, ledger, encoders)
        return any(operation.failed for operation in store.operations)

    k = 1
    while asyncio.run(at(k)):
        k += 1
    assert k > 3


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_lost_answer_at_every_operation(name, encoders):
    """For every k operation k is carried out and reported as failed: files of what may be committed are never removed."""

    async def at(k):
        base, ledger = MemoryStore(), Ledger()
        store = LostAnswer(base, k)
        await strike(store, base, SCENARIOS[name], ledger, encoders)
        await check(base, ledger, answers_are_true=False)
        await second_run(base, ledger, encoders)
        return store.struck

    k = 1
    while asyncio.run(at(k)):
        k += 1
    assert k > 3


@pytest.mark.parametrize("name", ["save", "replacement", "resumed run"])
def test_a_cancellation_at_every_operation(name, encoders):
    """A save cancelled while operation k runs costs nothing that was promised, and leaves nothing for ever."""

    async def at(k):
        base, ledger = MemoryStore(), Ledger()
        reached, calls = asyncio.Event(), []

        async def slow(operation):
            calls.append(operation)
            if len(calls) == k:
                reached.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(strike(FaultyStore(base, slow=slow), base, SCENARIOS[name], ledger, encoders))
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        struck = task.cancel()
        await asyncio.wait([task])
        await check(base, ledger, answers_are_true=False)  # whoever cancels is told nothing
        await second_run(base, ledger, encoders)
        return struck

    k = 1
    while asyncio.run(at(k)):
        k += 1
    assert k > 3
