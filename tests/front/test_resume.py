"""Which checkpoint is found, what falls back to what, and what is never silent."""

import os
import shutil

import pytest
import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer, KeepBest, KeepLast
from asyncckpt.errors import CheckpointNotFoundError, IntegrityError


def state(value):
    return {"w": torch.full((50_000,), float(value)), "step": value}


def written(root, *steps, **keywords):
    with AsyncCheckpointer(root, **keywords) as ck:
        for step in steps:
            ck.save(step, state(step), metrics={"loss": float(step)})
    return root


def folder(root, step):
    return next(p for p in root.iterdir() if p.name[5:].isdigit() and p.is_dir() and int(p.name[5:]) == step)


def damage_manifest(path):
    (path / "MANIFEST.json").unlink()


def damage_pack_missing(path):
    next(path.glob("*.pack")).unlink()


def damage_pack_short(path):
    pack = next(path.glob("*.pack"))
    os.truncate(pack, pack.stat().st_size - 10)


def damage_pack_zeroed(path):
    pack = next(path.glob("*.pack"))
    pack.write_bytes(bytes(pack.stat().st_size))


def damage_manifest_empty(path):
    os.truncate(path / "MANIFEST.json", 0)


def damage_everything(path):
    for file in path.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        damage_manifest,
        damage_pack_missing,
        damage_pack_short,
        damage_pack_zeroed,
        damage_manifest_empty,
        damage_everything,
    ],
)
def test_resume_falls_back_and_says_why(tmp_path, caplog, damage):
    """Cases 28 and 35: a damaged or incomplete newest step is passed over with a warning that names it."""
    written(tmp_path, 10, 20, 30)
    damage(folder(tmp_path, 30))
    with AsyncCheckpointer(tmp_path) as ck:
        restored = ck.restore()
        assert (restored.step, restored["step"]) == (20, 20)
        assert torch.equal(restored["w"], state(20)["w"])
        if damage is not damage_everything:
            assert "step 30" in caplog.text
        with pytest.raises((IntegrityError, CheckpointNotFoundError), match="30"):
            ck.restore(step=30)
        if damage is not damage_pack_zeroed:  # which only reading can tell
            assert ck.latest() == 20
    assert asyncckpt.load(tmp_path)["step"] == 20


def test_steps_are_numbers_whatever_their_padding(tmp_path):
    """Case 38: steps sort as numbers; folders renamed to other zero paddings still count."""
    written(tmp_path, 9, 10, 99, 100, 999_999, 1_000_000, keep=KeepLast(2))
    assert AsyncCheckpointer(tmp_path).steps() == [999_999, 1_000_000]
    folder(tmp_path, 999_999).rename(tmp_path / "step-999999")
    folder(tmp_path, 1_000_000).rename(tmp_path / "step-0000001000000")
    with AsyncCheckpointer(tmp_path) as ck:
        assert ck.latest() == 1_000_000
        assert ck.restore().step == 1_000_000
        assert ck.restore(step=999_999)["step"] == 999_999
        ck.save(1_000_000, state(5)).result(30)
        assert ck.restore()["step"] == 5
        assert ck.steps() == [999_999, 1_000_000]


