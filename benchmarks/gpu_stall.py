"""What a save costs a training loop on one accelerator, for asyncckpt and its peers.

    python -m benchmarks.gpu_stall [--device auto|cpu|fake|cuda:1] [--gigabytes 1 10] [--step-ms 100] [--minutes 5.5]
                                   [--contestants NAME ...] [--folder DIR] [--json FILE] [--png FILE]

Each contestant has a process of its own for each size of state: an fp32 AdamW model of 1,000 tensors, whose steps are
filled up with matrix products to ``--step-ms``. In it, in this order: its very first save (nothing allocated or pinned
yet), the first save after its own warmup, then windows of steps without and with a save in turn. A window with a save
lasts until the save is complete. Steps are timed by device events; without such, by the host after the stream is done.

"fake" is the pretend accelerator of the tests: for trying this script, its times mean nothing.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import LABELS, NAMES, contestant
from benchmarks.peers.base import Contestant
from benchmarks.workloads import Layers, Live

CONTESTANTS = (
    "ours_overlapped_none", "ours_blocking_none", "ours_overlapped_zstd",
    "torch_save", "dcp_typed", "dcp_strong_1", "torch_checkpointing",
)  # fmt: skip
LAYERS = 333  # with Adam's two moments about 1,000 tensors, and 333 step counters
_CONTEXT = multiprocessing.get_context("forkserver")


def main() -> None:
    options = arguments()
    _CONTEXT.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "benchmarks.gpu_stall"])
    folder = Path(tempfile.mkdtemp(prefix="gpu-stall-", dir=options.folder))
    try:
        sizes = {f"{size:g}": run_size(size, options, folder) for size in options.gigabytes}
    finally:
        shutil.rmtree(folder)
    result = {"machine": machine(options.device), "options": shown(options), "gigabytes": sizes}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.png:
        from benchmarks.gpu_stall_plot import draw

        draw(result, options.png)
    print(table(result))


# ---- what is asked for ---------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="auto", help="auto takes the accelerator if there is one, else cpu")
    parser.add_argument("--gigabytes", type=float, nargs="+", help="of state; default 1 10, on cpu and fake 0.05")
    parser.add_argument("--step-ms", type=float, help="length of a training step; default 100, on cpu and fake 30")
    parser.add_argument("--steps", type=int, default=20, help="of a window without a save, and least with one")
    parser.add_argument("--repeats", type=int, default=5, help="most windows with a save per contestant and size")
    parser.add_argument("--minutes", type=float, default=5.5, help="for everything; less time, fewer repeats")
    parser.add_argument("--contestants", nargs="+", choices=NAMES, default=list(CONTESTANTS))
    parser.add_argument("--folder", help="where to write (default: the temporary directory)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    if options.device == "auto":
        options.device = str(torch.accelerator.current_accelerator() or "cpu")
    pretended = options.device.split(":")[0] in {"cpu", "fake"}
    options.gigabytes = options.gigabytes or ([0.05] if pretended else [1.0, 10.0])
    options.step_ms = options.step_ms or (30.0 if pretended else 100.0)
    options.deadline = time.monotonic() + 60 * options.minutes
    return options


def shown(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("device", "step_ms", "steps", "repeats", "minutes")}


def machine(device: str) -> str:
    module = getattr(torch, device.split(":")[0], None)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device
    cores = len(os.sched_getaffinity(0))
    return f"{name}, {platform.machine()}, {cores} cores, python {platform.python_version()}, torch {torch.__version__}"


# ---- processes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What one contestant's process is told; ``seconds`` is its share of the time left."""

    name: str
    device: str
    gigabytes: float
    step_ms: float
    steps: int
    repeats: int
    seconds: float
    folder: Path


