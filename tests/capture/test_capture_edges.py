"""Captures that are cut short where it hurts most, and settings of torch that must not matter."""

import pytest
import torch

from asyncckpt.capture import copying
from asyncckpt.capture.plan import plan_snapshot
from asyncckpt.capture.pool import Pool
from asyncckpt.capture.snapshot import CaptureEndedError, Snapshot
from asyncckpt.capture.streams import CopyStreams

MB = 1 << 20


def make(state, **options):
    pool = Pool(**({"host_memory": None, "max_in_flight": 2} | options))
    plan = plan_snapshot(state)
    return pool, Snapshot(plan, pool.admit(plan.raw_bytes, pinned=bool(plan.devices)))


def everything(snapshot):
    return b"".join(bytes(snapshot.read(i)) for i in range(len(snapshot.frames)))


def used(pool):
    usage = pool.usage()
    return usage.in_flight, usage.bytes_in_use


def test_a_snapshot_released_before_its_capture_captures_nothing():
    """A streamed save may fail before the first copy: the capture then ends as one that was released, holding nothing."""
    pool, snapshot = make({"x": torch.ones(4 * MB)}, host_memory=4 * MB)
    snapshot.release_all()
    with pytest.raises(CaptureEndedError):
        snapshot.capture()
    assert used(pool) == (0, 0)
    pool.close()


@pytest.mark.parametrize("where", ["between two copies", "before the event"])
def test_an_interrupted_buffer_is_kept_while_the_device_writes(fake, monkeypatch, where):
    """Case 23: a buffer goes back only when no device writes to it any more, wherever the capture was interrupted."""
    state = {key: torch.full((1000,), 7.0, device="fake") for key in "ab"}
    pool, snapshot = make(state)
    torch.accelerator.synchronize()
    fake.set_copy_time(20_000.0)
    target, name = (copying.Copier, "_enqueue") if where == "between two copies" else (CopyStreams, "mark")
    real, calls = getattr(target, name), []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == (2 if target is copying.Copier else 1):
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(target, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        snapshot.capture()
    buffer = snapshot._slots[0].buffer
    snapshot.release_all()
    assert bool((buffer.tensor[:4000].view(torch.float32) == 7).all())
    assert used(pool) == (0, 0)
    pool.close()


def test_a_default_device_does_not_matter(fake):
    """Case 14: buffers are host memory, pinned for device tensors, whatever ``set_default_device`` says."""
    x = torch.ones(1000, device="fake")
    torch.set_default_device("fake")
    try:
        pool, snapshot = make({"x": x, "y": torch.ones(3, device="cpu")})
        snapshot.capture()
    finally:
        torch.set_default_device(None)
    assert snapshot._slots[0].buffer.pinned
    assert everything(snapshot).count(torch.ones(1).numpy().tobytes()) == 1003
    snapshot.release_all()
    pool.close()


def test_inference_tensors_and_autocast_do_not_matter():
    """Case 62: tensors made in inference mode, and saves inside autocast, keep their bytes."""
    with torch.inference_mode():
        x = torch.ones(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pool, snapshot = make({"x": x, "y": torch.ones(4)})
        snapshot.capture()
    assert everything(snapshot) == torch.ones(7).numpy().tobytes()
    snapshot.release_all()
    pool.close()


def test_a_repeated_element_makes_no_region_of_its_whole_storage():
    """Case 58: an expanded tensor counts with its few bytes when it is asked whether sharing is worth the space."""
    base = torch.arange(100_000.0)
    plan = plan_snapshot([base[::1000], base[:1].expand(1_000_000)])
    assert plan.raw_bytes <= 2 * (100 + 1) * 4
