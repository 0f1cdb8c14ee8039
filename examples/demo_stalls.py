"""How long saving keeps a training loop waiting, measured on one and the same state in alternation."""

import os
import time
from pathlib import Path
from typing import Any

import torch

from asyncckpt import AsyncCheckpointer, KeepLast

ROUNDS = 9


def measure(state_file: Path, folder: Path) -> tuple[list[float], list[float], list[float]]:
    """Seconds of ``save()``, seconds until durable, seconds of torch.save + fsync + rename: one per round."""
    torch.set_num_threads(1)  # as in the training runs: the other core is for the writer
    state = torch.load(state_file, weights_only=True)
    del state["next_draws"]
    folder.mkdir(parents=True)
    with AsyncCheckpointer(folder / "ours", keep=KeepLast(1)) as checkpoints:
        rounds = [one_round(checkpoints, number, state, folder / "theirs.pt") for number in range(ROUNDS + 1)]
    stalls, durable, plain = zip(*rounds[1:], strict=True)  # the first one allocates
    return list(stalls), list(durable), list(plain)


def one_round(checkpoints: AsyncCheckpointer, number: int, state: Any, file: Path) -> tuple[float, float, float]:
    """Both ways once, with nothing going on besides."""
    began = time.perf_counter()
    checkpoints.save(number, state)
    stalled = time.perf_counter() - began
    checkpoints.wait()
    durable = time.perf_counter() - began
    began = time.perf_counter()
    save_plainly(state, file)
    return stalled, durable, time.perf_counter() - began


def save_plainly(state: Any, file: Path) -> None:
    """What people write who want torch.save to survive a crash."""
    temporary = file.with_suffix(".tmp")
    with temporary.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
