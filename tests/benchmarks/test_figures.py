"""How the comparison comes to its figures, on numbers and traces made by hand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.durability import Trace, verdict
from benchmarks.summary import best_peer, summarize


def turn(delay, **others):
    """A turn with this delay, and nothing remarkable."""
    return {
        "delay": [delay], "stall": [0.1], "cpu": [0.2], "complete": [1.0], "alone_call": [0.1], "copy": [0.05],
        "raw_buffered": [0.5], "raw_direct": [float("nan")], "load": 1.0, "raw_read": 0.5, "documented": "kept",
    } | others  # fmt: skip


def test_ratios_are_taken_within_each_round():
    """A round in which the machine was slow for everyone does not move a ratio."""
    turns = {"torch_save": [turn(1.0), turn(10.0)], "dcp_strong_1": [turn(0.5), turn(5.0)]}
    ratio = summarize(turns)["dcp_strong_1"]["to_floor"]["delay"]
    assert ratio == {"median": 0.5, "low": 0.5, "high": 0.5}


def test_a_peer_that_tore_the_values_is_not_the_best():
    """The fastest peer does not count if its checkpoint held values of another moment."""
    turns = {"torch_save": [turn(1.0)], "torchsnapshot": [turn(0.1, documented="TORN 3 of 9")]}
    assert best_peer(turns, "delay") == "torch_save"


def test_ours_is_no_peer():
    """The best peer is looked for among the peers only."""
    assert best_peer({"ours_blocking_none": [turn(0.1)], "torch_save": [turn(1.0)]}, "delay") == "torch_save"


def test_an_error_in_any_round_is_the_result():
    """A contestant that failed once has no figures, but its error."""
    assert summarize({"lightning": [turn(1.0), {"error": "E: gone"}]})["lightning"] == {"error": "E: gone"}


def test_a_refused_direct_write_leaves_the_buffered_one_as_reference():
    """Where O_DIRECT is refused, the raw write is the buffered one."""
    assert summarize({"torch_save": [turn(1.0)]})["torch_save"]["complete_to_raw"]["median"] == 2.0


STEPS = {
    "all of it": ["write", "fsync", "rename", "fsync folder", "fsync root"],
    "file never synced": ["write", "rename", "fsync folder", "fsync root"],
    "written after the sync": ["write", "fsync", "write", "rename", "fsync folder", "fsync root"],
    "folder never synced": ["write", "fsync", "rename", "fsync root"],
    "folder synced too early": ["write", "fsync", "fsync folder", "rename", "fsync root"],
    "new folder not in its parent": ["write", "fsync", "rename", "fsync folder"],
}
EXPECTED = {
    "all of it": ("yes", "yes"), "file never synced": ("no", "yes"), "written after the sync": ("no", "yes"),
    "folder never synced": ("yes", "no: b"), "folder synced too early": ("yes", "no: b"),
    "new folder not in its parent": ("yes", "no: step"),
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_a_trace_tells_what_is_durable(tmp_path, case):
    """A file counts if it was synced after its last write, an entry if its directory was synced after it appeared."""
    folder = tmp_path / "step"
    folder.mkdir()
    (folder / "b").write_text("data")
    lines = {
        "write": f'7 write(3<{folder}/a>, "data", 4) = 4',
        "fsync": f"7 fsync(3<{folder}/a>) = 0",
        "rename": f'7 rename("{folder}/a", "{folder}/b") = 0',
        "fsync folder": f"8 fsync(4<{folder}>) = 0",
        "fsync root": f"8 fsync(4<{tmp_path}>) = 0",
    }
    log = [f'7 mkdir("{folder}", 0777) = 0', *(lines[step] for step in STEPS[case])]
    found = verdict(Trace(tmp_path, log), tmp_path)
    assert (found["data"], found["directory"]) == EXPECTED[case]
