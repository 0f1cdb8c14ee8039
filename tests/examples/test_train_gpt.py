"""The example script, run as people run it: killed and resumed, it ends like a run that was left alone."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = "--steps 20 --save-every 4 --eval-every 3 --print-every 1 --device cpu --corpus-bytes 50000"
TINY += " --layers 2 --width 32 --heads 2 --block 16 --batch 4 --layer-drop 0.3 --warmup 5"


def start(folder, *options):
    """The script in the background, its checkpoints in ``folder``."""
    command = [sys.executable, EXAMPLES / "train_gpt.py", *TINY.split(), "--root", folder, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    """What a run printed, once it has come to a good end."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def kill_after(process, step):
    """SIGKILL as soon as the run has printed a step."""
    with process:
        for line in process.stdout:
            if line.startswith(f"step {step:>6}:"):
                process.kill()
                return
    pytest.fail(f"the run never came to step {step}")


@pytest.fixture
def compare(monkeypatch):
    """The function of the examples that compares two states."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from bitwise import compare

    return compare


def test_killed_and_resumed_run_ends_bit_for_bit_like_an_undisturbed_one(tmp_path, compare):
    """Weights, optimizer, schedule, data position, losses and the next random draws are equal; so is a run again."""
    plain = start(tmp_path / "plain", "--save-every", "20", "--final", tmp_path / "plain.pt")
    killed = start(tmp_path / "killed")
    kill_after(killed, 14)  # two saves may be in flight, those of steps 8 and 12; that of step 4 is durable
    finish(plain)
    again = start(tmp_path / "plain", "--final", tmp_path / "again.pt")
    resumed = start(tmp_path / "killed", "--final", tmp_path / "resumed.pt")
    assert "nothing left to train" in finish(again)
    assert "resumed from step" in finish(resumed)

    ends = [torch.load(tmp_path / f"{name}.pt") for name in ("plain", "resumed", "again")]
    assert len(ends[0]["losses"]) == 20
    assert compare(ends[0], ends[1]).difference is None
    assert compare(ends[0], ends[2]).difference is None


def test_help_names_the_options():
    """``--help`` works and tells what can be set."""
    command = [sys.executable, EXAMPLES / "train_gpt.py", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(option in shown for option in ("--steps", "--save-every", "--root", "--device", "--seed"))


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        ({"a": [1.0, 0.0]}, {"a": [1.0, -0.0]}, "state['a'][1]"),
        ({"a": torch.zeros(3)}, {"a": torch.tensor([0.0, 0.0, -0.0])}, "state['a'] (torch.float32 tensor"),
        ({"a": torch.zeros(3)}, {"a": torch.zeros(1, 3)}, "shape (1, 3)"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "keys ['b', 'a']"),
        ([1, 2], [1, 2.0], "state[1] is a int against a float"),
        ([1], (1,), "list of length 1"),
    ],
)
def test_first_difference_is_named(compare, left, right, named):
    """A single bit, a shape, an order of keys or a type that differs is found, with its place."""
    assert named in compare(left, right).difference


def test_equal_states_have_no_difference(compare):
    """NaN equals the same NaN, and what was compared is counted."""
    verdict = compare(*({"x": torch.tensor([float("nan"), 1.0]), "y": float("nan")} for _ in range(2)))
    assert verdict == (None, 1, 16)
