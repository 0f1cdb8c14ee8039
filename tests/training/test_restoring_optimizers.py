"""Optimizer states: on the right parameters, in the right dtypes, independent of each other."""

import pytest
import torch
from objects_by_hand import restored, saved
from torch import nn

from asyncckpt.errors import StateMismatchError

VARIANTS = {
    "plain": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def build(seed=0, dtype=torch.float32, **keywords):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, **keywords)


def train(model, optimizer, value):
    dtype = next(model.parameters()).dtype
    optimizer.zero_grad()
    model(torch.full((2, 8), value, dtype=dtype)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("taken", [False, True], ids=["fresh", "stepped"])
@pytest.mark.parametrize("kind", VARIANTS)
def test_the_next_step_is_that_of_the_undisturbed_run(kind, taken):
    """Case 52: after a restore, into fresh or used objects, the next step gives the same bits."""
    model, optimizer = build(**VARIANTS[kind])
    train(model, optimizer, 1.0)
    hand = saved({"m": model, "o": optimizer})
    again = build(1, **VARIANTS[kind])
    if taken:
        train(*again, 3.0)
    assert restored(hand, {"m": again[0], "o": again[1]}) == {}
    train(model, optimizer, 2.0)
    train(*again, 2.0)
    assert all(bits(a) == bits(b) for a, b in zip(model.parameters(), again[0].parameters(), strict=True))


@pytest.mark.parametrize("kind", ["plain", "foreach"])
@pytest.mark.parametrize("step_dtype", [torch.float32, torch.float64])
def test_fp32_moments_of_bf16_weights_stay_fp32(kind, step_dtype):
    """Case 52: torch's cast of moments to the parameter's dtype is undone; ``step`` keeps its dtype and the CPU."""
    model, optimizer = build(dtype=torch.bfloat16, **VARIANTS[kind])
    train(model, optimizer, 1.0)
    for entry in optimizer.state.values():
        entry["exp_avg"] = entry["exp_avg"].float() * 1.001
        entry["exp_avg_sq"] = entry["exp_avg_sq"].float() * 1.001
        entry["step"] = entry["step"].to(step_dtype)
    again = build(1, torch.bfloat16, **VARIANTS[kind])
    restored(saved({"m": model, "o": optimizer}), {"m": again[0], "o": again[1]})
    for one, other in zip(optimizer.state.values(), again[1].state.values(), strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert (other[key].dtype, other[key].device.type) == (one[key].dtype, "cpu")
            assert bits(other[key]) == bits(one[key])


def test_bf16_weights_with_an_fp32_momentum_go_on_exactly():
    """Case 52: where torch's kernel takes mixed dtypes, the next step equals the undisturbed run's."""

    def make(seed):
        torch.manual_seed(seed)
        model = nn.Linear(8, 8).bfloat16()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    model, optimizer = make(0)
    train(model, optimizer, 1.0)
    for entry in optimizer.state.values():
        entry["momentum_buffer"] = entry["momentum_buffer"].float() * 1.001
    hand = saved({"m": model, "o": optimizer})
    again = make(1)
    restored(hand, {"m": again[0], "o": again[1]})
    train(model, optimizer, 2.0)
    train(*again, 2.0)
    assert bits(again[0].weight) == bits(model.weight)
    assert [bits(e["momentum_buffer"]) for e in again[1].state.values()] == [
        bits(e["momentum_buffer"]) for e in optimizer.state.values()
    ]


def test_moments_follow_a_model_whose_dtype_was_changed():
    """If the parameters themselves have another dtype than when saved, torch's cast stands."""
    model, optimizer = build(dtype=torch.bfloat16)
    train(model, optimizer, 1.0)
    again = build(1, torch.float32)
    restored(saved({"m": model, "o": optimizer}), {"m": again[0], "o": again[1]})
    assert {entry["exp_avg"].dtype for entry in again[1].state.values()} == {torch.float32}
    train(*again, 1.0)


def test_capturable_steps_are_floats_beside_the_parameter():
    """Case 52: with ``capturable`` torch moves ``step`` to the parameter's device, and we leave that alone."""
    model, optimizer = build(capturable=True, foreach=False)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0, dtype=torch.float64),
            "exp_avg": torch.ones_like(parameter),
            "exp_avg_sq": torch.ones_like(parameter),
        }
    again = build(1, capturable=True, foreach=False)
    restored(saved({"m": model, "o": optimizer}), {"m": again[0], "o": again[1]})
    assert {entry["step"].dtype for entry in again[1].state.values()} == {torch.float32}


def test_states_follow_names_when_the_order_changed():
    """Parameters handed to the optimizer in another order get their own states, by name."""
    model, optimizer = build()
    train(model, optimizer, 1.0)
    expected = {name: optimizer.state[p]["exp_avg"] for name, p in model.named_parameters()}
    other, _ = build(1)
    turned = torch.optim.AdamW(reversed(list(other.parameters())), lr=0.5)
    restored(saved({"m": model, "o": optimizer}), {"m": other, "o": turned})
    assert all(torch.equal(turned.state[p]["exp_avg"], expected[name]) for name, p in other.named_parameters())
    assert turned.param_groups[0]["lr"] == 0.1
    assert len(turned.state) == 4


