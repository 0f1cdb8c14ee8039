"""Objects of a state become plain values."""

import random
import threading
from collections import OrderedDict, defaultdict

import numpy as np
import pytest
import torch

from asyncckpt.errors import SaveError
from asyncckpt.training.stateful import collect, objects, payload_of


class Counter:
    def __init__(self, value=0):
        self.value, self.threads = value, []

    def state_dict(self):
        self.threads.append(threading.get_ident())
        return {"value": self.value}

    def load_state_dict(self, state):
        self.threads.append(threading.get_ident())
        self.value = state["value"]


def test_objects_anywhere_in_containers_are_replaced():
    """Objects in dicts, lists, tuples, OrderedDicts and defaultdicts are replaced; the containers keep their types."""
    state = {
        "a": Counter(1),
        "l": [Counter(2), 5],
        "t": (Counter(3),),
        "o": OrderedDict(x=Counter(4)),
        "d": defaultdict(list, {"x": Counter(5)}),
        "plain": {"x": [1, 2]},
    }
    got = collect(state)
    assert got["a"] == {"value": 1}
    assert got["l"] == [{"value": 2}, 5]
    assert got["t"] == ({"value": 3},)
    assert got["o"] == OrderedDict(x={"value": 4})
    assert type(got["o"]) is OrderedDict
    assert got["d"].default_factory is list
    assert got["d"]["x"] == {"value": 5}
    assert got["plain"] is state["plain"]
    assert isinstance(state["a"], Counter)
    assert [path for path, _ in objects(state)] == [("a",), ("l", 0), ("t", 0), ("o", "x"), ("d", "x")]


def test_classes_and_tensors_are_no_objects():
    """A class that has ``state_dict`` is not an instance of it."""
    state = {"cls": Counter, "t": torch.ones(2), "n": np.ones(2)}
    assert collect(state) is state


def test_state_dict_runs_in_the_callers_thread():
    """Case 47: ``state_dict()`` is called once, by the thread that saves."""
    counter = Counter(3)
    payload_of({"c": counter}, rng=False)
    assert counter.threads == [threading.get_ident()]


def test_hooks_are_asked_every_time():
    """Case 7: a ``state_dict`` hook that makes fresh tensors is asked at every save."""
    module = torch.nn.Linear(2, 2)
    module._register_state_dict_hook(lambda m, s, p, meta: s.update(twice=m.weight.detach() * 2))
    for value in (1.0, 2.0):
        torch.nn.init.constant_(module.weight, value)
        assert collect({"m": module})["m"]["twice"].eq(2 * value).all()


def test_a_failing_state_dict_is_named():
    """An exception of the user's ``state_dict()`` is raised with its key path."""

    class Broken:
        def state_dict(self):
            raise ValueError("no")

    with pytest.raises(SaveError, match=r"a\.b\[1\]") as caught:
        collect({"a": {"b": [1, Broken()]}})
    assert isinstance(caught.value.__cause__, ValueError)


def test_cycles_and_depth_are_left_to_the_writer():
    """Case 65: neither a cycle nor absurd nesting ends in a RecursionError here."""
    cyclic = []
    cyclic.append(cyclic)
    deep = leaf = {}
    for _ in range(5000):
        leaf["x"] = leaf = {}
    assert collect({"c": cyclic})["c"] is cyclic
    assert collect({"d": deep})["d"] is deep


def test_generators_stand_for_their_states():
    """Generators of torch, numpy and python are saved in the form that their own setters take."""
    state = [torch.Generator(), np.random.default_rng(1), np.random.RandomState(1), random.Random(1)]
    got = collect(state)
    assert torch.equal(got[0], state[0].get_state())
    assert got[1] == state[1].bit_generator.state
    assert got[2]["bit_generator"] == "MT19937"
    assert got[3] == state[3].getstate()


def test_names_of_parameters_are_noted():
    """The payload says whose parameters an optimizer's states belong to, wherever the model stands in the state."""
    model = torch.nn.DataParallel(torch.nn.Linear(2, 3))
    extra = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [extra]}], lr=1)
    payload, _ = payload_of({"nets": [model], "opt": {"main": optimizer}}, rng=False)
    assert payload["rng"] is None
    assert payload["optimizers"] == {
        "opt.main": [
            {"names": ["nets[0].weight", "nets[0].bias"], "shapes": [[3, 2], [3]], "dtypes": ["float32", "float32"]},
            {"names": [None], "shapes": [[4]], "dtypes": ["bfloat16"]},
        ]
    }
