"""What retention deletes, what it never deletes, and what it does when the store refuses."""

import asyncio
import math

import pytest

from asyncckpt.errors import StoreError
from asyncckpt.events import DeleteEvent
from asyncckpt.manifest.catalog import committed, valid
from asyncckpt.manifest.tree import NOT_LEAF, flatten
from asyncckpt.publish.keep import Keep, KeepAll, KeepBest, KeepLast
from asyncckpt.publish.retention import apply_retention
from asyncckpt.testing import Fault, FaultyStore

FOLDER = "step-{:012d}"


def retire(root, keep, *, written, resumed=None, in_flight=(), store=None, emit=lambda event: None):
    return asyncio.run(
        apply_retention(store or root.store, keep, written=written, resumed=resumed, in_flight=in_flight, emit=emit)
    )


def listed(root):
    return [found.step for found in asyncio.run(valid(root.store))]


def damage(root, step):
    """Cut the pack short."""
    (pack,) = [name for name in root.names(step) if name.endswith(".pack")]
    root.store.damage(f"{FOLDER.format(step)}/{pack}", b"x")


class KeepNone(Keep):
    """A user's policy that would delete everything."""

    def kept(self, infos):
        """Nothing."""
        return set()


def test_the_policy_decides(root):
    """What the policy does not keep is deleted, wholly, and told of."""
    root.save(1, 2, 3, 4)
    events = []
    assert retire(root, KeepLast(2), written=4, emit=events.append) == [1, 2]
    assert root.steps() == listed(root) == [3, 4]
    assert events == [DeleteEvent(FOLDER.format(step), "retention") for step in (1, 2)]


@pytest.mark.parametrize(
    ("written", "resumed", "left"),
    [(4, None, [4]), (3, None, [3, 4]), (3, 3, [3, 4]), (1, 2, [1, 2, 4]), (3, 2, [3, 4])],
)
def test_some_steps_are_never_deleted(root, written, resumed, left):
    """The step just written, the newest good one, and the one resumed from until a newer one is durable."""
    root.save(1, 2, 3, 4)
    retire(root, KeepNone(), written=written, resumed=resumed)
    assert listed(root) == left


def test_damaged_ones_are_neither_counted_nor_deleted(root):
    """Case 67: a damaged 40 does not push out the only good one, and stays for people to look at."""
    root.save(10, 40)
    damage(root, 40)
    root.plant("step-000000000050/MANIFEST.json", b"damaged as well")
    root.save(30)
    retire(root, KeepLast(1), written=30)
    assert listed(root) == [30]
    assert root.steps() == [30, 40, 50]


def test_unfinished_ones_are_not_counted(root):
    """Case 67: attempts in flight, whatever their number, push nothing out and are not touched."""
    root.save(10)
    twenty, thirty = root.attempt(20), root.attempt(30)
    retire(root, KeepLast(1), written=10, in_flight={twenty.save_id, thirty.save_id})
    assert listed(root) == [10]
    assert root.steps() == [10, 20, 30]
    root.commit(thirty)
    retire(root, KeepLast(1), written=30, in_flight={twenty.save_id})
    assert listed(root) == [30]
    assert root.steps() == [20, 30]


def test_a_checkpoint_with_unreadable_metrics_is_left_alone(root, caplog):
    """A policy cannot judge it, so it is neither counted nor deleted, and one log line says so."""
    root.save(1, 2, 3)
    root.save(4, metrics={"loss": ["no", "float"]})
    retire(root, KeepLast(1), written=3)
    assert listed(root) == [3, 4]
    assert "step 4" in caplog.text


def test_the_best_by_metric_is_kept(root):
    """KeepBest sees the metrics of the manifests; NaN comes from a tree node."""
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        root.save(step, metrics={"loss": loss})
    root.save(4, metrics={"loss": flatten(math.nan, lambda value, path: NOT_LEAF)})
    retire(root, KeepBest("loss", mode="min"), written=4)
    assert listed(root) == [2, 4]


@pytest.mark.parametrize("keep", [None, KeepAll(), KeepLast(1) | KeepAll()])
def test_keeping_all_looks_at_nothing(root, keep):
    """No listing, no reading."""
    root.save(1, 2)
    store = FaultyStore(root.store)
    assert retire(root, keep, written=2, store=store) == []
    assert store.operations == []


def test_foreign_files_stay_with_their_folder(root):
    """Case 40: of a deleted step only our files go; a foreign file stays where it is."""
    root.save(1, 2)
    root.plant(f"{FOLDER.format(1)}/notes.txt", b"mine")
    root.plant("notes.txt")
    retire(root, KeepLast(1), written=2)
    assert root.names(1) == ["notes.txt"]
    assert listed(root) == [2]


def test_the_manifest_goes_first(root):
    """Write order: the MANIFEST is removed by a call of its own before any other file is."""
    root.save(1, 2)
    store = FaultyStore(root.store)
    retire(root, KeepLast(1), written=2, store=store)
    deletes = [operation.key for operation in store.operations if operation.name == "delete"]
    assert deletes[0] == f"{FOLDER.format(1)}/MANIFEST.json"
    assert deletes[1].endswith(".index")
    assert len(deletes) == 2


@pytest.mark.parametrize(("at", "left"), [(1, [1, 2]), (2, [2])])
def test_a_failing_delete_is_a_warning_and_is_retried(root, at, left, caplog):
    """Case 68: a step half deleted is not listed any more; the next retention finishes it."""
    root.save(1, 2)
    fault = Fault(at=at, errno=16, where=lambda operation: operation.name == "delete", for_ever=True)
    events = []
    deleted = retire(root, KeepLast(1), written=2, store=FaultyStore(root.store, fault), emit=events.append)
    assert "busy" in caplog.text
    assert asyncio.run(committed(root.store)) == left
    assert deleted == [1] * (left == [2])
    assert len(events) == len(deleted)
    retire(root, KeepLast(1), written=2)
    assert root.steps() == [2]


def test_one_failing_step_does_not_keep_the_others(root):
    """Case 68: deletion goes on with the next step."""
    root.save(1, 2, 3)
    fault = Fault(
        for_ever=True, where=lambda operation: operation.name == "delete" and operation.key.startswith(FOLDER.format(1))
    )
    assert retire(root, KeepLast(1), written=3, store=FaultyStore(root.store, fault)) == [2]
    assert root.steps() == [1, 3]


def test_a_root_that_cannot_be_listed_raises(root):
    """A store that does not answer is not an empty one: nothing is deleted, and the caller is told."""
    root.save(1, 2)
    with pytest.raises(StoreError):
        retire(root, KeepLast(1), written=2, store=FaultyStore(root.store, Fault()))
    assert listed(root) == [1, 2]


def test_a_missing_step_is_no_trouble(root):
    """Case 16: the save of 20 failed and left nothing; retention after 30 does not look for it."""
    root.save(10)
    root.save(30)
    assert retire(root, KeepLast(1), written=30) == [10]
