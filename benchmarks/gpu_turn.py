"""One contestant's turn of gpu_stall.py: the device, the clock, the training loop, and what is measured in it."""

import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from asyncckpt import PendingSave
from benchmarks.peers import contestant
from benchmarks.peers.base import Contestant
from benchmarks.workloads import Layers, Live


@dataclass(frozen=True)
class Order:
    """What one contestant's process is told.

    Attributes:
        layers: a third of the number of tensors.
        steps: of a window without a save, and the least of one with a save.
        repeats: most windows with a save.
        seconds: its share of the time that is left.
    """

    name: str
    device: str
    gigabytes: float
    layers: int
    step_ms: float
    steps: int
    repeats: int
    seconds: float
    folder: Path


# ---- the device ----------------------------------------------------------------------------------------------------


def open_device(name: str) -> torch.device:
    """Ready for use, with one thread where the processor does the work."""
    kind = name.split(":", 1)[0]
    if kind == "fake":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fake_accelerator"))
        import fake_accelerator

        fake_accelerator.set_copy_time(0.05)  # nanoseconds per byte, so that copies are late
    if kind in {"cpu", "fake"}:
        torch.set_num_threads(1)
    device = torch.device(name)
    if kind != "cpu":
        torch.accelerator.set_device_index(device.index or 0)
    return device


class Clock:
    """Moments in the order of the device's work, and seconds between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.events = device.type != "cpu" and self._has_timing()

    def mark(self) -> Any:
        """Now, as the current stream sees it."""
        if not self.events:
            self._stream_done()
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def seconds(self, marks: list[Any]) -> list[float]:
        """Between neighbours. Waits for the device."""
        if not self.events:
            return [later - earlier for earlier, later in pairwise(marks)]
        torch.accelerator.synchronize()
        return [earlier.elapsed_time(later) / 1000 for earlier, later in pairwise(marks)]

    def time(self, work: Callable[[], object]) -> float:
        before = self.mark()
        work()
        return self.seconds([before, self.mark()])[0]

    def _stream_done(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.current_stream().synchronize()

    def _has_timing(self) -> bool:
        try:
            first, second = (torch.Event(self._device, enable_timing=True) for _ in range(2))
            first.record()
            second.record()
            torch.accelerator.synchronize()
            return first.elapsed_time(second) >= 0
        except (RuntimeError, NotImplementedError):
            return False


# ---- one contestant ------------------------------------------------------------------------------------------------


def run_turn(order: Order) -> dict[str, Any]:
    """All figures of one contestant with one size of state: seconds and bytes."""
    started = time.monotonic()
    device = open_device(order.device)
    live = build(order.gigabytes, order.layers, device)
    make = partial(strongest(order.name, device), live=live)
    loop = Loop(live, Clock(device), order, device)
    figures = {"bytes": live.nbytes(), "clock": "device events" if loop.clock.events else "host"}
    figures |= first_saves(loop, lambda kind: make(order.folder / f"{order.name}-{kind}"))
    figures["plain"] = PlainCopy(live.tensors()).seconds()
    loop.repeat(order.repeats, started + order.seconds)
    loop.close()
    return figures | loop.figures


def first_saves(loop: "Loop", make: Callable[[str], Contestant]) -> dict[str, Any]:
    """Of a contestant with nothing prepared, then of one that has been warmed, if it offers that."""
    cold = make("cold")
    figures = {"first_cold": first_save(loop, cold, warm=False)[0], "first_warm": None, "captured": None}
    if type(cold).warm is not Contestant.warm:
        figures["first_warm"], figures["captured"] = first_save(loop, make("warm"), warm=True)
    return figures


def strongest(name: str, device: torch.device) -> Callable[..., Contestant]:
    """The contestant; DCP's kept stager with pinned memory and its own stream where the device has them."""
    make = contestant(name)
    if not name.startswith("dcp_strong") or device.type in {"cpu", "fake"}:
        return make

    def pinned(*args: Any, **keywords: Any) -> Contestant:
        peer = make(*args, **keywords)
        peer._stager.close()  # noqa: SLF001
        peer._stager = DefaultStager(StagingOptions(True, True, True, True))  # noqa: SLF001
        return peer

    return pinned


