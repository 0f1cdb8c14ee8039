"""Overlapped snapshots of host memory: what is copied late holds the values of ``save()``, whatever comes next.

In every test the thread that copies is held back until the loop has done what it does next: so only the gate, or a copy
before ``save()`` returns, can save the right values. Each case is run with the gate taken out as well, and must then
go wrong.
"""

import copy
import threading

import pytest
import torch
from torch import nn

import asyncckpt
from asyncckpt import AsyncCheckpointer, TornSnapshotError
from asyncckpt.capture.gate import Gate
from asyncckpt.capture.jobs import Jobs


@pytest.fixture
def held(monkeypatch):
    """The copying thread waits for this event."""
    go, threads = threading.Event(), []

    def start(jobs, _count, _name):
        thread = threading.Thread(target=lambda: go.wait(60) and jobs._in_background())
        threads.append(thread)
        thread.start()

    monkeypatch.setattr(Jobs, "start", start)
    yield go
    go.set()
    for thread in threads:
        thread.join(60)


def make_net():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def backward(net):
    net(torch.randn(16, 4)).square().mean().backward()


def train(net, *optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()
    backward(net)
    for optimizer in optimizers:
        optimizer.step()


class Loop:
    """A loop between two steps; ``act`` is what comes after ``save()``."""

    def __init__(self, make_optimizers=None, act=None, **more):
        self.net = make_net()
        make_optimizers = make_optimizers or (lambda net: [torch.optim.AdamW(net.parameters(), lr=0.1)])
        self.optimizers = make_optimizers(self.net)
        train(self.net, *self.optimizers)
        self.state = {"net": self.net, "optimizers": self.optimizers, **more}
        self.act = act or (lambda loop, ck: train(loop.net, *loop.optimizers))


def split(net, *kinds):
    halves = [list(net[0].parameters()) + list(net[1].parameters()), list(net[3].parameters())]
    return [kind(half, lr=0.1) for kind, half in zip(kinds, halves, strict=True)]


def adam(**keywords):
    return Loop(lambda net: [torch.optim.Adam(net.parameters(), lr=0.1, **keywords)])


def closure(loop, _ck):
    def again():
        loop.optimizers[0].zero_grad()
        loss = loop.net(torch.ones(4, 4)).square().mean()
        loss.backward()
        return loss

    loop.optimizers[0].step(again)


def lbfgs():
    loop = Loop(lambda net: [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)], closure)
    loop.optimizers[:] = [torch.optim.LBFGS(loop.net.parameters(), max_iter=3)]
    closure(loop, None)
    return loop


def accumulation():
    def act(loop, _ck):
        backward(loop.net)
        backward(loop.net)
        loop.optimizers[0].step()

    loop = Loop(act=act)
    backward(loop.net)
    return loop


def compiled():
    def act(loop, _ck):
        step = torch.compile(loop.optimizers[0].step, backend="eager")
        backward(loop.net)
        step()
        step()

    return Loop(lambda net: [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)], act)


def compiled_before():
    """Compiled before there was a hook."""
    loop = Loop(lambda net: [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)])
    step = torch.compile(loop.optimizers[0].step, backend="eager")
    backward(loop.net)
    step()
    loop.act = lambda *_: step()
    return loop


def in_backward():
    """One optimizer for each parameter, stepped by hooks in the middle of backward."""

    def act(loop, _ck):
        backward(loop.net)

    loop = Loop(lambda net: [torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in net.parameters()], act)
    for optimizer in loop.optimizers:
        (parameter,) = optimizer.param_groups[0]["params"]

        def hook(_parameter, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(hook)
    return loop


def loaded_optimizer():
    def act(loop, _ck):
        other = copy.deepcopy(loop.optimizers[0].state_dict())
        for state in other["state"].values():
            state["exp_avg"].fill_(5)
        loop.optimizers[0].load_state_dict(other)
        loop.optimizers[0].step()

    return Loop(act=act)


def loaded_module():
    return Loop(act=lambda loop, _ck: loop.net.load_state_dict(make_net().state_dict()))


def loaded_part():
    return Loop(act=lambda loop, _ck: loop.net[3].load_state_dict(make_net()[3].state_dict()))


def by_hand():
    """The user writes to parameters as only he knows how, after ``fence()``."""

    def act(loop, ck):
        ck.fence()
        with torch.no_grad():
            for parameter in loop.net.parameters():
                parameter.mul_(3)

    return Loop(act=act)


def one_step(kind, **keywords):
    return lambda: Loop(lambda net: [kind(net.parameters(), lr=0.1, **keywords)])


CASES = {
    "adamw": Loop,
    "sgd": one_step(torch.optim.SGD, momentum=0.9),
    "adagrad": one_step(torch.optim.Adagrad),
    "foreach": lambda: adam(foreach=True),
    "one by one": lambda: adam(foreach=False),
    "fused": lambda: adam(fused=True),
    "amsgrad": lambda: adam(amsgrad=True),
    "two optimizers": lambda: Loop(lambda net: split(net, torch.optim.AdamW, torch.optim.SGD)),
    "closure": lambda: Loop(act=closure),
    "lbfgs": lbfgs,
    "accumulation": accumulation,
    "compiled": compiled,
    "compiled before": compiled_before,
    "in backward": in_backward,
    "loaded optimizer": loaded_optimizer,
    "loaded module": loaded_module,
    "loaded part": loaded_part,
    "by hand": by_hand,
}


def values(loop):
    return copy.deepcopy(
        {"net": loop.net.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in loop.optimizers]}
    )


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def saved_as_it_was(loop, held, root, **keywords):
    """Save, act, and only then let the copying thread go. Whether what is on disk are the values of the call."""
    with AsyncCheckpointer(root, snapshot="overlapped", compression="none", **keywords) as ck:
        then = values(loop)
        handle = ck.save(1, loop.state)
        try:
            loop.act(loop, ck)
            assert not equal(values(loop), then)
        finally:
            held.set()
        handle.result(60)
    saved = asyncckpt.load(root)
    return equal({"net": saved["net"], "optimizers": saved["optimizers"]}, then)


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own


