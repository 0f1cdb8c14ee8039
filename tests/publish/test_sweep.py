"""The sweep removes what dead attempts have left, and nothing else, ever."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncckpt.manifest.names import attempt_of, is_temporary_manifest, new_save_id, part_name, step_folder
from asyncckpt.publish.attempts import dead_files
from asyncckpt.publish.retention import sweep
from asyncckpt.store.base import Entry
from asyncckpt.store.local import LocalStore
from asyncckpt.testing import Fault, FaultyStore

STRAY = "0123456789ab"


def run(store, in_flight=()):
    return asyncio.run(sweep(store, in_flight=set(in_flight)))


def test_dead_attempts_are_removed(root):
    """Files that no MANIFEST names go, beside a checkpoint and in folders of their own, which go too."""
    root.save(1)
    before = root.names(1)
    root.attempt(1)
    root.attempt(2)
    assert len(run(root.store)) == 4
    assert root.names(1) == before
    assert root.steps() == [1]


def test_temporary_files_are_removed(root):
    """What a cut-short write leaves, of a part or of a MANIFEST, also of the committed attempt."""
    root.save(1)
    before = root.names(1)
    (pack,) = [name for name in before if name.endswith(".pack")]
    for name in (
        f"{pack}.0123abcd.tmp",
        "MANIFEST.json.0123abcd.tmp",
        f"{part_name(STRAY, 0, 1, 'index')}.89abcdef.tmp",
    ):
        root.plant(f"{step_folder(1)}/{name}")
    run(root.store)
    assert root.names(1) == before


def test_attempts_in_flight_are_not_touched(root):
    """Nothing of an attempt in flight goes, nor a temporary MANIFEST beside it that may be its own."""
    root.save(1)
    flying, dead = root.attempt(1), root.attempt(1)
    root.plant(f"{step_folder(1)}/{flying.shards[0].pack}.0123abcd.tmp")
    root.plant(f"{step_folder(1)}/MANIFEST.json.0123abcd.tmp")
    run(root.store, {flying.save_id})
    names = root.names(1)
    assert sum(flying.save_id in name for name in names) == 3
    assert "MANIFEST.json.0123abcd.tmp" in names
    assert not [name for name in names if dead.save_id in name]


def test_a_step_with_a_damaged_manifest_is_left_alone(root):
    """Whose files those are cannot be told."""
    root.attempt(1)
    root.attempt(1)
    root.plant(f"{step_folder(1)}/MANIFEST.json", b"damaged")
    run(root.store)
    assert len(root.names(1)) == 5


def test_all_spellings_of_a_step_folder_are_swept(root):
    """A folder of ours with another zero padding is ours."""
    root.attempt(7, folder="step-7")
    root.save(7)
    run(root.store)
    assert not [key for key in root.store.objects if key.startswith("step-7/")]
    assert len(root.names(7)) == 3


FOREIGN = [
    ".DS_Store", "notes.txt", "lost+found/x", "step_abc/x", f"step_10.bak/{STRAY}-00000-of-00001.pack", "step_-1/y",
    "step_40", "step-000000000040.bak/MANIFEST.json", f"{STRAY}-00000-of-00001.pack", "MANIFEST.json.0123abcd.tmp",
    "step-000000000001/notes.txt", "step-000000000001/x.pack", "step-000000000001/x.tmp", "step-000000000002/only.me",
    f"step-000000000002/{STRAY}-00000-of-00001.pack.bak", f"step-000000000002/{STRAY.upper()}-00000-of-00001.pack",
    "step-000000000002/MANIFEST.json.tmp", f"step-000000000002/{STRAY}-00000-of-00001.pack/inside",
]  # fmt: skip


def test_foreign_files_are_never_touched(root):
    """Case 40: other names, folders of other tools, folders named like our files: all stay."""
    root.save(1)
    for key in FOREIGN:
        root.plant(key)
    assert run(root.store) == []
    assert set(FOREIGN) <= set(root.store.objects)


def test_empty_folders_go_and_links_stay(tmp_path):
    """Case 40: on a real root an empty step folder of ours goes; files, links and empty foreign folders stay."""
    for name in (step_folder(3), "step-3", "lost+found", "step_40"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("nowhere")
    (tmp_path / step_folder(4)).symlink_to(tmp_path / "lost+found")
    (tmp_path / step_folder(5)).write_text("a file")
    run(LocalStore(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-3", "lost+found", "step_40", "latest", step_folder(4), step_folder(5),
    }  # fmt: skip


@pytest.mark.parametrize("operation", ["list", "read", "delete"])
def test_a_folder_that_cannot_be_swept_is_a_warning(root, operation, caplog):
    """Case 68: the sweep goes on with the next folder, and a later sweep does the rest."""
    root.save(1)
    root.attempt(1)
    root.attempt(2)
    fault = Fault(where=lambda seen: seen.name == operation and seen.key.startswith(step_folder(1)))
    assert len(run(FaultyStore(root.store, fault))) == 2
    assert root.steps() == [1]
    assert step_folder(1) in caplog.text
    assert len(run(root.store)) == 2


def test_a_root_that_cannot_be_listed_is_a_warning(root, caplog):
    """A sweep never fails a save."""
    assert run(FaultyStore(root.store, Fault())) == []
    assert "could not be listed" in caplog.text


def test_checkpoints_without_leftovers_are_only_listed(root):
    """A hundred good checkpoints cost a listing each; no MANIFEST is read."""
    root.save(1, 2, 3)
    store = FaultyStore(root.store)
    run(store)
    assert [operation.name for operation in store.operations] == ["list"] * 4


IDS = [new_save_id() for _ in range(3)]
NAMES = st.one_of(
    st.builds(part_name, st.sampled_from(IDS), st.integers(0, 3), st.just(4), st.sampled_from(["pack", "index"])),
    st.sampled_from(["MANIFEST.json", "MANIFEST.json.0123abcd.tmp", "notes.txt", "x.tmp"]),
    st.text(max_size=40),
).flatmap(lambda name: st.sampled_from([name, f"{name}.89abcdef.tmp", f"{name}.tmp"]))


@settings(deadline=None)
@given(
    names=st.sets(NAMES),
    folders=st.booleans(),
    named=st.sampled_from([None, *IDS]),
    in_flight=st.sets(st.sampled_from(IDS)),
)
def test_what_is_dead_is_ours_and_nobody_needs_it(names, folders, named, in_flight):
    """Whatever lies in a folder: only our own names go, none in flight, none that the MANIFEST needs; indexes first."""
    entries = [Entry(name, 0, is_folder=folders) for name in sorted(names)]
    dead = dead_files(entries, named=named, in_flight=in_flight)
    assert not (folders and dead)
    for name in dead:
        assert attempt_of(name) is not None or is_temporary_manifest(name)
        assert attempt_of(name) not in in_flight
        assert attempt_of(name) != named or named is None or name.endswith(".tmp")
    kinds = [".pack" in name for name in dead]
    assert kinds == sorted(kinds)
