"""What a save in the background leaves of the processor to the training thread."""

import pytest
import torch

from asyncckpt import AsyncCheckpointer


def tick():
    """About a millisecond of pure Python, which needs the GIL all along."""
    return sum(i * i for i in range(10_000))


@pytest.mark.parametrize(
    "state",
    [{"big": torch.randn(25 << 20)}, {f"t{i}": torch.full((100,), float(i)) for i in range(20_000)}],
    ids=["one large tensor", "20,000 small ones"],
)
def test_the_training_thread_goes_on_while_a_save_is_written(tmp_path, state):
    """Case 73: copying, coding and hashing release the GIL; a pure Python loop gets on during the save.

    How much slower it gets is a figure, not an assertion: benchmarks/figures.py measures it.
    """
    with AsyncCheckpointer(tmp_path, rng=False) as ck:
        ck.warmup(state)
        handle = ck.save(1, state)
        ticks = 0
        while not handle.done():
            tick()
            ticks += 1
        assert handle.result().step == 1
    assert ticks >= 10
