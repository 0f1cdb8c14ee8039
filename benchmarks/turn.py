"""One turn of one contestant: everything measured in one fresh process, windows with and without saves in turn.

Order: build and warm the training; open and warm the contestant; its first save; then windows of the same number of
steps without, with, without, with ... a save; then saves with nothing else running, each beside raw writes of the same
bytes; then memory, size, values and reading back. A window with a save lasts until the save is complete. Old
checkpoints are removed between windows, outside of every clock.
"""

import contextlib
import os
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.measure import measured
from benchmarks.peers import contestant
from benchmarks.peers.base import Contestant
from benchmarks.references import References
from benchmarks.values import check_values
from benchmarks.workloads import Live, build


@dataclass(frozen=True)
class TurnOrder:
    """What a turn is told.

    Attributes:
        seconds: least length of a window.
        repeats: windows with a save, after the first; 0: the first one stands for all.
        check: also check the values, as documented and without any care.
    """

    name: str
    workload: str
    megabytes: int
    folder: Path
    seconds: float
    repeats: int
    threads: int
    check: bool


def run_turn(order: TurnOrder) -> Iterator[dict[str, Any]]:
    """All figures of one turn, in seconds and bytes, stage by stage."""
    make = contestant(order.name)  # a peer that is not installed is found out first
    torch.set_num_threads(order.threads)
    live = build(order.workload, order.megabytes, order.folder)
    root = order.folder / f"{order.name}-{os.getpid()}"
    loop = Loop(live, Contestant(root, live))
    loop.steps_for(order.seconds)
    measure.reset_peak()
    loop.window()
    before = measure.peak_memory()
    peer = loop.peer = make(root, live)
    try:
        peer.warm()
        yield {"state_bytes": live.nbytes(), "step": loop.step_seconds, "steps": loop.steps}
        yield windows(loop, order.repeats)
        yield {"peak": measure.peak_memory() - before, "stored": measure.size_on_disk(peer.place(loop.saves))}
        yield alone(loop, max(1, order.repeats))
        yield check_values(loop, thorough=order.check)
    finally:
        with contextlib.suppress(Exception):  # a contestant whose save failed may fail again; that is recorded already
            peer.close()
        shutil.rmtree(root, ignore_errors=True)


class Loop:
    """The training loop around a contestant."""

    def __init__(self, live: Live, peer: Contestant) -> None:
        self.live, self.peer = live, peer
        self.steps, self.step_seconds, self.saves = 1, 0.0, 0

    def steps_for(self, seconds: float) -> None:
        """Find out how many steps a window of this length has."""
        times = []
        for _ in range(3):
            with measured() as spent:
                self.one_step()
            times.append(spent.wall)
        self.step_seconds = statistics.median(times)
        self.steps = max(2, round(seconds / self.step_seconds))

    def one_step(self) -> None:
        self.live.forward_backward()
        self.update()

    def update(self) -> None:
        """Write to the state, as the contestant's documentation asks."""
        self.peer.before_update()
        with self.peer.updating():
            self.live.optimizer.step()

    def window(self) -> Any:
        """Steps without a save."""
        with measured() as spent:
            for _ in range(self.steps):
                self.one_step()
        return spent

    def window_with_save(self) -> tuple[float, Any]:
        """The call's seconds, and a window with a save from call to completion."""
        with measured() as spent:
            call = self.save()
            for _ in range(self.steps):
                self.one_step()
            self.peer.finish()
        self.forget_older()
        return call, spent

    def save(self) -> float:
        self.saves += 1
        with measured() as call:
            self.peer.save(self.saves)
        return call.wall

    def forget_older(self) -> None:
        for step in range(self.saves):
            path = self.peer.place(step)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def windows(loop: Loop, repeats: int) -> dict[str, Any]:
    """Stall, delay and extra processor time: of the first save, and of the others."""
    without, calls, with_save = [loop.window()], [], []
    for _ in range(repeats + 1):
        call, spent = loop.window_with_save()
        calls.append(call)
        with_save.append(spent)
        without.append(loop.window())
    pairs = list(zip(with_save, without, without[1:], strict=False))
    delays = [spent.wall - (a.wall + b.wall) / 2 for spent, a, b in pairs]
    extra = [spent.cpu - (a.cpu + b.cpu) / 2 for spent, a, b in pairs]
    later = slice(min(1, repeats), None)
    return {
        "first_stall": calls[0],
        "first_delay": delays[0],
        "stall": calls[later],
        "delay": delays[later],
        "cpu": extra[later],
        "window": [spent.wall for spent in without],
    }


def alone(loop: Loop, repeats: int) -> dict[str, Any]:
    """Saves with nothing beside them, each between raw operations on the same bytes."""
    references = References(loop.peer.root, loop.live.tensors())
    rows = []
    for _ in range(repeats):
        row = {"copy": references.copy(), "raw_direct": references.write(direct=True)}
        with measured() as spent:
            row["alone_call"] = loop.save()
            loop.peer.finish()
        row |= {"complete": spent.wall, "alone_cpu": spent.cpu, "raw_buffered": references.write(direct=False)}
        loop.forget_older()
        rows.append(row)
    result: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
    result["raw_read"] = references.read()
    references.close()
    return result
