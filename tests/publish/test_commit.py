"""The commit: exclusive, atomic, and honest about lost answers."""

import asyncio

import pytest

from asyncckpt.errors import PermanentStoreError, SaveError, TransientStoreError
from asyncckpt.manifest.catalog import valid
from asyncckpt.manifest.names import new_save_id, step_folder
from asyncckpt.publish.commit import clean_attempt
from asyncckpt.testing import Fault, FaultyStore


def good(root):
    """Step -> save_id of the valid checkpoints."""
    return {found.step: found.manifest.save_id for found in asyncio.run(valid(root.store))}


def clean(root, step, save_id, store=None):
    asyncio.run(clean_attempt(store or root.store, step_folder(step), save_id))


class LosesAnswers:
    """Carries the commit out and says it failed, as a network may; ``says`` is what its retry is told."""

    def __init__(self, inner, says):
        self.inner, self.says = inner, says

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def put_new(self, key, data):
        await self.inner.put_new(key, data)
        raise self.says

    async def put(self, key, parts):
        await self.inner.put(key, parts)
        raise self.says


def test_a_checkpoint_exists_from_its_manifest_on(root):
    """Pack and index alone are no checkpoint; the MANIFEST makes them one."""
    manifest = root.attempt(5)
    assert good(root) == {}
    root.commit(manifest)
    assert good(root) == {5: manifest.save_id}


def test_the_loser_of_a_race_learns_who_won(root):
    """Of two attempts at one step the second gets a SaveError that names the winner, which is untouched."""
    first, second = root.attempt(5), root.attempt(5)
    root.commit(first)
    with pytest.raises(SaveError, match=first.save_id) as caught:
        root.commit(second)
    assert caught.value.step == 5
    assert isinstance(caught.value.__cause__, FileExistsError)
    clean(root, 5, second.save_id)
    assert good(root) == {5: first.save_id}
    assert all(second.save_id not in name for name in root.names(5))


def test_a_commit_whose_answer_was_lost_succeeds(root):
    """The retry is told "exists", and what exists is ours: the save is committed."""
    manifest = root.attempt(5)
    root.commit(manifest, store=LosesAnswers(root.store, FileExistsError("MANIFEST.json")))
    assert good(root) == {5: manifest.save_id}


def test_a_damaged_manifest_in_the_way_is_told(root):
    """If the MANIFEST that stands there cannot be read, the error says so, and nothing is overwritten."""
    root.plant("step-000000000005/MANIFEST.json", b"{}")
    with pytest.raises(SaveError, match="cannot be read"):
        root.commit(root.attempt(5))
    assert root.store.objects["step-000000000005/MANIFEST.json"] == b"{}"


def test_replacing_swaps_then_removes_the_old_files(root):
    """Case 30: after a replacement there is one attempt, the new one, and foreign files are where they were."""
    root.save(5)
    root.plant("step-000000000005/notes.txt")
    manifest = root.attempt(5)
    root.commit(manifest, replacing=True)
    assert good(root) == {5: manifest.save_id}
    (shard,) = manifest.shards
    assert root.names(5) == sorted(["MANIFEST.json", "notes.txt", shard.pack, shard.index])


def test_replacing_touches_no_third_attempt(root):
    """Only files that the old MANIFEST names are removed after a swap."""
    root.save(5)
    third, manifest = root.attempt(5), root.attempt(5)
    root.commit(manifest, replacing=True)
    assert sum(third.save_id in name for name in root.names(5)) == 2


def test_a_failed_swap_leaves_the_old_checkpoint(root):
    """The old MANIFEST and its files are touched only after the new one is durable."""
    root.save(5)
    before = good(root)
    manifest = root.attempt(5)
    faulty = FaultyStore(root.store, Fault(where=lambda operation: operation.name == "put"))
    with pytest.raises(PermanentStoreError):
        root.commit(manifest, store=faulty, replacing=True)
    clean(root, 5, manifest.save_id)
    assert good(root) == before
    assert len(root.names(5)) == 3


def test_old_files_that_cannot_be_removed_are_a_warning(root, caplog):
    """Case 68: the replacement has happened; a failing delete does not undo it."""
    root.save(5)
    manifest = root.attempt(5)
    faulty = FaultyStore(root.store, Fault(for_ever=True, where=lambda operation: operation.name == "delete"))
    root.commit(manifest, store=faulty, replacing=True)
    assert good(root) == {5: manifest.save_id}
    assert "injected" in caplog.text


def test_replacing_a_damaged_manifest(root):
    """A step whose MANIFEST is damaged can be saved again."""
    root.plant("step-000000000005/MANIFEST.json", b"{}")
    manifest = root.attempt(5)
    root.commit(manifest, replacing=True)
    assert good(root) == {5: manifest.save_id}


def test_cleaning_removes_one_attempt_only(root):
    """Packs, indexes and temporary files of that save_id go; all others, and foreign files, stay."""
    root.save(5)
    mine, other = root.attempt(5), root.attempt(5)
    root.plant(f"step-000000000005/{mine.shards[0].pack}.0123abcd.tmp")
    root.plant("step-000000000005/notes.txt")
    clean(root, 5, mine.save_id)
    names = root.names(5)
    assert not [name for name in names if mine.save_id in name]
    assert len([name for name in names if other.save_id in name]) == 2
    assert len(names) == 6


@pytest.mark.parametrize("replacing", [False, True])
def test_cleaning_spares_what_may_be_committed(root, replacing):
    """If the MANIFEST names the failed attempt after all, its files stay: the checkpoint exists."""
    if replacing:
        root.save(5)
    manifest = root.attempt(5)
    store = LosesAnswers(root.store, TransientStoreError("timed out"))
    with pytest.raises(TransientStoreError):
        root.commit(manifest, store=store, replacing=replacing)
    clean(root, 5, manifest.save_id)
    assert good(root) == {5: manifest.save_id}


def test_cleaning_spares_everything_under_a_manifest_that_cannot_be_read(root):
    """A damaged MANIFEST may name this attempt: nothing is removed."""
    manifest = root.attempt(5)
    root.plant("step-000000000005/MANIFEST.json", b"damaged")
    clean(root, 5, manifest.save_id)
    assert len(root.names(5)) == 3


@pytest.mark.parametrize("k", [1, 2, 3])
def test_cleaning_never_raises(root, k, caplog):
    """A store that goes on failing costs a warning, and the files are left for the sweep."""
    root.save(5)
    manifest = root.attempt(5)
    clean(root, 5, manifest.save_id, FaultyStore(root.store, Fault(at=k, for_ever=True)))
    assert "left for the next sweep" in caplog.text
    assert len(root.names(5)) == 5


def test_cleaning_where_nothing_was_written(root):
    """An attempt that failed before its first byte has nothing to clean."""
    clean(root, 5, new_save_id())
    assert root.store.objects == {}