def run_size(gigabytes: float, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One turn of every contestant; the time left is shared among those to come, by bytes."""
    turns = {}
    for number, name in enumerate(options.contestants):
        bigger = sum(size for size in options.gigabytes if size > gigabytes) * len(options.contestants)
        share = gigabytes / (bigger + gigabytes * (len(options.contestants) - number))
        seconds = max(1.0, share * (options.deadline - time.monotonic()))
        order = Order(
            name, options.device, gigabytes, options.step_ms, options.steps, options.repeats, seconds, folder
        )
        turns[name] = launch(order, limit=max(60.0, 3 * seconds))
        print(f"{gigabytes:g} GB, {LABELS[name]}: {turns[name].get('error', 'done')}", file=sys.stderr, flush=True)
    return turns


def launch(order: Order, limit: float) -> dict[str, Any]:
    """The turn's figures, or ``{"error": why}``."""
    receiving, sending = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_child, args=(order, sending))
    process.start()
    sending.close()
    try:
        return receiving.recv() if receiving.poll(limit) else {"error": f"not done after {limit:.0f} s"}
    except EOFError:
        process.join()
        return {"error": f"its process ended with exit code {process.exitcode}"}
    finally:
        process.join(5)
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: what this turn started, and nothing else
        except ProcessLookupError:
            pass
        process.join()


def _child(order: Order, sending: Any) -> None:
    os.setsid()
    try:
        result = run_turn(order)
    except NotImplementedError as error:
        result = {"error": f"not available ({error})"}
    except ImportError as error:
        result = {"error": f"not installed ({error})"}
    except BaseException as error:  # whatever a peer throws is a result
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    sending.send(result)


# ---- the device ----------------------------------------------------------------------------------------------------


def open_device(name: str) -> torch.device:
    """Ready for use, with one thread where the processor does the work."""
    kind = name.split(":")[0]
    if kind == "fake":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fake_accelerator"))
        import fake_accelerator

        fake_accelerator.set_copy_time(0.3)  # nanoseconds per byte, so that copies are late
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
            return [later - earlier for earlier, later in zip(marks, marks[1:], strict=False)]
        torch.accelerator.synchronize()
        return [earlier.elapsed_time(later) / 1000 for earlier, later in zip(marks, marks[1:], strict=False)]

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
    live = build(order.gigabytes, device)
    make = partial(contestant(order.name), live=live)
    loop = Loop(live, Clock(device), order, device)
    figures = {"bytes": live.nbytes(), "clock": "device events" if loop.clock.events else "host"}
    figures |= {"first_cold": first_save(loop, make(order.folder / f"{order.name}-cold"), warm=False)}
    peer = make(order.folder / order.name)
    figures |= {"first_warm": first_save(loop, peer, warm=True, close=False)}
    loop.repeat(order.repeats, started + order.seconds)
    figures |= loop.figures | copy_rates(loop, live)
    loop.close()
    return figures


def build(gigabytes: float, device: torch.device) -> Live:
    """A model that has been trained for a few steps, so that its moments exist."""
    torch.manual_seed(0)
    width = int((gigabytes * 1e9 / 12 / LAYERS) ** 0.5)
    with device:
        model, data, target = Layers(width, LAYERS), torch.randn(32, width), torch.randn(32, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    live = Live(model, optimizer, lambda: (model(data) - target).square().mean())
    for _ in range(2):
        live.forward_backward()
        optimizer.step()
    return live


def first_save(loop: "Loop", peer: Contestant, *, warm: bool, close: bool = True) -> float:
    """Host seconds in the first call of ``save``."""
    loop.peer = peer
    if warm:
        peer.warm()
    seconds = loop.save_alone()
    if close:
        loop.close()
    return seconds


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
        self.peer = Contestant(order.folder, live)
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

    def save_alone(self) -> float:
        host = self._save()
        self.peer.finish()
        self.forget_older()
        return host

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


class Waiter(threading.Thread):
    """Waits for a save beside the loop, and notes when it was complete."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._finish, self.ended, self._error = finish, 0.0, None
        self.start()
