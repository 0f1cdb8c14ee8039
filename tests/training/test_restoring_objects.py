"""Restoring into live objects: in place, checked first, called in the caller's thread."""

import random
import threading

import numpy as np
import pytest
import torch
from checkpoint_by_hand import FOLDER
from objects_by_hand import restored, saved
from test_collecting import Counter
from torch import nn

from asyncckpt.errors import IntegrityError, RestoreError, StateMismatchError


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40))


def same(one, other):
    return all(torch.equal(v, other.state_dict()[k]) for k, v in one.state_dict().items())


def test_parameters_are_filled_where_they_are():
    """Case 75: parameters and buffers keep their memory and identity; what has no object is given back."""
    source, target = net(1), net(2)
    before = {name: value.data_ptr() for name, value in target.state_dict().items()}
    parameter = target[0].weight
    rest = restored(saved({"m": source, "epoch": 3, "x": {"w": torch.ones(2)}}), {"m": target, "epoch": 0})
    assert same(source, target)
    assert target[0].weight is parameter
    assert {name: value.data_ptr() for name, value in target.state_dict().items()} == before
    assert rest["epoch"] == 3
    assert rest["x"]["w"].eq(1).all()
    assert rest.keys() == {"epoch", "x"}


def test_no_second_copy_is_made(monkeypatch):
    """Case 75: what was read in place is neither allocated again nor copied by ``load_state_dict``."""
    from asyncckpt.restore.memory import Region

    made = []
    monkeypatch.setattr(Region, "__init__", lambda self, *args: made.append(args))
    restored(saved({"m": net(1)}), {"m": net(2)})
    assert made == []


def test_a_module_on_meta_takes_over_the_tensors():
    """Case 75: a model built on the meta device gets real tensors, its own dtypes, and its ties."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.head = nn.Embedding(30, 4), nn.Linear(4, 30, bias=False)
            self.head.weight = self.emb.weight
            self.emb.weight.requires_grad_(False)

    source = Tied().to(torch.float64)
    with torch.device("meta"):
        target = Tied()
    restored(saved({"m": source}), {"m": target})
    assert target.head.weight is target.emb.weight
    assert (target.emb.weight.device.type, target.emb.weight.dtype) == ("cpu", torch.float32)
    assert not target.emb.weight.requires_grad
    assert torch.equal(target.emb.weight, source.emb.weight.float())


def test_another_dtype_or_layout_is_converted():
    """A target of another dtype or memory format is loaded by torch's own copy."""
    source = nn.Conv2d(3, 4, 2)
    target = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    restored(saved({"m": source}), {"m": target})
    assert torch.equal(target.weight, source.weight)
    double = nn.Conv2d(3, 4, 2).double()
    restored(saved({"m": source}), {"m": double})
    assert torch.equal(double.weight, source.weight.double())


def test_tied_into_tied_and_untied():
    """Case 56: both names are loaded, and each target keeps the ties that it has."""

    def make(tie):
        model = nn.ModuleDict({"a": nn.Linear(5, 5), "b": nn.Linear(5, 5)})
        if tie:
            model["b"].weight = model["a"].weight
        return model

    source = make(True)
    for tie in (True, False):
        target = make(tie)
        restored(saved({"m": source}), {"m": target})
        assert torch.equal(target["a"].weight, source["a"].weight)
        assert torch.equal(target["b"].weight, source["a"].weight)
        assert (target["a"].weight is target["b"].weight) == tie


def test_loading_hooks_and_overrides_see_what_was_saved():
    """A module whose own code changes values while loading is not filled behind its back."""

    class Swapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))

        def _load_from_state_dict(self, state, prefix, *args):
            state[prefix + "a"], state[prefix + "b"] = state[prefix + "b"], state[prefix + "a"]
            super()._load_from_state_dict(state, prefix, *args)

    target = Swapping()
    restored(saved({"m": Swapping()}), {"m": target})
    assert (target.a.tolist(), target.b.tolist()) == ([1, 1, 1], [0, 0, 0])
    fused = nn.Linear(2, 2)
    fused.register_load_state_dict_pre_hook(lambda m, state, prefix, *a: state.update(weight=state.pop("old")))
    state = nn.Linear(2, 2).state_dict()
    state["old"] = state.pop("weight")
    restored(saved({"m": state}), {"m": fused})
    assert torch.equal(fused.weight, state["old"])


# ---- what does not fit ---------------------------------------------------------------------------------------------


def test_mismatches_are_listed_before_anything_is_changed():
    """Missing, unexpected and mismatched paths are all listed, and no object has been touched."""
    source = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "old": nn.Linear(1, 1)})
    target = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(3, 2), "new": nn.Linear(1, 1)})
    state = {"m": target, "c": Counter(9), "gone": Counter(8)}
    kept = {name: value.clone() for name, value in target.state_dict().items()}
    hand = saved({"m": source, "c": Counter(1)})
    with pytest.raises(StateMismatchError) as caught:
        restored(hand, state)
    error = caught.value
    assert set(error.missing) == {"gone", "m.new.weight", "m.new.bias"}
    assert set(error.unexpected) == {"m.old.weight", "m.old.bias"}
    assert error.mismatched == {"m.b.weight": "shape [2, 2] saved, [2, 3] here"}
    assert state["c"].value == 9
    assert all(torch.equal(value, kept[name]) for name, value in target.state_dict().items())


