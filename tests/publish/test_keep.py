"""Keep policies are pure values over a list of checkpoints."""

import dataclasses
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.manifest.catalog import CheckpointInfo
from asyncckpt.publish.keep import KeepAll, KeepBest, KeepEvery, KeepLast


def info(step, **metrics):
    return CheckpointInfo(step, "/x", "0123456789ab", datetime.now(UTC), metrics, {}, 0, 0, {}, {})


LOSSES = [info(1, loss=3.0), info(2, loss=1.0), info(3, loss=math.nan), info(4, loss=1.0), info(5), info(6, loss=2.0)]


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        (KeepLast(1), {6}),
        (KeepLast(2), {5, 6}),
        (KeepLast(99), {1, 2, 3, 4, 5, 6}),
        (KeepEvery(3), {3, 6}),
        (KeepEvery(1), {1, 2, 3, 4, 5, 6}),
        (KeepAll(), {1, 2, 3, 4, 5, 6}),
        (KeepBest("loss", mode="min"), {4}),
        (KeepBest("loss", mode="min", k=3), {2, 4, 6}),
        (KeepBest("loss", mode="max", k=2), {1, 6}),
        (KeepBest("loss", mode="min", k=5), {1, 2, 4, 5, 6}),
        (KeepBest("unknown", k=2), {5, 6}),
        (KeepLast(1) | KeepBest("loss") | KeepEvery(3), {3, 4, 6}),
    ],
)
def test_what_each_policy_keeps(keep, steps):
    """Newest k, multiples, best k (ties: the newer; NaN and missing: worst), and unions of them."""
    assert keep.kept(LOSSES) == steps
    assert keep.kept([]) == set()


@given(
    steps=st.sets(st.integers(0, 50)),
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=51, max_size=51),
    k=st.integers(1, 5),
    mode=st.sampled_from(["min", "max"]),
)
def test_the_best_are_no_worse_than_the_rest(steps, values, k, mode):
    """KeepBest keeps exactly k, or all, and none that is dropped is better than one that is kept."""
    infos = [info(step, m=values[step]) for step in sorted(steps)]
    kept = KeepBest("m", mode=mode, k=k).kept(infos)
    assert len(kept) == min(k, len(steps))
    worst = -math.inf if mode == "max" else math.inf
    rank = {s: worst if math.isnan(values[s]) else values[s] for s in steps}
    for dropped in steps - kept:
        for each in kept:
            assert rank[each] <= rank[dropped] if mode == "min" else rank[each] >= rank[dropped]


def test_only_policies_that_keep_all_say_so():
    """So that nothing needs to be listed for them."""
    assert KeepAll().keeps_all()
    assert (KeepLast(1) | KeepAll()).keeps_all()
    assert not (KeepLast(1) | KeepEvery(1)).keeps_all()


def test_policies_are_readable_values():
    """Equal by content, hashable, frozen; shown as they are written; the best's metric is told."""
    keep = KeepLast(3) | KeepBest("loss", mode="max", k=2)
    assert keep == KeepLast(3) | KeepBest("loss", mode="max", k=2)
    assert hash(KeepEvery(5)) == hash(KeepEvery(5))
    assert repr(keep) == "KeepLast(k=3) | KeepBest(metric='loss', mode='max', k=2)"
    assert keep.objective() == ("loss", "max")
    assert KeepLast(3).objective() is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        KeepLast(3).k = 4


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: KeepLast(0), ValueError),
        (lambda: KeepLast(True), ValueError),
        (lambda: KeepLast(2.0), ValueError),
        (lambda: KeepEvery(-5), ValueError),
        (lambda: KeepBest("loss", mode="lowest"), ValueError),
        (lambda: KeepBest("loss", k=0), ValueError),
        (lambda: KeepBest(None), TypeError),
        (lambda: KeepLast(1) | 3, TypeError),
    ],
)
def test_wrong_arguments_are_refused(make, error):
    """A policy that makes no sense cannot be built."""
    with pytest.raises(error):
        make()
