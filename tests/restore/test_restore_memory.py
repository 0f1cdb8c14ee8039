"""How much memory a restore takes beside the state, measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
STATE = 192  # MiB

PROGRAM = """
import sys
import torch
import asyncckpt
from asyncckpt import AsyncCheckpointer

root, kind, compression = sys.argv[1:]


def state(fill):
    if kind == "small":
        return {f"t{i}": fill(1 << 10) for i in range(192 << 8)}
    return {f"t{i}": fill(6 << 20) for i in range(8)}


class Module(torch.nn.Module):
    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(tensor))


def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024


def since_now(call):
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    kept = call()
    return peak() - before


torch.manual_seed(0)
with AsyncCheckpointer(root + "/tiny") as ckpt:  # what is imported and allocated once
    ckpt.save(1, {"model": Module({"w": torch.ones(2 << 20)})}).result()
    ckpt.restore({"model": Module({"w": torch.zeros(2 << 20)})})
with AsyncCheckpointer(root + "/big", compression=compression) as ckpt:
    if kind == "small":
        ckpt.save(1, {"plain": state(torch.randn)}).result()
        print(since_now(lambda: asyncckpt.load(root + "/big")))
    else:
        ckpt.save(1, {"model": Module(state(torch.randn))}).result()
        module = Module(state(torch.ones))
        print(since_now(lambda: ckpt.restore({"model": module})))
        ckpt.close()
        print(since_now(lambda: asyncckpt.load(root + "/big")))
        reference = torch.manual_seed(0) and Module(state(torch.randn))
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), reference.parameters()))
"""


def growth(tmp_path, *args):
    """Peaks in MiB, as the program prints them."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("NOT TESTED: peaks are read from /proc")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *args]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return [float(line) for line in child.stdout.split()]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_no_second_copy_of_the_state(tmp_path, compression):
    """Restoring 192 MiB in place takes at most 64 MiB more at any moment; loading takes the state and as much."""
    in_place, loaded = growth(tmp_path, "large", compression)
    assert in_place < 64
    assert STATE * 0.9 < loaded < STATE + 64


def test_small_tensors_are_not_held_twice(tmp_path):
    """Loading 49,152 tensors of 4 KiB takes their bytes once, and what torch and python need for each of them."""
    (loaded,) = growth(tmp_path, "small", "none")
    assert loaded < STATE * 1.6