def test_not_strict_loads_what_fits_and_warns(caplog):
    """``strict=False`` loads what fits and warns of the rest, by path."""
    source = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    target = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(3, 2)})
    state = {"m": target, "c": Counter(9)}
    assert restored(saved({"m": source}), state, strict=False) == {}
    assert torch.equal(target["a"].weight, source["a"].weight)
    assert torch.equal(target["b"].bias, source["b"].bias)
    assert state["c"].value == 9
    assert "m.b.weight" in caplog.text
    assert "c" in caplog.text
    assert restored(saved({"m": 3}), {"m": net()}, strict=False) == {}


def test_an_object_that_refuses_is_named():
    """What ``load_state_dict`` raises is the cause of a RestoreError that names the object."""

    class Refusing(Counter):
        def load_state_dict(self, state):
            raise KeyError("no")

    with pytest.raises(RestoreError, match=r"a\.b") as caught:
        restored(saved({"a": {"b": Counter(1)}}), {"a": {"b": Refusing()}})
    assert isinstance(caught.value.__cause__, KeyError)


def test_damage_leaves_other_objects_alone():
    """Damage found while reading is raised before any ``load_state_dict`` is called; the error names the value."""
    hand = saved({"m": net(1), "c": Counter(1)})
    good = hand.store.objects[hand.pack_key]
    hand.store.damage(hand.pack_key, good[:100] + bytes([good[100] ^ 1]) + good[101:])
    counter = Counter(9)
    with pytest.raises(IntegrityError, match=r"m\.0\.") as caught:
        restored(hand, {"m": net(2), "c": counter})
    assert caught.value.file.startswith(FOLDER)
    assert counter.value == 9
    assert counter.threads == []


# ---- parts, other objects ------------------------------------------------------------------------------------------


def test_only_restores_what_is_named():
    """``only=`` may name an object, or some values of a module; the rest is left alone."""
    source, target = net(1), net(2)
    hand = saved({"m": source, "c": Counter(1), "epoch": 3})
    kept = target[1].weight.detach().clone()
    state = {"m": target, "c": Counter(9), "later": Counter(7)}
    assert restored(hand, state, only="m.0") == {}
    assert torch.equal(target[0].weight, source[0].weight)
    assert torch.equal(target[1].weight, kept)
    assert state["c"].value == 9
    assert restored(hand, state, only=["c", "epoch"]) == {"epoch": 3}
    assert state["c"].value == 1
    with pytest.raises(StateMismatchError, match="nowhere"):
        restored(hand, state, only="nowhere")


def test_without_a_state_everything_is_given_back():
    """With no objects to restore into, the result is the whole state."""
    rest = restored(saved({"m": net(1), "l": [Counter(1), 2]}), None)
    assert rest["l"] == [{"value": 1}, 2]
    assert torch.equal(rest["m"]["0.weight"], net(1)[0].weight)


def test_objects_in_lists():
    """A list of objects is loaded entry by entry; what has no object keeps its place."""
    state = [Counter(), Counter()]
    rest = restored(saved({"l": [Counter(1), Counter(2)], "p": [Counter(3), 4]}), {"l": state, "p": [Counter(), 0]})
    assert [counter.value for counter in state] == [1, 2]
    assert rest == {"p": [None, 4]}


def test_calls_are_made_in_the_callers_thread():
    """Case 47: ``load_state_dict`` runs in the thread that restores, and the position survives two resumes."""
    first = Counter(30)
    second = Counter()
    restored(saved({"data": first}), {"data": second})
    assert second.threads == [threading.get_ident()]
    second.value += 10
    third = Counter()
    restored(saved({"data": second}), {"data": third})
    assert third.value == 40


def test_generators_go_on():
    """Generators in the state draw on where the saved ones were."""

    def make(seed):
        generator = torch.Generator().manual_seed(seed)
        return [generator, np.random.default_rng(seed), np.random.RandomState(seed), random.Random(seed)]

    def draw(state):
        first = torch.rand(1, generator=state[0]).item()
        return [first, state[1].random(), state[2].randn(), state[2].rand(), state[3].gauss(0, 1), state[3].random()]

    state = make(1)
    draw(state)
    hand = saved({"g": state})
    expected, fresh = draw(state), make(2)
    assert restored(hand, {"g": fresh}) == {}
    assert draw(fresh) == expected


@pytest.mark.parametrize("used", [False, True])
def test_grad_scaler(used):
    """Case 48: scale and growth come back, whether the scalers were used before or not."""

    def scaler(use):
        made = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3 * use):
            made.scale(weight.sum()).backward()
            made.step(optimizer)
            made.update()
        return made

    source = scaler(used)
    for before in (False, True):
        target = scaler(before)
        restored(saved({"s": source}), {"s": target})
        assert target.get_scale() == source.get_scale()
        assert target.state_dict() == source.state_dict()
