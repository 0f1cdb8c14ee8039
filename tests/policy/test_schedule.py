"""Schedules are pure: a moment and a history in, a decision out."""

import dataclasses
import math

import pytest

from asyncckpt.policy import schedule as module
from asyncckpt.policy.schedule import EveryEpoch, EverySeconds, EverySteps, History, Moment, OnBest


def saved_at(schedule, moments, history=None):
    """The steps at which a run saves that asks at each moment."""
    history = history or History.begin(moments[0].step - 1, moments[0].seconds)
    steps = []
    for moment in moments:
        due = schedule.due(moment, history)
        steps += [moment.step] * due
        history = history.after(moment, saved=due)
    return steps


def at(*steps):
    return [Moment(step, float(step)) for step in steps]


def test_every_steps_is_due_at_multiples():
    """Multiples of n, and step 0 is not one."""
    assert saved_at(EverySteps(4), at(*range(13))) == [4, 8, 12]
    assert saved_at(EverySteps(1), at(0, 1, 2)) == [1, 2]


def test_every_steps_is_due_when_a_multiple_was_passed():
    """Asked only now and then, a multiple that was stepped over counts, once."""
    assert saved_at(EverySteps(10), at(7, 13, 14, 19, 41, 42)) == [13, 41]


def test_every_steps_after_a_resume_waits_for_the_next_multiple():
    """A run resumed at step s saves first at the next multiple, also if that is its very first step."""
    assert saved_at(EverySteps(500), at(*range(501, 1003))) == [1000]
    assert saved_at(EverySteps(500), at(500, 501)) == [500]
    assert saved_at(EverySteps(500), at(1000, 1001), History.begin(999, 0.0)) == [1000]


def test_every_steps_does_not_repeat_itself_and_takes_a_step_back():
    """The same step twice saves once; a run put back to an earlier step saves at multiples again."""
    assert saved_at(EverySteps(5), at(5, 5, 6)) == [5]
    assert saved_at(EverySteps(5), at(9, 10, 11, 5, 6, 10)) == [10, 5, 10]


def test_every_seconds_counts_from_the_last_save():
    """From the start of the run first, then from each save; no clock of its own."""
    moments = [Moment(i, t) for i, t in enumerate((100.0, 159.9, 160.0, 219.0, 220.5))]
    assert saved_at(EverySeconds(60), moments) == [2, 4]


def test_every_epoch_counts_ends():
    """Every n-th end of an epoch, and nothing in between."""
    moments = [Moment(i, 0.0, epoch_end=i % 3 == 2) for i in range(12)]
    assert saved_at(EveryEpoch(), moments) == [2, 5, 8, 11]
    assert saved_at(EveryEpoch(2), moments) == [5, 11]


@pytest.mark.parametrize(("mode", "steps"), [("min", [0, 2, 5]), ("max", [0, 1, 4])])
def test_on_best_is_due_on_a_new_best(mode, steps):
    """Strictly better than all before; NaN never is, and does not count as seen."""
    values = [3.0, 4.0, 2.0, math.nan, 5.0, 1.0, 1.0]
    moments = [Moment(i, 0.0, metrics={"loss": v}) for i, v in enumerate(values)]
    assert saved_at(OnBest("loss", mode), moments) == steps


def test_on_best_remembers_what_earlier_checkpoints_had():
    """A history that has seen metrics of an earlier run is not beaten by less."""
    history = History.begin(0, 0.0).seen({"loss": 1.0}).seen({"loss": math.nan, "acc": 0.5})
    moments = [Moment(i + 1, 0.0, metrics={"loss": v}) for i, v in enumerate((2.0, 0.5))]
    assert saved_at(OnBest("loss", "min"), moments, history) == [2]


def test_on_best_without_the_metric_is_not_due_and_says_so_once(caplog):
    """A metric that is not given is no error; the log names it, once."""
    module._say_missing.cache_clear()
    assert saved_at(OnBest("val_acc", "max"), at(1, 2, 3)) == []
    (record,) = caplog.records
    assert "val_acc" in record.getMessage()


def test_schedules_combine():
    """``a | b | c`` is due when any is; it shows itself as it was written, and says which metric counts."""
    either = EverySteps(4) | EveryEpoch() | OnBest("loss", "min")
    moments = [Moment(i, 0.0, epoch_end=i == 6, metrics={"loss": 9.0 - (i == 3)}) for i in range(1, 9)]
    assert saved_at(either, moments) == [1, 3, 4, 6, 8]
    assert repr(either) == "EverySteps(n=4) | EveryEpoch(n=1) | OnBest(metric='loss', mode='min')"
    assert either.objective() == ("loss", "min")
    assert EverySteps(4).objective() is None


def test_schedules_and_histories_are_values():
    """Equal by content, frozen, and a history is never changed in place."""
    assert EverySteps(4) == EverySteps(4)
    assert hash(EverySteps(4) | EveryEpoch()) == hash(EverySteps(4) | EveryEpoch())
    with pytest.raises(dataclasses.FrozenInstanceError):
        EverySteps(4).n = 5
    history = History.begin(0, 0.0)
    history.after(Moment(1, 1.0, epoch_end=True, metrics={"loss": 1.0}), saved=True)
    assert history == History.begin(0, 0.0)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: EverySteps(0), ValueError),
        (lambda: EverySteps(True), ValueError),
        (lambda: EverySteps(1.5), ValueError),
        (lambda: EverySeconds(0), ValueError),
        (lambda: EverySeconds(math.nan), ValueError),
        (lambda: EverySeconds("60"), ValueError),
        (lambda: EveryEpoch(-1), ValueError),
        (lambda: OnBest(3), TypeError),
        (lambda: OnBest("loss", "smallest"), ValueError),
        (lambda: EverySteps(3) | 4, TypeError),
    ],
)
def test_wrong_arguments_are_refused(make, error):
    """A schedule that makes no sense cannot be built."""
    with pytest.raises(error):
        make()
