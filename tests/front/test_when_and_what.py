"""Schedules and retention through the front door."""

import os

import pytest
import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer, EveryEpoch, EverySeconds, EverySteps, KeepBest, KeepEvery, KeepLast, OnBest


def state(value):
    return {"v": value, "w": torch.full((100,), float(value))}


def test_maybe_save_follows_the_schedule(tmp_path):
    """``EverySteps | EveryEpoch``: saves at multiples of n and at the ends of epochs, and not otherwise."""
    with AsyncCheckpointer(tmp_path, schedule=EverySteps(4) | EveryEpoch()) as ck:
        for step in range(1, 11):
            handle = ck.maybe_save(step, state(step), epoch_end=step == 7)
            assert (handle is not None) == (step in {4, 7, 8})
    assert AsyncCheckpointer(tmp_path).steps() == [4, 7, 8]


def test_maybe_save_on_the_best_metric_across_a_restart(tmp_path):
    """``OnBest`` remembers the best among the checkpoints that exist, also after a restart."""
    for values, expected in (([3.0, 2.0, 2.5], [0, 1]), ([2.2, float("nan"), 1.5], [12])):
        with AsyncCheckpointer(tmp_path, schedule=OnBest("loss", mode="min")) as ck:
            ck.restore(state(0))
            base = 0 if values[0] == 3.0 else 10
            saved = [i + base for i, v in enumerate(values) if ck.maybe_save(i + base, state(i), metrics={"loss": v})]
        assert saved == expected


def test_maybe_save_by_time(tmp_path, monkeypatch):
    """``EverySeconds`` counts from the start of the run and then from the last save."""
    now = [100.0]
    monkeypatch.setattr("asyncckpt.checkpointer.monotonic", lambda: now[0])
    with AsyncCheckpointer(tmp_path, schedule=EverySeconds(60)) as ck:
        saved = []
        for step, seconds in enumerate((0, 59, 61, 100, 121, 122)):
            now[0] = 100.0 + seconds
            if ck.maybe_save(step, state(step)):
                saved.append(seconds)
    assert saved == [61, 121]


def test_maybe_save_without_a_schedule_is_a_mistake(tmp_path):
    """There must be something to decide by."""
    with AsyncCheckpointer(tmp_path) as ck, pytest.raises(ValueError, match="schedule"):
        ck.maybe_save(1, state(1))


def test_policies_combine(tmp_path):
    """``KeepLast | KeepBest | KeepEvery`` keeps the union."""
    keep = KeepLast(2) | KeepBest("loss", mode="min") | KeepEvery(5)
    with AsyncCheckpointer(tmp_path, keep=keep) as ck:
        for step in range(1, 13):
            ck.save(step, state(step), metrics={"loss": abs(step - 3)})
    assert AsyncCheckpointer(tmp_path).steps() == [3, 5, 10, 11, 12]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [f"step-{s:012d}" for s in (3, 5, 10, 11, 12)]


def test_unfinished_saves_push_nothing_out(faulty):
    """Case 67: keep=1: 10 stays while 20 fails, until 30 is durable; a damaged 40 counts for nothing."""
    with AsyncCheckpointer(faulty.store, keep=KeepLast(1)) as ck:
        ck.save(10, state(10)).result(30)
        faulty.failing = True
        assert ck.save(20, state(20)).exception(30) is not None
        assert ck.steps() == [10]
        faulty.failing = False
        ck.save(40, state(40)).result(30)
        (pack,) = faulty.root.glob("step-*40/*.pack")
        os.truncate(pack, 1)
        ck.save(30, state(30)).result(30)
        assert ck.latest() == 30
        ck.save(31, state(31)).result(30)
        assert ck.latest() == 31
        assert 30 not in ck.steps()
    assert asyncckpt.load(faulty.root)["v"] == 31


def test_a_failing_delete_is_a_warning_and_is_retried(tmp_path, monkeypatch, caplog):
    """Case 68: a delete that fails half-way costs nothing but a warning; the step is unlisted and goes later."""
    real, refuse = os.unlink, [True]

    def unlink(path, *args, **keywords):
        if refuse[0] and str(path).endswith(".pack"):
            raise OSError(16, "Device or resource busy", str(path))
        return real(path, *args, **keywords)

    monkeypatch.setattr(os, "unlink", unlink)
    with AsyncCheckpointer(tmp_path, keep=KeepLast(1)) as ck:
        ck.save(1, state(1)).result(30)
        ck.save(2, state(2)).result(30)
        assert ck.steps() == [2]
        assert "busy" in caplog.text
    refuse[0] = False
    with AsyncCheckpointer(tmp_path, keep=KeepLast(1)) as ck:
        ck.save(3, state(3)).result(30)
        assert ck.steps() == [3]
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["step-000000000003"]


def test_the_resumed_step_is_spared_until_a_newer_one_is_durable(gate):
    """A run that resumed from an older step keeps it until its own first save is durable."""
    with AsyncCheckpointer(gate.root) as ck:
        for step in (10, 20):
            ck.save(step, state(step))
    with AsyncCheckpointer(gate.store, keep=KeepLast(1)) as ck:
        assert ck.restore(step=10).step == 10
        ck.save(11, state(11))
        assert gate.entered.wait(30)
        assert ck.steps() == [10, 20]
        gate.open()
        ck.wait()
        assert ck.steps() == [11, 20]


def test_warmup_allocates_what_the_first_save_needs(tmp_path):
    """After ``warmup`` the first save takes no new pool memory; ``close`` gives it all back."""
    big = {"w": torch.zeros(8 << 20)}
    ck = AsyncCheckpointer(tmp_path, max_in_flight=1)
    ck.warmup(big)
    before = ck.statistics().pool_bytes
    assert before >= 32 << 20
    ck.save(1, big).result(60)
    assert ck.statistics().pool_bytes == before
    assert ck.statistics().pool_peak_bytes <= before
    ck.close()
    assert ck.statistics().pool_bytes == 0
