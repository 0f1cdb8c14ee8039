"""Save, fail, damage, retire, restart and restore in any order, against a dict."""

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import asyncckpt
from asyncckpt import AsyncCheckpointer, KeepLast
from asyncckpt.errors import CheckpointNotFoundError, StoreError
from asyncckpt.testing import Fault, FaultyStore, MemoryStore

KEEP = 3


class Checkpoints(RuleBasedStateMachine):
    """``good`` is what must be there: step -> value. ``damaged``: steps that must be passed over."""

    def __init__(self):
        super().__init__()
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.good, self.damaged = {}, set()
        self.ck = self.open()

    def open(self):
        return AsyncCheckpointer(self.store, keep=KeepLast(KEEP), rng=False)

    def teardown(self):
        self.store.set_fault(None)
        self.ck.close()

    @rule(step=st.integers(0, 12), value=st.integers(-5, 5))
    def save(self, step, value):
        """A save that succeeds replaces its step and retires the oldest."""
        self.ck.save(step, {"v": value, "w": torch.full((50,), float(value))}).result(30)
        self.damaged.discard(step)
        self.good[step] = value
        self.retire(step)

    @rule(step=st.integers(0, 12), value=st.integers(-5, 5), k=st.integers(1, 14))
    def save_with_a_fault(self, step, value, k):
        """The k-th operation fails once: the save fails and changes nothing, or succeeds as if nothing had been."""
        self.store.set_fault(Fault(at=k, where=lambda operation: operation.name != "writer_lock"))
        handle = self.ck.save(step, {"v": value, "w": torch.full((50,), float(value))})
        error = handle.exception(30)
        self.store.set_fault(None)
        if error is None:
            self.damaged.discard(step)
            self.good[step] = value
            listed = set(self.ck.steps())  # a deletion may have failed; it is tried again by the next save
            for old in [s for s in self.good if s not in listed]:
                del self.good[old]
            assert step in self.good
        else:
            assert isinstance(error, StoreError)
            assert error.step == step

    @rule(data=st.data())
    @precondition(lambda self: self.good)
    def damage(self, data):
        """A step loses a piece of its pack."""
        step = data.draw(st.sampled_from(sorted(self.good)))
        folder = f"step-{step:012d}/"
        key = next(k for k in self.memory.objects if k.startswith(folder) and k.endswith(".pack"))
        self.memory.damage(key, self.memory.objects[key][:-1])
        del self.good[step]
        self.damaged.add(step)

    @rule()
    def restart(self):
        """A new process on the same root."""
        self.ck.close()
        self.ck = self.open()

    @rule(step=st.integers(0, 12))
    def load_one(self, step):
        """A good step loads whole; a damaged or absent one is refused."""
        try:
            value = asyncckpt.load(self.store, step=step)
        except asyncckpt.CheckpointError:
            assert step not in self.good
        else:
            assert value["v"] == self.good[step]
            assert torch.equal(value["w"], torch.full((50,), float(value["v"])))

    @invariant()
    def the_newest_good_one_is_found(self):
        """``latest`` and ``restore`` agree with the dict."""
        assert self.ck.latest() == max(self.good, default=None)
        try:
            restored = self.ck.restore()
        except CheckpointNotFoundError as error:
            assert not self.good
            assert set(error.reasons) >= self.damaged
        else:
            assert (restored and restored.step) == max(self.good, default=None)
            assert restored is None or restored["v"] == self.good[restored.step]

    def retire(self, written):
        kept = set(sorted(self.good)[-KEEP:]) | {written, max(self.good)}
        self.good = {step: value for step, value in self.good.items() if step in kept}


Checkpoints.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_history_of_saves_faults_and_restarts = Checkpoints.TestCase