def build(gigabytes: float, layers: int, device: torch.device) -> Live:
    """A model that has been trained for a few steps, so that its moments exist."""
    torch.manual_seed(0)
    width = int((gigabytes * 1e9 / 12 / layers) ** 0.5)
    with device:
        model, data, target = Layers(width, layers), torch.randn(32, width), torch.randn(32, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    live = Live(model, optimizer, lambda: (model(data) - target).square().mean())
    for _ in range(2):
        live.forward_backward()
        optimizer.step()
    return live


def first_save(loop: "Loop", peer: Contestant, *, warm: bool) -> tuple[float, float | None]:
    """Host seconds in a contestant's first call of ``save``, and until captured. It takes the last one's place."""
    loop.close()
    loop.peer = peer
    if warm:
        peer.warm()
    return loop.save_alone()


class Filler:
    """Matrix products that make a step as long as it should be."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type not in {"cpu", "fake"}
        self._matrix = torch.eye(4096 if on_gpu else 256, dtype=torch.bfloat16 if on_gpu else None, device=device)
        self.count = 0

    def run(self, count: int | None = None) -> None:
        for _ in range(self.count if count is None else count):
            self._matrix = self._matrix @ self._matrix


class Loop:
    """The training loop around a contestant, and what was measured in it."""

    def __init__(self, live: Live, clock: Clock, order: Order, device: torch.device) -> None:
        self.live, self.clock, self._steps, self.saves = live, clock, order.steps, 0
        self.peer = Contestant(order.folder / f"{order.name}-none", live)
        self._filler = Filler(device)
        self._tune(order.step_ms / 1000)
        self.figures: dict[str, list[Any]] = {"without": [], "with": [], "host": [], "stall": [], "complete": []}

    def _tune(self, seconds: float) -> None:
        self.one_step()
        plain = statistics.median(self.clock.time(self.one_step) for _ in range(3))
        self._filler.run(10)
        product = self.clock.time(lambda: self._filler.run(20)) / 20
        self._filler.count = max(0, round((seconds - plain) / product))

    def one_step(self) -> None:
        """Forward, backward, update as the contestant asks; the loss is read, as most loops do."""
        self.live.optimizer.zero_grad()
        self._filler.run()
        loss = self.live.loss()
        loss.backward()
        self.peer.before_update()
        with self.peer.updating():
            self.live.optimizer.step()
        loss.item()

    def repeat(self, repeats: int, until: float) -> None:
        """Windows without and with a save in turn, at least one of each."""
        self.window()
        for number in range(repeats):
            began = time.monotonic()
            self.window_with_save()
            self.window()
            if number + 1 < repeats and time.monotonic() + (time.monotonic() - began) > until:
                break

    def window(self) -> None:
        marks = [self.clock.mark()]
        for _ in range(self._steps):
            self.one_step()
            marks.append(self.clock.mark())
        self.figures["without"].append(self.clock.seconds(marks))

    def window_with_save(self) -> None:
        """The first step's time includes the call."""
        marks, began = [self.clock.mark()], time.perf_counter()
        host = self._save()
        called = self.clock.mark()
        waiter = Waiter(self.peer.finish)
        while waiter.is_alive() or len(marks) <= self._steps:
            self.one_step()
            marks.append(self.clock.mark())
        waiter.check()
        self.figures["with"].append(self.clock.seconds(marks))
        self.figures["stall"] += self.clock.seconds([marks[0], called])
        self.figures["host"].append(host)
        self.figures["complete"].append(waiter.ended - began)
        self.forget_older()

    def save_alone(self) -> tuple[float, float | None]:
        """With nothing beside it: host seconds, and asyncckpt's until all bytes are in host memory."""
        began = time.perf_counter()
        host, captured = self._save(), None
        handle = getattr(self.peer, "_handle", None)
        if isinstance(handle, PendingSave):
            handle.wait_captured()
            captured = time.perf_counter() - began
        self.peer.finish()
        self.forget_older()
        return host, captured

    def _save(self) -> float:
        self.saves += 1
        began = time.perf_counter()
        self.peer.save(self.saves)
        return time.perf_counter() - began

    def forget_older(self) -> None:
        for path in (self.peer.place(step) for step in range(self.saves)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def close(self) -> None:
        self.peer.close()
        shutil.rmtree(self.peer.root)
        self.saves = 0


class Waiter(threading.Thread):
    """Waits for a save beside the loop, and notes when it was complete."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._finish, self.ended, self._error = finish, 0.0, None
        self.start()

    def run(self) -> None:
        try:
            self._finish()
        except BaseException as error:  # raised again in the loop's thread
            self._error = error
        self.ended = time.perf_counter()

    def check(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


class PlainCopy:
    """Every tensor into a pinned twin of its own (pageable on the cpu), enqueued together: what the device can do."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._on_device = tensors[0].device.type != "cpu"
        self._pairs = [(torch.zeros_like(t, device="cpu", pin_memory=self._on_device), t) for t in tensors]
        self.seconds()

    def seconds(self) -> float:
        self._wait()
        began = time.perf_counter()
        for target, source in self._pairs:
            target.copy_(source, non_blocking=True)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self._on_device:
            torch.accelerator.synchronize()
