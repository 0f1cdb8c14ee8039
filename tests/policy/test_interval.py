"""Interval formulas against published figures."""

import math

import pytest

from asyncckpt.policy.interval import (
    asynchronous,
    asynchronous_cost,
    daly,
    is_continuous,
    lost_work,
    mean_time_between_failures,
    prior_for,
    steps_between,
    young,
)

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * HOUR, 116.7), (6 * HOUR, 56.7), (15 * MINUTE, 9.14)])
def test_daly_gives_his_own_figures(mtbf, minutes):
    """A checkpoint of 5 minutes: 116.7, 56.7 and 9.14 minutes apart for a failure in 24 h, 6 h and 15 min."""
    assert daly(5 * MINUTE, mtbf) / MINUTE == pytest.approx(minutes, rel=5e-4)


def test_daly_is_the_mtbf_where_checkpoints_take_too_long():
    """For C >= 2M the formula ends and M itself is the answer."""
    assert daly(200.0, 100.0) == 100.0
    assert daly(500.0, 100.0) == 100.0


def test_young_is_the_first_order_form():
    """sqrt(2 C M): 5 minutes and 24 hours give two hours; Daly agrees where C is small against M."""
    assert young(5 * MINUTE, 24 * HOUR) == pytest.approx(2 * HOUR)
    assert daly(0.01, 1e6) == pytest.approx(young(0.01, 1e6), rel=1e-3)


def test_a_background_save_costs_what_the_loop_loses():
    """C_blocking + s L; the interval is never shorter than the store needs to write."""
    assert asynchronous_cost(0.5, 0.02, 100.0) == pytest.approx(2.5)
    assert asynchronous(2.5, 2 * HOUR, 1e9, 1e9) == pytest.approx(math.sqrt(2 * 2.5 * 7200))
    assert asynchronous(2.5, 2 * HOUR, 1e12, 1e9) == pytest.approx(1000.0)


def test_continuous_saving_where_the_optimum_is_shorter_than_a_save():
    """sqrt(2 M C) < L: the next save begins when the last one ends."""
    assert is_continuous(0.1, 100.0, 10.0)
    assert not is_continuous(10.0, 1e6, 10.0)


def test_lost_work_per_failure():
    """Half an interval, the latency, and the restart."""
    assert lost_work(600.0, 30.0, 120.0) == 450.0


def test_steps_between_takes_the_largest_of_three():
    """The interval, the saves in flight and the overhead budget each set a lower limit, in whole steps."""
    assert steps_between(95.0, 10.0, latency=1.0, cost=0.1) == 10
    assert steps_between(10.0, 10.0, latency=100.0, cost=0.1, in_flight=2) == 5
    assert steps_between(10.0, 10.0, latency=1.0, cost=7.0, budget=0.035) == 20
    assert steps_between(0.1, 10.0, latency=0.0, cost=0.0) == 1


def test_the_prior_gives_way_to_what_is_seen():
    """50,677 GPU-hours a failure at first; with failures seen, about their mean."""
    prior = prior_for(16384)
    assert prior / HOUR == pytest.approx(3.09, abs=0.01)
    assert mean_time_between_failures(0.0, 0, prior) == prior
    assert mean_time_between_failures(1000 * HOUR, 99, prior) == pytest.approx(10 * HOUR, rel=0.01)


@pytest.mark.parametrize("call", [lambda: young(0, 1), lambda: daly(1, -1), lambda: prior_for(0),
                                  lambda: asynchronous(1, 1, 1, 0), lambda: young(math.nan, 1)])  # fmt: skip
def test_senseless_figures_are_refused(call):
    """Costs, rates and times must be positive numbers."""
    with pytest.raises(ValueError, match="positive"):
        call()
