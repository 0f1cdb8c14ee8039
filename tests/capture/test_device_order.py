"""The order of copies from a device, on the pretend accelerator: each ordering is proved, and missed when taken out."""

import gc
import logging

import pytest
import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer
from asyncckpt.capture import snapshot
from asyncckpt.capture.plan import plan_snapshot
from asyncckpt.capture.pool import Pool
from asyncckpt.capture.snapshot import Snapshot
from asyncckpt.capture.streams import CopyStreams

SLOW = 5000.0  # nanoseconds per byte: a copy of 4,000 bytes takes 20 ms
COUNT = 1000


def produce(x):
    """Make ``x`` ones, late: behind several slow copies on the current stream."""
    ones, other = torch.ones(COUNT, device=x.device), torch.zeros(COUNT, device=x.device)
    for target in (other, other, other, x):
        target.copy_(ones, non_blocking=True)
    return ones, other


def overwrite(state):
    state["x"].fill_(2)


def free_and_reuse(state):
    """Free the source; another stream, which nothing holds up, takes its memory and writes to it."""
    device = state["x"].device
    del state["x"]
    gc.collect()
    with torch.Stream(device=device):
        state["others"] = [torch.full((COUNT,), 3.0, device=device) for _ in range(64)]


def step_by_hand(model, optimizer):
    """One step without autograd, whose engine counts devices once per process and may have done so before ours came."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.fixture
def trip(fake, tmp_path):
    """Produce, save, do something else at once; give what was saved. ``trip.host_waits``: those during ``save``."""

    def go(after=overwrite, *, stream=None, device="fake:0", wrap=lambda x: x):
        state = {"x": torch.zeros(COUNT, device=device)}
        with AsyncCheckpointer(tmp_path, rng=False) as ck:
            ck.warmup(state)
            torch.accelerator.synchronize(torch.device(device).index)
            fake.set_copy_time(SLOW)
            with stream or torch.accelerator.current_stream(torch.device(device)):
                kept = produce(state["x"])
                fake.reset_stats()
                handle = ck.save(1, {"x": wrap(state["x"])})
                go.host_waits = fake.stats().get("host waits", 0)
                after(state)
            handle.result(60)
            fake.set_copy_time(0.0)
            torch.accelerator.synchronize(torch.device(device).index)
            del kept
            go.ck = ck
        return asyncckpt.load(tmp_path)["x"].flatten()

    return go


def right(values):
    return bool((values == 1).all())


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("after", [overwrite, free_and_reuse])
def test_late_copies_hold_the_values_of_the_call(trip, after, side):
    """Cases 1 and 6: whatever comes after ``save()``, on whichever stream was current, and the host never waits."""
    assert right(trip(after, stream=torch.Stream(device="fake:0") if side else None))
    assert trip.host_waits == 0


def test_tensors_with_holes_are_made_contiguous_in_order(trip):
    """A device tensor that is not contiguous is copied together on the copy stream, behind its producer."""
    assert right(trip(wrap=lambda x: x.view(50, 20)[:, ::2]))
    assert trip.host_waits == 0


@pytest.fixture
def broken(fake, tmp_path):
    """Save a tensor of zeros, ones and then twos, one of whose two streams is stalled until the other is through."""

    def go(stalled):
        x = torch.zeros(COUNT, device="fake")
        with AsyncCheckpointer(tmp_path, rng=False) as ck:
            ck.warmup({"x": x})
            torch.accelerator.synchronize()
            copies, caller = ck._pool.streams.of(x.device), torch.accelerator.current_stream()
            with copies if stalled == "copies" else caller:
                fake.stall(0)
            x.fill_(1)
            handle = ck.save(1, {"x": x})
            x.fill_(2)
            if stalled == "reader":
                handle.result(60)
            else:
                (caller if stalled == "copies" else copies).synchronize()
            fake.resume()
            handle.result(60)
            torch.accelerator.synchronize()
        return asyncckpt.load(tmp_path)["x"]

    return go


@pytest.mark.parametrize(
    ("where", "taken_out", "stalled", "saved"),
    [
        (CopyStreams, "follow", "caller", 0),
        (CopyStreams, "hold_up", "copies", 2),
        (snapshot, "wait_for", "reader", 0),
    ],
)
def test_teeth_without_one_of_the_orderings_wrong_values_are_saved(
    broken, monkeypatch, where, taken_out, stalled, saved
):
    """Older values if copies do not follow the caller, later ones if nothing holds it up, none if none waits."""
    monkeypatch.setattr(where, taken_out, lambda *args: None)
    assert (broken(stalled) == saved).all()


def test_sources_are_referenced_until_their_copies_are_done(fake):
    """Case 6: the snapshot alone keeps a source's storage alive until its copy's event has passed, and not longer."""
    pool = Pool(host_memory=None, max_in_flight=1)
    x = torch.ones(COUNT, device="fake")
    plan = plan_snapshot({"x": x})
    torch.accelerator.synchronize()
    taken = Snapshot(plan, pool.admit(plan.raw_bytes, pinned=True))
    fake.set_copy_time(SLOW)
    taken.capture()
    pointer = x.data_ptr()
    del plan, x
    gc.collect()
    held = [t.data_ptr() for slot in taken._slots for t in slot.sources if t.device.type == "fake"]
    assert pointer in held
    assert taken.wait_captured(60)
    assert not any(slot.sources for slot in taken._slots)
    taken.release_all()
    pool.close()


def test_two_devices_with_the_second_current(fake, tmp_path):
    """Case 74: tensors on two devices, device 1 current; each is copied by its own stream and device."""
    state = {"a": torch.zeros(COUNT, device="fake:0"), "b": torch.zeros(COUNT, device="fake:1")}
    torch.accelerator.set_device_index(1)
    with AsyncCheckpointer(tmp_path, rng=False) as ck:
        fake.set_copy_time(SLOW)
        kept = [produce(x) for x in state.values()]
        handle = ck.save(1, state)
        for x in state.values():
            x.fill_(2)
        handle.result(60)
        assert torch.accelerator.current_device_index() == 1
    for device in range(2):  # the last fills run before their memory is freed
        torch.accelerator.synchronize(device)
    loaded = asyncckpt.load(tmp_path)
    assert right(loaded["a"])
    assert right(loaded["b"])
    assert len(kept) == 2


def test_a_save_of_device_1_never_touches_device_0(fake, tmp_path):
    """Case 74: no thread of ours uses device 0 when all tensors are on device 1."""
    x = torch.zeros(COUNT, device="fake:1")
    torch.accelerator.set_device_index(1)
    with AsyncCheckpointer(tmp_path, rng=False) as ck:
        torch.accelerator.synchronize(1)
        fake.reset_stats()
        ck.save(1, {"x": x}).result(60)
        assert "used device 0" not in fake.stats()
    assert not asyncckpt.load(tmp_path)["x"].any()


def test_adam_on_a_device_with_its_step_on_the_host(fake, tmp_path):
    """Case 2: parameters and moments on the device, step counts on the host: all of one moment."""
    model = torch.nn.Linear(8, 8).to("fake")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def train():
        step_by_hand(model, optimizer)

    train()
    expected = [state["exp_avg"].cpu().clone() for state in optimizer.state.values()]
    with AsyncCheckpointer(tmp_path, rng=False) as ck:
        fake.set_copy_time(SLOW)
        handle = ck.save(1, {"o": optimizer})
        train()
        handle.result(60)
    for i, entry in asyncckpt.load(tmp_path)["o"]["state"].items():
        assert entry["step"] == 1
        assert torch.equal(entry["exp_avg"], expected[i])


def test_pinning_that_fails_costs_one_warning(fake, tmp_path, caplog, monkeypatch):
    """Case 14: without pinned memory the snapshot is pageable, right, and said so once."""
    monkeypatch.setattr("asyncckpt.capture.memory._Warned.yet", False)
    fake.set_pinning_fails(True)
    x = torch.ones(COUNT, device="fake")
    with caplog.at_level(logging.WARNING, "asyncckpt"), AsyncCheckpointer(tmp_path) as ck:
        for step in (1, 2):
            ck.save(step, {"x": x}).result(60)
    assert right(asyncckpt.load(tmp_path)["x"])
    assert sum("pinned" in record.message for record in caplog.records) == 1
    assert (x + 1).sum().item() == 2 * COUNT


def test_pinned_memory_is_taken_once_and_is_little_more_than_the_state(fake, tmp_path):
    """Case 13: the second save pins nothing, and the pool is at most 1.3 times the state (and its smallest size)."""
    state = {"big": torch.zeros(9 << 20, device="fake"), "small": [torch.zeros(9000, device="fake") for _ in range(40)]}
    nbytes = (9 << 22) + 40 * 36_000
    with AsyncCheckpointer(tmp_path, max_in_flight=1, rng=False) as ck:
        ck.warmup(state)
        fake.reset_stats()
        for step in (1, 2):
            ck.save(step, state).result(60)
        assert "pinned allocations" not in fake.stats()
        assert ck.statistics().pool_bytes <= 1.3 * nbytes


def test_a_state_larger_than_the_cap_streams_from_a_device(fake, tmp_path):
    """A device state of 12 MiB goes through 4 MiB of pinned memory, in order, and comes back whole."""
    state = {f"x{i}": torch.full((1 << 20,), float(i), device="fake") for i in range(3)}
    with AsyncCheckpointer(tmp_path, host_memory="4MiB", rng=False) as ck:
        handle = ck.save(1, state)
        for x in state.values():
            x.fill_(-1)
        handle.result(60)
        assert ck.statistics().pool_peak_bytes <= 4 << 20
    loaded = asyncckpt.load(tmp_path)
    assert all(bool((loaded[f"x{i}"] == i).all()) for i in range(3))


def test_restoring_onto_a_device(fake, tmp_path):
    """Modules and optimizers on a device are restored there; loading without a template stays on the CPU."""
    model = torch.nn.Linear(8, 8).to("fake")
    optimizer = torch.optim.AdamW(model.parameters())
    step_by_hand(model, optimizer)
    fresh = torch.nn.Linear(8, 8).to("fake")
    again = torch.optim.AdamW(fresh.parameters())
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, {"m": model, "o": optimizer}).result(60)
        assert dict(ck.restore({"m": fresh, "o": again})) == {}
    assert torch.equal(fresh.weight.cpu(), model.weight.cpu())
    for one, other in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert other["exp_avg"].device.type == "fake"
        assert torch.equal(one["exp_avg"].cpu(), other["exp_avg"].cpu())
        assert other["step"].device.type == one["step"].device.type
    assert asyncckpt.load(tmp_path)["m"]["weight"].device.type == "cpu"
    assert asyncckpt.load(tmp_path, map_location="fake:1")["m"]["weight"].device == torch.device("fake:1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_late_copies_on_a_real_device(tmp_path, side):
    """Case 6 on a real GPU: 20 times, with a busy producer and the source overwritten at once."""
    x = torch.zeros(16 << 20, device="cuda")
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    with AsyncCheckpointer(tmp_path, rng=False) as ck, torch.cuda.stream(stream):
        for step in range(20):
            torch.cuda._sleep(20_000_000)
            x.fill_(step)
            handle = ck.save(step, {"x": x})
            x.fill_(-1)
            handle.result(60)
            assert bool((asyncckpt.load(tmp_path, step=step)["x"] == step).all())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_gpu_states_of_generators_resume(tmp_path):
    """Every GPU's random state is saved and restored."""
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, {}).result(60)
        expected = torch.rand(4, device="cuda").cpu()
        ck.restore({})
    assert torch.equal(torch.rand(4, device="cuda").cpu(), expected)
