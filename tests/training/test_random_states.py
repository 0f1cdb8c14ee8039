"""The process's random states."""

import random

import numpy as np
import pytest
import torch
from objects_by_hand import restored, saved

from asyncckpt.training.rng import capture_rng, restore_rng


def draw():
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        torch.rand(3).tolist(),
    ]


def test_all_generators_go_on_where_they_were():
    """Case 45: after a round trip through a checkpoint, python, numpy and torch draw the same numbers."""
    draw()
    hand = saved({}, rng=True)
    expected = draw()
    draw()
    restored(hand, {}, rng=True)
    assert draw() == expected
    restored(hand, {}, rng=False)
    assert draw() != expected


def test_capturing_draws_nothing():
    """Taking the states changes none of them."""
    first = capture_rng()
    expected = draw()
    restore_rng(first)
    capture_rng()
    assert draw() == expected


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_one_damaged_state_is_loud_and_the_others_are_restored(name, caplog):
    """Case 45: a damaged entry gives a warning that names it; all others are restored all the same."""
    states = capture_rng()
    expected = draw()
    assert restore_rng({**states, name: "damaged"}) == [name]
    assert name in caplog.text
    got = draw()
    groups = {"python": slice(0, 2), "numpy": slice(2, 4), "torch": slice(4, 5)}
    assert all((got[part] == expected[part]) == (other != name) for other, part in groups.items())


def test_nothing_saved_and_rubbish_saved(caplog):
    """No states saved: nothing happens. Something else saved: a warning."""
    assert restore_rng(None) == []
    assert not caplog.text
    assert restore_rng([1]) == ["all"]
    assert "damaged" in caplog.text


class FakeDevices:
    def __init__(self, count, ready=True):
        self.states = [torch.full((16,), i, dtype=torch.uint8) for i in range(count)]
        self.ready = ready

    def is_initialized(self):
        return self.ready

    def device_count(self):
        return len(self.states)

    def get_rng_state(self, i):
        return self.states[i].clone()

    def set_rng_state(self, state, i):
        self.states[i] = state


@pytest.fixture
def devices(monkeypatch):
    """An accelerator of so many devices."""

    def make(count, ready=True):
        fake = FakeDevices(count, ready)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
        monkeypatch.setattr(torch, "get_device_module", lambda name: fake)
        monkeypatch.setattr(torch, "xpu", fake)
        return fake

    return make


def test_every_device_is_saved_and_restored(devices, caplog):
    """Each device's state comes back; with another number of devices there is a warning and what fits is restored."""
    devices(3)
    states = capture_rng()
    assert len(states["devices"]["xpu"]) == 3
    here = devices(2)
    for state in here.states:
        state.zero_()
    assert restore_rng(states) == []
    assert [int(state[0]) for state in here.states] == [0, 1]
    assert "3 random states of xpu" in caplog.text


def test_a_device_that_was_never_used_is_not_initialised(devices):
    """No accelerator is touched that the program has not used."""
    fake = devices(2, ready=False)
    fake.get_rng_state = None
    assert capture_rng()["devices"] == {}
