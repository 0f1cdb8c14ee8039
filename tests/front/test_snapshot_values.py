"""The saved values are those at the time of the call, whatever happens next."""

import collections
import copy
import threading

import numpy as np
import pytest
import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer, UnsupportedStateError


def test_host_values_are_copied_before_save_returns(gate):
    """Case 1: tensors, parameters, buffers, arrays and from_numpy memory may be overwritten at once."""
    array, backing = np.ones(4), np.ones(4, dtype=np.float32)
    module = torch.nn.BatchNorm1d(4)
    state = {
        "w": torch.ones(4),
        "p": torch.nn.Parameter(torch.ones(4)),
        "b": module.running_var,
        "a": array,
        "n": torch.from_numpy(backing),
    }
    with AsyncCheckpointer(gate.store) as ck:
        handle = ck.save(1, state)
        with torch.no_grad():
            for key in ("w", "p", "b"):
                state[key].fill_(2)
        array.fill(2)
        backing.fill(2)
        gate.open()
        handle.result(30)
    loaded = asyncckpt.load(gate.root)
    for key in state:
        assert np.array_equal(np.asarray(loaded[key].detach() if key != "a" else loaded[key]), np.ones(4)), key


@pytest.mark.parametrize("keywords", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_adam_step_and_moments_are_of_one_moment(gate, keywords):
    """Case 2: the step counts saved belong to the moments saved."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), **keywords)

    def train():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    train()
    expected = copy.deepcopy(optimizer.state_dict())
    with AsyncCheckpointer(gate.store) as ck:
        handle = ck.save(1, {"m": model.state_dict(), "o": optimizer.state_dict()})
        train()
        gate.open()
        handle.result(30)
    loaded = asyncckpt.load(gate.root)["o"]["state"]
    for i, entry in expected["state"].items():
        assert loaded[i]["step"] == 1.0
        assert torch.equal(loaded[i]["exp_avg"], entry["exp_avg"])


def test_each_checkpoint_holds_one_moment(tmp_path):
    """Case 3: 200 tensors, overwritten as fast as the loop can; every checkpoint holds one step's values only."""
    tensors = [torch.zeros(16_384) for _ in range(200)]
    with AsyncCheckpointer(tmp_path) as ck:
        for step in range(1, 26):
            for tensor in tensors:
                tensor.fill_(step)
            ck.save(step, {"layers": tensors})
        steps = ck.steps() or [1]
        ck.wait()
        steps = ck.steps()
    assert len(steps) == 25
    for step in steps:
        values = {float(v) for t in asyncckpt.load(tmp_path, step=step)["layers"] for v in (t.min(), t.max())}
        assert values == {float(step)}


def test_plain_values_are_copied_too(gate):
    """Case 4: lists, dicts, arrays, bytearrays, counters and deques may be changed at once, and keys added."""
    state = {
        "p": {"step": 5, "hist": [1, 2]},
        "np": np.zeros(3),
        "ba": bytearray(b"ab"),
        "c": collections.Counter(a=1),
        "dq": collections.deque([1]),
    }
    expected = copy.deepcopy(state)
    with AsyncCheckpointer(gate.store) as ck:
        handle = ck.save(1, state)
        state["p"]["step"] = 6
        state["p"]["hist"].append(3)
        state["np"][:] = 9
        state["ba"] += b"c"
        state["c"]["a"] += 1
        state["dq"].append(2)
        state["new"] = 1
        gate.open()
        handle.result(30)
    loaded = asyncckpt.load(gate.root)
    assert loaded.keys() == expected.keys()
    assert np.array_equal(loaded.pop("np"), expected.pop("np"))
    assert loaded == expected
    assert [type(v) for v in loaded.values()] == [type(v) for v in expected.values()]


def test_state_dict_hooks_that_make_new_tensors_are_followed(tmp_path):
    """Case 7: a state_dict hook that returns fresh tensors every time is asked every time."""

    class Fused(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Parameter(torch.zeros(3, 4))
            self.register_state_dict_post_hook(self.split)

        @staticmethod
        def split(module, state, prefix, metadata):
            for name, chunk in zip("qkv", state.pop(prefix + "qkv").chunk(3), strict=True):
                state[prefix + name] = chunk.clone()

    module = Fused()
    with AsyncCheckpointer(tmp_path) as ck:
        for k in (1, 2, 3):
            with torch.no_grad():
                module.qkv.fill_(k)
            ck.save(k, {"m": module, "d": module.state_dict()})
            ck.wait()
    for k in (1, 2, 3):
        loaded = asyncckpt.load(tmp_path, step=k)
        for part in "qkv":
            assert torch.equal(loaded["m"][part], torch.full((1, 4), float(k)))
            assert torch.equal(loaded["d"][part], torch.full((1, 4), float(k)))


def test_one_checkpointer_saves_many_times(tmp_path):
    """Case 9: five saves through one object, with every kind of small value."""
    state = {
        "t": (1, (2.5, "x")),
        "s": {1, 2},
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "none": None,
        "flag": True,
        "b": b"\x00\xff",
        "empty": {"l": [], "d": {}, "t": ()},
    }
    with AsyncCheckpointer(tmp_path) as ck:
        for step in range(1, 6):
            ck.save(step, {**state, "step": step})
    for step in range(1, 6):
        loaded = asyncckpt.load(tmp_path, step=step)
        assert loaded == {**state, "step": step}
        assert type(loaded["size"]) is torch.Size


class Colour(collections.namedtuple("Colour", "r g")):
    """A user's class: naming it in a document would mean importing it."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": {"b": [1, Colour(1, 2)]}}, "a.b[1]"),
        ({"scheduler": {"lr_lambdas": [lambda x: x]}}, "scheduler.lr_lambdas[0]"),
        ({"m": torch.empty(3, device="meta")}, "m"),
    ],
)
def test_unsupported_values_are_refused_at_once(tmp_path, state, path):
    """Case 9: a type that we do not support fails in the calling thread at the first save, naming its path."""
    with AsyncCheckpointer(tmp_path / "run") as ck:
        with pytest.raises(UnsupportedStateError) as caught:
            ck.save(1, state)
        assert caught.value.path == path
        assert path in str(caught.value)
        assert caught.value.step == 1
        assert not list((tmp_path / "run").glob("step-*"))
        ck.save(2, {"fine": 1}).result(30)


def test_state_dict_is_called_in_the_callers_thread(tmp_path):
    """Case 47: a data loader's ``state_dict`` is called where it is safe: in the thread that calls ``save``."""
    threads = []

    class Loader:
        def __init__(self):
            self.position = 0

        def state_dict(self):
            threads.append(threading.get_ident())
            return {"position": self.position}

        def load_state_dict(self, state):
            threads.append(threading.get_ident())
            self.position = state["position"]

    ids, position = [], 0
    for run, batches in enumerate((30, 10, 10)):
        loader = Loader()
        with AsyncCheckpointer(tmp_path) as ck:
            restored = ck.restore({"loader": loader})
            assert (restored is None) == (run == 0)
            for _ in range(batches):
                ids.append(loader.position)
                loader.position += 1
            position += batches
            ck.save(position, {"loader": loader})
    assert ids == list(range(50))
    assert set(threads) == {threading.get_ident()}
    assert asyncckpt.load(tmp_path, step=40)["loader"] == {"position": 40}
