"""Which checkpoints exist, which are good, and which is best."""

import asyncio
import math
from datetime import UTC, datetime

import pytest

from asyncckpt.errors import FormatError, PermanentStoreError, TransientStoreError
from asyncckpt.manifest.catalog import (
    UNCOMMITTED,
    CheckpointInfo,
    best_of,
    committed,
    examine,
    info_of,
    newest_valid,
    scan_steps,
    valid,
)
from asyncckpt.manifest.format import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    encode_manifest,
    file_digest,
    part_name,
    step_folder,
)
from asyncckpt.store.base import Entry
from asyncckpt.store.local import LocalStore

SAVE = "0123456789ab"
PACK, INDEX = part_name(SAVE, 0, 1, "pack"), part_name(SAVE, 0, 1, "index")


class Objects:
    """A store of objects in a dict, with what may be wrong on request."""

    url = "memory://x"

    def __init__(self, files=(), fail=None):
        self.files = dict(files)
        self.fail = fail
        self.reads = []

    async def read(self, key, start, into):
        self.reads.append(key)
        if self.fail == ("read", key):
            raise TransientStoreError("timed out")
        if key not in self.files:
            raise FileNotFoundError(key)
        if len(self.files[key]) < start + len(into):
            raise EOFError(key)
        into[:] = self.files[key][start : start + len(into)]

    async def list(self, folder):
        if self.fail == ("list", folder):
            raise PermanentStoreError("no permission")
        prefix = f"{folder}/" if folder else ""
        names = {}
        for key, data in self.files.items():
            if key.startswith(prefix):
                name, _, rest = key[len(prefix) :].partition("/")
                names[name] = Entry(name, 0 if rest else len(data), bool(rest))
        return list(names.values())


def manifest(step=7, **changes):
    """A manifest of one small shard."""
    shard = ShardEntry(PACK, 9, INDEX, 5, 100, file_digest(b"index"))
    fields = {
        "version": 1, "digest": "", "step": step, "save_id": SAVE, "created": 1.7e9, "metrics": {"loss": 0.5},
        "metadata": ["dict", "run", "x"], "raw_bytes": 12, "stored_bytes": 14, "timings": {"copy": 0.25},
        "versions": {"torch": "2.6"}, "shards": [shard],
    }  # fmt: skip
    return Manifest(**{**fields, **changes})


def checkpoint(step=7, folder=None):
    """The files of a good checkpoint."""
    folder = folder or step_folder(step)
    files = {MANIFEST_NAME: encode_manifest(manifest(step)), PACK: b"9 bytes..", INDEX: b"index"}
    return {f"{folder}/{name}": data for name, data in files.items()}


def look(files, step=7, folder=None):
    """What examining says of a checkpoint with these files."""
    return asyncio.run(examine(Objects(files), step, folder or step_folder(7)))


def test_a_good_checkpoint_has_no_reason():
    """All files there with their sizes: valid, at the cost of reading the manifest alone."""
    store = Objects(checkpoint())
    found = asyncio.run(examine(store, 7, step_folder(7)))
    assert found.reason is None
    assert found.manifest.step == found.step == 7
    assert store.reads == [f"{step_folder(7)}/{MANIFEST_NAME}"]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        (MANIFEST_NAME, None, UNCOMMITTED),
        (MANIFEST_NAME, b"", "MANIFEST.json is damaged"),
        (MANIFEST_NAME, bytes(500), "MANIFEST.json is damaged"),
        (MANIFEST_NAME, encode_manifest(manifest()).replace(b"loss", b"l0ss"), "MANIFEST.json is damaged"),
        (MANIFEST_NAME, encode_manifest(manifest(8)), "MANIFEST.json is that of step 8"),
        (PACK, None, f"pack {PACK} is missing"),
        (PACK, b"", f"pack {PACK} has 0 bytes, 9 expected"),
        (INDEX, None, f"index {INDEX} is missing"),
        (INDEX, b"indexindex", f"index {INDEX} has 10 bytes, 5 expected"),
    ],
)
def test_what_is_wrong_is_said_in_words(name, data, reason):
    """A missing, empty, zeroed, changed or cut file makes a checkpoint invalid, with a reason (cases 28 and 35)."""
    files = checkpoint()
    key = f"{step_folder(7)}/{name}"
    if data is None:
        del files[key]
    else:
        files[key] = data
    assert look(files).reason.startswith(reason)


def test_a_folder_in_place_of_a_file_is_no_file():
    """A folder called like the manifest or the pack does not count as it."""
    files = checkpoint()
    files[f"{step_folder(7)}/{PACK}/x"] = files.pop(f"{step_folder(7)}/{PACK}")
    assert "missing" in look(files).reason
    assert look({f"{step_folder(7)}/{MANIFEST_NAME}/x": b""}).reason == UNCOMMITTED


def test_a_folder_of_any_name_can_be_examined():
    """Without a step to compare, the manifest tells which one it is."""
    assert look(checkpoint(7, "copied"), None, "copied").step == 7
    assert look({}, None, "copied").step == -1


