"""The comparison with peers runs from end to end, at a tiny size, with what is installed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.machine import machine
from benchmarks.report import text
from benchmarks.summary import summarize
from benchmarks.turn import TurnOrder, run_turn

HERE = ("torch_save", "ours_blocking_none")
FIGURES = ("stall", "delay", "cpu", "complete", "first_stall", "first_delay", "stored", "peak", "load")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The figures of two contestants on a small state, measured in this process."""
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("turns")
    try:
        turns = {name: [_turn(name, folder)] for name in HERE}
    finally:
        torch.set_num_threads(threads)
    assert not list(folder.iterdir()), "what the contestants wrote is to be gone"
    return summarize(turns)


def _turn(name, folder):
    order = TurnOrder(name, "huge", 2, folder, seconds=0.01, repeats=1, threads=1, check=True)
    return {key: value for stage in run_turn(order) for key, value in stage.items()}


@pytest.mark.parametrize("name", HERE)
def test_every_contestant_gets_all_its_figures(rows, name):
    """A contestant that runs has every figure of the table, and its values are those of the call."""
    for figure in FIGURES:
        assert rows[name][figure]["low"] <= rows[name][figure]["median"] <= rows[name][figure]["high"], figure
    assert rows[name]["stored"]["median"] >= 0.9 * rows[name]["state_bytes"]["median"]
    assert rows[name]["values"] == {"documented": "kept", "careless": "kept"}


def test_the_report_names_all_with_figures_or_errors(rows, tmp_path):
    """Nobody is dropped silently: a contestant is in the table, or below it with what went wrong."""
    all_ = rows | {"lightning": {"error": "not installed: lightning"}}
    report = text({"machine": machine(tmp_path), "options": {}, "durable": {}, "workloads": {"adam": all_}})
    assert "Lightning AsyncCheckpointIO: not installed: lightning" in report
    assert "asyncckpt blocking, none" in report


@pytest.mark.slow
def test_the_command_writes_table_json_and_picture(tmp_path):
    """The whole command, each turn in its own process, also with peers that are not installed."""
    small = ["--quick", "--megabytes", "2", "--window", "0.01", "--contestants", *HERE, "dcp_strong_1", "lightning"]
    files = ["--folder", str(tmp_path), "--json", str(tmp_path / "c.json"), "--png", str(tmp_path / "c.png")]
    command = [sys.executable, "-m", "benchmarks.compare", *small, *files]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "c.json").read_text())["workloads"]["adam"]
    assert all("error" not in found[name] for name in (*HERE, "dcp_strong_1"))
    assert importlib.util.find_spec("lightning") or found["lightning"]["error"].startswith("not installed")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "c.png"]