def test_a_state_never_lands_on_the_wrong_parameter():
    """Unknown names, other shapes, other groups: an error that lists them, before anything is changed."""
    model, optimizer = build()
    train(model, optimizer, 1.0)
    hand = saved({"m": model, "o": optimizer})
    smaller = torch.optim.AdamW(list(model.parameters())[:3])
    with pytest.raises(StateMismatchError) as caught:
        restored(hand, {"m": model, "o": smaller})
    assert caught.value.unexpected == ("o.param_groups[0].m.1.bias",)
    stranger = nn.Linear(8, 8)
    with pytest.raises(StateMismatchError) as caught:
        restored(hand, {"m": model, "s": stranger, "o": torch.optim.AdamW(stranger.parameters())}, only=["m", "o"])
    assert set(caught.value.missing) == {"o.param_groups[0].s.weight", "o.param_groups[0].s.bias"}
    split = torch.optim.AdamW([{"params": [p]} for p in model.parameters()])
    with pytest.raises(StateMismatchError) as caught:
        restored(hand, {"m": model, "o": split})
    assert caught.value.mismatched == {"o": "1 parameter groups saved, 4 here"}


def test_without_names_shapes_are_compared():
    """Parameters that are in no module of the state are matched by order, and their shapes must agree."""
    one, other = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3, 2))
    optimizer = torch.optim.SGD([one, other], lr=1, momentum=0.9)
    for parameter in (one, other):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    hand = saved({"o": optimizer})
    turned = torch.optim.SGD([other, one], lr=1, momentum=0.9)
    with pytest.raises(StateMismatchError) as caught:
        restored(hand, {"o": turned})
    assert set(caught.value.mismatched) == {"o.param_groups[0].params[0]", "o.param_groups[0].params[1]"}
    fresh = torch.optim.SGD([one, other], lr=1, momentum=0.9)
    restored(hand, {"o": fresh})
    assert fresh.state[one]["momentum_buffer"].eq(1).all()


def test_not_strict_loads_the_states_that_fit(caplog):
    """``strict=False`` gives a parameter that was not saved no state, and drops states of those that are gone."""
    model, optimizer = build()
    train(model, optimizer, 1.0)
    extra = nn.Parameter(torch.ones(2))
    target = torch.optim.AdamW([extra, model[0].weight, model[1].weight])
    restored(saved({"m": model, "o": optimizer}), {"m": model, "o": target}, strict=False)
    assert target.state.keys() <= {extra, model[0].weight, model[1].weight}
    model[0].bias.grad = None
    target.step()
    assert "o.param_groups[0]" in caplog.text


def test_two_optimizers_share_nothing():
    """Case 75: two live optimizers restored from one checkpoint have states of their own."""
    model, optimizer = build()
    train(model, optimizer, 1.0)
    hand = saved({"m": model, "o": optimizer})
    one, other = build(1), build(2)
    restored(hand, {"m": one[0], "o": one[1]})
    restored(hand, {"m": other[0], "o": other[1]})
    before = [entry["exp_avg"].clone() for entry in other[1].state.values()]
    train(*one, 5.0)
    assert all(torch.equal(a, e["exp_avg"]) for a, e in zip(before, other[1].state.values(), strict=True))


def test_optimizers_without_moments_and_before_any_step():
    """Case 50: SGD's empty state and Adam's before any step stay empty."""
    model = nn.Linear(2, 2)
    for make in (torch.optim.SGD, torch.optim.Adam):
        optimizer = make(model.parameters(), lr=0.25)
        target = make(model.parameters(), lr=0.5)
        restored(saved({"m": model, "o": optimizer}), {"m": model, "o": target})
        assert target.state_dict() == optimizer.state_dict()


def test_lbfgs_schedulers_and_lr_tensors():
    """States with lists of tensors, and schedules, come back as they were."""
    model = nn.Linear(3, 1)

    def make():
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def closure():
        model.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    optimizer, scheduler = make()
    optimizer.step(closure)
    scheduler.step()
    target = make()
    restored(saved({"m": model, "o": optimizer, "s": scheduler}), {"m": model, "o": target[0], "s": target[1]})
    one, other = optimizer.state_dict()["state"][0], target[0].state_dict()["state"][0]
    assert one.keys() == other.keys()
    assert all(torch.equal(a, b) for a, b in zip(one["old_dirs"], other["old_dirs"], strict=True))
    assert target[1].state_dict() == scheduler.state_dict()


def test_named_parameters_keep_their_names():
    """``param_names`` of an optimizer made from ``named_parameters()`` are reordered along with the parameters."""
    model, _ = build()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    train(model, optimizer, 1.0)
    other, _ = build(1)
    turned = torch.optim.AdamW(list(other.named_parameters())[::-1], lr=0.5)
    restored(saved({"m": model, "o": optimizer}), {"m": other, "o": turned})
    assert turned.param_groups[0]["param_names"] == ["1.bias", "1.weight", "0.bias", "0.weight"]


def test_a_wrapping_optimizer_is_just_an_object():
    """An optimizer with a ``load_state_dict`` of its own is given what its ``state_dict`` gave."""

    class Wrapping(torch.optim.SGD):
        def state_dict(self):
            return {"mine": 1}

        def load_state_dict(self, state):
            self.got = state

    model = nn.Linear(2, 2)
    target = Wrapping(model.parameters())
    restored(saved({"m": model, "o": Wrapping(model.parameters())}), {"m": model, "o": target})
    assert target.got == {"mine": 1}