def test_a_checkpoint_removed_meanwhile_is_not_there():
    """Between listing and reading, a manifest may go away or shrink: that is a reason, no crash."""
    files = checkpoint()
    store = Objects(files)
    listing = asyncio.run(store.list(step_folder(7)))
    for data, reason in ((None, UNCOMMITTED), (b"x", "became shorter")):
        gone = Objects(files)
        gone.files[f"{step_folder(7)}/{MANIFEST_NAME}"] = data
        if data is None:
            del gone.files[f"{step_folder(7)}/{MANIFEST_NAME}"]

        async def stale(folder):
            return listing

        gone.list = stale
        assert reason in asyncio.run(examine(gone, 7, step_folder(7))).reason


def test_steps_are_compared_as_numbers():
    """Latest is the highest number, whatever the padding (case 38)."""
    files = {}
    for step in (9, 10, 99, 100, 999999):
        files |= checkpoint(step)
    files |= checkpoint(1000000, "step-1000000")
    files |= checkpoint(500, "step-" + "0" * 40 + "500")
    store = Objects(files)
    assert asyncio.run(committed(store)) == [9, 10, 99, 100, 500, 999999, 1000000]
    assert asyncio.run(newest_valid(store)).step == 1000000
    assert [found.step for found in asyncio.run(valid(store))] == [9, 10, 99, 100, 500, 999999, 1000000]


def test_of_two_folders_of_a_step_the_committed_one_counts():
    """An unfinished folder never hides a committed one of other padding; our own spelling wins among equals."""
    both = checkpoint(7) | checkpoint(7, "step-7")
    assert asyncio.run(scan_steps(Objects(both))) == {7: step_folder(7)}
    unfinished = {key: data for key, data in both.items() if key != f"{step_folder(7)}/{MANIFEST_NAME}"}
    assert asyncio.run(scan_steps(Objects(unfinished))) == {7: "step-7"}


def test_newest_valid_falls_back_over_bad_ones():
    """Unfinished and damaged newer steps are passed over (case 35)."""
    files = checkpoint(1) | checkpoint(2) | checkpoint(3)
    files[f"{step_folder(2)}/{PACK}"] = b""
    del files[f"{step_folder(3)}/{MANIFEST_NAME}"]
    store = Objects(files)
    assert asyncio.run(newest_valid(store)).step == 1
    assert asyncio.run(committed(store)) == [1, 2]
    assert asyncio.run(newest_valid(Objects())) is None


@pytest.mark.parametrize(
    "fail", [("list", ""), ("list", step_folder(7)), ("read", f"{step_folder(7)}/{MANIFEST_NAME}")]
)
def test_a_store_that_fails_is_not_taken_for_damage(fail):
    """Errors of the store are raised, never read as missing or damaged checkpoints (cases 41 and 76)."""
    store = Objects(checkpoint(6) | checkpoint(7), fail)
    for ask in (newest_valid, valid):
        with pytest.raises((TransientStoreError, PermanentStoreError)):
            asyncio.run(ask(store))


def test_foreign_entries_are_ignored(tmp_path):
    """Files, folders and links that are not ours do not disturb, on a real directory (case 40)."""
    for key, data in checkpoint(30).items():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(data)
    for name in ("lost+found", "step_abc", "step-10.bak", "step--1", "step_50"):
        (tmp_path / name).mkdir()
    for name in (".DS_Store", "step-40", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    for name in ("latest", "step-60"):
        (tmp_path / name).symlink_to("nowhere")
    store = LocalStore(tmp_path)
    assert asyncio.run(scan_steps(store)) == {30: step_folder(30)}
    assert asyncio.run(newest_valid(store)).step == 30


# ---- descriptions --------------------------------------------------------------------------------------------------


def test_the_description_says_what_the_manifest_says():
    """Metrics and metadata come back as values, the time as UTC."""
    saved = manifest(metrics={"loss": 0.5, "nan": ["float", "7ff8000000000000"]})
    info = info_of(saved, "/runs/step-7")
    assert info.created == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert math.isnan(info.metrics.pop("nan"))
    assert (info.metrics, info.metadata, info.path, info.step) == ({"loss": 0.5}, {"run": "x"}, "/runs/step-7", 7)


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"loss": "x"}}, {"metrics": {"loss": ["float", "x"]}}, {"metadata": ["list"]},
        {"metadata": ["dict", "a", ["tensor"]]},
    ],
)  # fmt: skip
def test_a_malformed_description_is_refused(change):
    """Metrics that are no floats, metadata that is no plain dict."""
    with pytest.raises(FormatError):
        info_of(manifest(**change), "x")


def info(step, **metrics):
    """A description with these metrics."""
    return CheckpointInfo(step, "", SAVE, datetime.now(UTC), metrics, {}, 0, 0, {}, {})


def test_the_best_is_chosen_by_metric():
    """NaN loses to everything, the newest wins among equals, those without the metric do not count."""
    infos = [
        info(1, loss=2.0),
        info(2, loss=1.0),
        info(4, loss=1.0),
        info(3, loss=1.0),
        info(5, loss=math.nan),
        info(6),
    ]
    assert best_of(infos, "loss", "min").step == 4
    assert best_of(infos, "loss", "max").step == 1
    assert best_of([info(1, loss=math.inf), info(2, loss=math.nan)], "loss", "min").step == 1
    assert best_of([info(1, loss=math.nan), info(2, loss=math.nan)], "loss", "max").step == 2
    assert best_of(infos, "accuracy", "max") is None
    with pytest.raises(ValueError, match="mode"):
        best_of(infos, "loss", "least")