@pytest.mark.parametrize("case", CASES)
def test_what_comes_after_save_does_not_reach_the_snapshot(held, tmp_path, case):
    """Every way to change parameters and optimizer state that the gate knows of comes after their copy."""
    assert saved_as_it_was(CASES[case](), held, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_teeth_without_the_gate_every_case_goes_wrong(held, tmp_path, monkeypatch, case):
    """With the gate taken out the same loops save later values, or are caught by the version counters."""
    monkeypatch.setattr(Gate, "fence", lambda self: None)
    try:
        right = saved_as_it_was(CASES[case](), held, tmp_path)
    except TornSnapshotError:
        right = False
    assert not right


@pytest.mark.parametrize("case", ["fused", "sgd", "two optimizers"])
def test_without_the_gate_version_counters_tell(held, tmp_path, monkeypatch, case):
    """A write that the gate did not see is an error of that save; of a fused step the step counters tell."""
    monkeypatch.setattr(Gate, "fence", lambda self: None)
    with pytest.raises(TornSnapshotError, match="fence"):
        saved_as_it_was(CASES[case](), held, tmp_path)


def test_a_write_that_nobody_was_told_of_is_a_torn_snapshot(held, tmp_path):
    """The error names tensor and step, comes out of the handle, and costs only that save."""
    loop = Loop()
    with AsyncCheckpointer(tmp_path, snapshot="overlapped") as ck:
        handle = ck.save(5, loop.state)
        with torch.no_grad():
            loop.net[0].weight.add_(1)
        held.set()
        with pytest.raises(TornSnapshotError, match=r"net\.0\.weight was written.*fence\(\)") as caught:
            handle.result(60)
        assert caught.value.step == 5
        assert ck.latest() is None
        ck.save(6, loop.state).result(60)
        assert ck.latest() == 6


def test_what_forward_changes_is_captured_before_save_returns(held, tmp_path):
    """BatchNorm's statistics, embeddings with max_norm, EMA copies, frozen parameters, arrays and counters."""
    net, ema = nn.ModuleDict({"bn": nn.BatchNorm1d(4), "em": nn.Embedding(9, 4, max_norm=0.1)}), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    state = {"net": net, "ema": ema, "optimizer": optimizer, "count": torch.zeros(3), "list": [1]}
    then = copy.deepcopy({key: state[key].state_dict() for key in ("net", "ema")})
    with AsyncCheckpointer(tmp_path, snapshot="overlapped") as ck:
        handle = ck.save(1, state)
        net["bn"](net["em"](torch.arange(9)))
        with torch.no_grad():
            for parameter in ema.parameters():
                parameter.lerp_(torch.ones_like(parameter), 0.5)
        state["count"] += 1
        state["list"].append(2)
        assert not equal({key: state[key].state_dict() for key in ("net", "ema")}, then)
        held.set()
        handle.result(60)
    saved = asyncckpt.load(tmp_path)
    assert equal({key: saved[key] for key in ("net", "ema")}, then)
    assert (saved["count"] == 0).all()
    assert saved["list"] == [1]


def test_parameters_are_copied_late_indeed(held, tmp_path):
    """The handle says that the save is being captured until the gate, or the thread, has copied."""
    loop = Loop()
    with AsyncCheckpointer(tmp_path, snapshot="overlapped") as ck:
        handle = ck.save(1, loop.state)
        assert not handle.wait_captured(0)
        train(loop.net, *loop.optimizers)
        assert handle.wait_captured(60)
        assert ck.statistics().stalled_fence > 0
        assert "fence" in handle.result(60).timings


def test_without_an_optimizer_all_is_copied_at_once_and_said(tmp_path, caplog):
    """A state in which no optimizer is found is saved as in blocking mode, with one warning."""
    net = make_net()
    with AsyncCheckpointer(tmp_path, snapshot="overlapped") as ck:
        for step in (1, 2):
            assert ck.save(step, {"net": net}).wait_captured(0)
    assert sum("optimizer" in record.message for record in caplog.records if record.levelname == "WARNING") == 1


def test_optimizers_can_be_given(held, tmp_path):
    """An optimizer that is hidden in the user's own object is covered when it is given."""
    loop = Loop()
    loop.state = {"net": loop.net, "optimizers": [optimizer.state_dict() for optimizer in loop.optimizers]}
    assert saved_as_it_was(loop, held, tmp_path, optimizers=loop.optimizers)


def test_several_pending_saves_are_fenced_together(held, tmp_path):
    """Two saves between two steps, and one after: each holds the values of its own call."""
    loop = Loop()
    with AsyncCheckpointer(tmp_path, snapshot="overlapped", max_in_flight=3) as ck:
        first = values(loop)
        ck.save(1, loop.state)
        ck.save(2, loop.state)
        train(loop.net, *loop.optimizers)
        third = values(loop)
        ck.save(3, loop.state)
        train(loop.net, *loop.optimizers)
        held.set()
    for step, then in ((1, first), (2, first), (3, third)):
        saved = asyncckpt.load(tmp_path, step=step)
        assert equal({"net": saved["net"], "optimizers": saved["optimizers"]}, then)


def test_restore_and_close_come_after_pending_copies(held, tmp_path):
    """``restore`` writes to what is still to be copied: it fences; after ``close`` no hook is left."""
    loop = Loop()
    with AsyncCheckpointer(tmp_path, snapshot="overlapped") as ck:
        ck.save(1, loop.state)
        held.set()
        ck.wait()
        held.clear()
        train(loop.net, *loop.optimizers)
        then = values(loop)
        ck.save(2, loop.state)
        ck.restore(loop.state, step=1)
    assert not loop.optimizers[0]._optimizer_step_pre_hooks
    assert not any(part._load_state_dict_pre_hooks for part in loop.net.modules())
    saved = asyncckpt.load(tmp_path, step=2)
    assert equal({"net": saved["net"], "optimizers": saved["optimizers"]}, then)


def test_watched_objects_can_be_copied_and_pickled(tmp_path):
    """Hooks on modules do not travel: a deepcopy or pickle of a watched module works, and fences nobody."""
    loop = Loop()
    with AsyncCheckpointer(tmp_path, snapshot="overlapped") as ck:
        ck.save(1, loop.state)
        net, optimizer = copy.deepcopy(loop.net), copy.deepcopy(loop.optimizers[0])
        torch.save(loop.net, tmp_path / "net.pt")
    net.load_state_dict(make_net().state_dict())
    optimizer.step()
    torch.load(tmp_path / "net.pt", weights_only=False).load_state_dict(make_net().state_dict())


def test_a_state_larger_than_host_memory_is_streamed_as_in_blocking_mode(tmp_path):
    """There is no room to copy late: all has been copied when ``save()`` returns."""
    net = nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with AsyncCheckpointer(tmp_path, snapshot="overlapped", host_memory="1MiB", compression="none") as ck:
        then = net.weight.detach().clone()
        handle = ck.save(1, {"net": net, "optimizer": optimizer})
        with torch.no_grad():
            net.weight.add_(1)
        handle.result(60)
    assert torch.equal(asyncckpt.load(tmp_path)["net"]["weight"], then)


@pytest.mark.parametrize("swap", ["data", "tied"])
def test_memory_that_has_moved_is_found_again(held, tmp_path, swap):
    """A plan of before does not fit a state whose tensors lie elsewhere, or share memory otherwise."""
    loop = Loop(lambda net: [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)])
    with AsyncCheckpointer(tmp_path, snapshot="overlapped") as ck:
        held.set()
        ck.save(1, loop.state).result(60)
        if swap == "data":
            loop.net[0].weight.data = torch.full((8, 4), 9.0)
        else:
            loop.net[1].bias.data = loop.net[1].weight.data
        ck.save(2, loop.state).result(60)
        train(loop.net, *loop.optimizers)
        ck.save(3, loop.state).result(60)
        then = values(loop)
    saved = asyncckpt.load(tmp_path, step=3)
    assert equal({"net": saved["net"], "optimizers": saved["optimizers"]}, then)
    two = asyncckpt.load(tmp_path, step=2)["net"]
    if swap == "data":
        assert (two["0.weight"] == 9).all()
    else:
        assert two["1.weight"].data_ptr() == two["1.bias"].data_ptr()