def test_foreign_entries_are_ignored_and_survive(tmp_path):
    """Case 40: whatever else lies in the root is neither taken for a checkpoint nor deleted."""
    written(tmp_path, 10)
    (tmp_path / "lost+found").mkdir()
    for name in ("step-abc", "step-10.bak", "step--1", "step_50"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    for name in (".DS_Store", "notes.txt", "step-000000000040"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "latest").symlink_to("nowhere")
    foreign = {p.name for p in tmp_path.iterdir()} - {folder(tmp_path, 10).name}
    with AsyncCheckpointer(tmp_path, keep=KeepLast(1)) as ck:
        assert ck.latest() == 10
        ck.save(11, state(11)).result(30)
        assert ck.steps() == [11]
    assert foreign <= {p.name for p in tmp_path.iterdir()}
    assert (tmp_path / "step_50" / "x").exists()


def test_never_from_zero_in_silence(tmp_path):
    """Case 41: no checkpoint gives None; damaged ones give an error listing each step's reason; absent step likewise."""
    assert AsyncCheckpointer(tmp_path / "none").restore({"w": 1}) is None
    with pytest.raises(CheckpointNotFoundError):
        asyncckpt.load(tmp_path / "none")
    written(tmp_path, 10, 20)
    with AsyncCheckpointer(tmp_path) as ck, pytest.raises(CheckpointNotFoundError, match="10, 20") as caught:
        ck.restore(step=50)
    assert isinstance(caught.value, FileNotFoundError)
    for step in (10, 20):
        damage_pack_short(folder(tmp_path, step))
    with AsyncCheckpointer(tmp_path) as ck, pytest.raises(CheckpointNotFoundError) as caught:
        ck.restore()
    assert set(caught.value.reasons) == {10, 20}
    assert all("pack" in reason for reason in caught.value.reasons.values())


def test_an_unreadable_root_is_an_error_not_an_empty_one(tmp_path, monkeypatch):
    """Case 41: a listing that fails is never taken for "no checkpoints"."""
    written(tmp_path, 10)

    def refuse(*args):
        raise PermissionError(13, "no", str(tmp_path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match="no"):
        AsyncCheckpointer(tmp_path).restore()


def test_roots_may_move_and_be_links(tmp_path):
    """Case 43: a moved root works; a root that is a link works; nothing links to anything."""
    written(tmp_path / "a", 1)
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert AsyncCheckpointer(tmp_path / "b").latest() == 1
    (tmp_path / "link").symlink_to("b")
    written(tmp_path / "link", 2, 3, 4)
    assert AsyncCheckpointer(tmp_path / "link").steps() == [1, 2, 3, 4]
    assert AsyncCheckpointer(tmp_path / "b").latest() == 4
    assert not any(p.is_symlink() for p in (tmp_path / "b").rglob("*"))


def test_the_root_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    """The root is made absolute at construction."""
    monkeypatch.chdir(tmp_path)
    with AsyncCheckpointer("run") as ck:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        ck.save(1, state(1)).result(30)
    assert (tmp_path / "run").is_dir()


def test_best_is_by_metric_and_nan_is_worst(tmp_path):
    """``best()`` and ``restore(step="best")`` follow KeepBest's metric; NaN never wins."""
    with AsyncCheckpointer(tmp_path, keep=KeepLast(9) | KeepBest("loss", mode="min")) as ck:
        for step, loss in [(1, 3.0), (2, 1.0), (3, 2.0), (4, float("nan"))]:
            ck.save(step, state(step), metrics={"loss": loss})
        ck.wait()
        assert ck.best() == 2
        assert ck.restore(step="best").step == 2
        assert ck.restore(step="best").metrics == {"loss": 1.0}
    with AsyncCheckpointer(tmp_path) as ck, pytest.raises(ValueError, match="KeepBest"):
        ck.best()


def test_inspect_and_load_take_a_root_or_one_checkpoint(tmp_path):
    """A checkpoint's folder is self-contained: copied and renamed it still loads."""
    written(tmp_path / "run", 10, 20)
    copied = tmp_path / "best-model"
    shutil.copytree(folder(tmp_path / "run", 10), copied)
    assert asyncckpt.load(copied)["step"] == 10
    assert asyncckpt.inspect(copied).step == 10
    assert asyncckpt.inspect(tmp_path / "run").step == 20
    assert asyncckpt.inspect(folder(tmp_path / "run", 20)).metrics == {"loss": 20.0}
    assert asyncckpt.load(tmp_path / "run", step=10)["step"] == 10


def test_only_reads_what_is_asked_for(tmp_path):
    """``only=`` restores the named parts and leaves the rest alone."""
    model, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, {"model": model, "other": other, "epoch": 4}).result(30)
        before = torch.get_rng_state()
        a, b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        kept = b.weight.detach().clone()
        torch.set_rng_state(before)
        restored = ck.restore({"model": a, "other": b, "epoch": 0}, only="model")
        assert torch.equal(a.weight, model.weight)
        assert torch.equal(b.weight, kept)
        assert "epoch" not in restored
    assert set(asyncckpt.load(tmp_path, only=["model", "epoch"])) == {"model", "epoch"}


def test_a_second_writer_is_refused(tmp_path):
    """Case 43: one root, one writer: the second one's first save is refused; reading is not."""
    with AsyncCheckpointer(tmp_path) as first, AsyncCheckpointer(tmp_path) as second:
        first.save(1, state(1)).result(30)
        with pytest.raises(asyncckpt.RootInUseError):
            second.save(2, state(2))
        assert second.latest() == 1
        assert second.restore().step == 1
    with AsyncCheckpointer(tmp_path) as third:
        third.save(2, state(2)).result(30)


def test_flipped_bits_never_pass(tmp_path):
    """Case 36: one flipped bit anywhere gives an integrity or format error naming the file, or the same values."""
    written(tmp_path, 10, 20, rng=False)
    target = folder(tmp_path, 20)
    files = sorted(p for p in target.iterdir())
    generator = torch.Generator().manual_seed(0)
    for i in range(50):
        file = files[i % len(files)]
        good = file.read_bytes()
        position = int(torch.randint(len(good), (1,), generator=generator))
        bad = bytearray(good)
        bad[position] ^= 1 << int(torch.randint(8, (1,), generator=generator))
        file.write_bytes(bad)
        with pytest.raises((IntegrityError, asyncckpt.FormatError)) as caught:
            asyncckpt.load(tmp_path, step=20)
        assert isinstance(caught.value, asyncckpt.FormatError) or file.name in caught.value.file
        assert asyncckpt.load(tmp_path)["step"] == 10
        file.write_bytes(good)
    assert asyncckpt.load(tmp_path)["step"] == 20


def test_going_back_says_that_newer_steps_exist(tmp_path, caplog):
    """A run that goes on from an older step is warned, once, that resuming will take the newer one."""
    written(tmp_path, 10, 40)
    with AsyncCheckpointer(tmp_path) as ck:
        ck.restore(step=10)
        ck.save(11, state(11)).result(30)
        ck.save(12, state(12)).result(30)
        assert ck.latest() == 40
    assert sum("step 40 exists" in record.message for record in caplog.records) == 1


def test_a_root_that_is_a_file_is_refused_at_once(tmp_path):
    """A root is a folder."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file"):
        AsyncCheckpointer(tmp_path / "file")


def test_a_key_that_is_not_in_the_result_says_what_is(tmp_path):
    """``restored[key]`` of something loaded in place names what there is."""
    with AsyncCheckpointer(written(tmp_path, 1)) as ck, pytest.raises(KeyError, match="'step'"):
        ck.restore()["model"]
