"""Prefixes of wrappers go on save and come back on load."""

import pytest
import torch
from objects_by_hand import restored, saved
from torch import nn

from asyncckpt.training.stateful import collect
from asyncckpt.training.wrappers import clean_name, clean_state


def net():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def compiled(module):
    return torch.compile(module, backend="eager")


WRAPPINGS = {
    "none": lambda m: m,
    "parallel": nn.DataParallel,
    "compiled": compiled,
    "both": lambda m: compiled(nn.DataParallel(m)),
    "other way round": lambda m: nn.DataParallel(compiled(m)),
    "inside": lambda m: nn.Sequential(compiled(m[0]), nn.DataParallel(m[1])),
}


@pytest.mark.parametrize("kind", WRAPPINGS)
def test_names_are_clean_whatever_the_wrapping(kind):
    """DataParallel's and torch.compile's prefixes go, in any nesting; ``_metadata`` follows, with the inner versions."""
    plain = net().state_dict()
    wrapped = WRAPPINGS[kind](net())
    cleaned = clean_state(wrapped, wrapped.state_dict())
    assert list(cleaned) == list(plain)
    assert cleaned._metadata == plain._metadata


@pytest.mark.parametrize("kind", WRAPPINGS)
def test_every_wrapping_loads_what_every_other_saved(kind):
    """Saved wrapped, restored plain, and the other way round."""
    source = net()
    for one, other in ((WRAPPINGS[kind], WRAPPINGS["none"]), (WRAPPINGS["none"], WRAPPINGS[kind])):
        hand = saved({"m": one(source)})
        target = other(net())
        assert restored(hand, {"m": target}) == {}
        loaded = clean_state(target, target.state_dict())
        assert all(torch.equal(loaded[name], value) for name, value in source.state_dict().items())


def test_a_users_own_module_called_module_keeps_its_name():
    """Prefixes are found by walking real wrappers, never by their text."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2)
            self._orig_mod = nn.Linear(2, 2)

    odd = Odd()
    assert list(collect({"m": odd})["m"]) == list(odd.state_dict())
    wrapped = nn.DataParallel(odd)
    assert clean_name(wrapped, "module.module.weight") == "module.weight"
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    assert "module.weight" in collect(average)


def test_distributed_data_parallel(tmp_path):
    """DDP's prefix goes too."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        source = net()
        wrapped = nn.parallel.DistributedDataParallel(source)
        hand = saved({"m": wrapped})
        target = nn.parallel.DistributedDataParallel(net())
        assert list(collect(wrapped)) == list(source.state_dict())
        restored(hand, {"m": target})
        assert torch.equal(target.module[0].weight, source[0].weight)
    finally:
        torch.distributed.destroy_process_group()
