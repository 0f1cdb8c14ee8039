"""Choosing values by key path, and Restored."""

import pytest

from asyncckpt.errors import StateMismatchError
from asyncckpt.manifest.tree import NOT_LEAF, flatten, unflatten
from asyncckpt.restore.restored import Restored
from asyncckpt.restore.select import prune, selected


def pruned(value, only):
    return unflatten(prune(flatten(value, lambda v, p: NOT_LEAF), selected(only)), lambda *a: None)


STATE = {"model": {"a": 1, "b": 2}, "models": 3, "l": [{"x": 1}, {"x": 2}], "a.b": 4, "a": {"b": 5}, 7: "seven"}


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (None, STATE),
        ("model", {"model": {"a": 1, "b": 2}}),
        ("model.b", {"model": {"b": 2}}),
        (["models", "l[1].x"], {"models": 3, "l": [{"x": 2}]}),
        ("a.b", {"a.b": 4, "a": {"b": 5}}),
        ("[7]", {7: "seven"}),
        (["model", "model.a"], {"model": {"a": 1, "b": 2}}),
    ],
)
def test_a_name_chooses_a_value_and_all_below(only, expected):
    """A name matches a whole key path or a leading part that ends before a dot or bracket; nothing else."""
    assert pruned(STATE, only) == expected


def test_a_name_that_chooses_nothing_is_an_error():
    """A misspelt name is never silently nothing."""
    with pytest.raises(StateMismatchError, match="modle") as caught:
        pruned(STATE, ["model", "modle"])
    assert caught.value.missing == ("modle",)


def test_restored_is_a_mapping_that_is_always_true():
    """``if restored:`` holds even when everything was loaded in place."""
    restored = Restored({}, step=0, metrics={"a": 1.0}, metadata={"m": 2}, path="/x")
    assert restored
    assert (len(restored), dict(restored), restored.step, restored.path) == (0, {}, 0, "/x")
    assert (restored.metrics, restored.metadata) == ({"a": 1.0}, {"m": 2})
    assert Restored({"epoch": 3}, step=1)["epoch"] == 3
