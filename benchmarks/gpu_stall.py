"""What a save costs a training loop on one accelerator, for asyncckpt and its peers.

    python -m benchmarks.gpu_stall [--device auto|cpu|fake|cuda:1] [--gigabytes 1 10] [--step-ms 100] [--minutes 5.5]
                                   [--contestants NAME ...] [--folder DIR] [--json FILE] [--png FILE]

Each contestant has a process of its own for each size of state: an fp32 AdamW model of 1,000 tensors (100 on cpu and
fake), whose steps are filled up with matrix products to ``--step-ms``. In it, in this order: its very first save
(nothing allocated or pinned yet), the first save after its own warmup, then windows of steps without and with a save in
turn. A window with a save lasts until the save is complete. Steps are timed by device events; without such, by the host
after the stream is done.

"fake" is the pretend accelerator of the tests: for trying this script, its times mean nothing.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_report import draw, table
from benchmarks.gpu_turn import Order, run_turn
from benchmarks.peers import LABELS, NAMES

CONTESTANTS = (
    "ours_overlapped_none", "ours_blocking_none", "ours_overlapped_zstd",
    "torch_save", "dcp_typed", "dcp_strong_1", "torch_checkpointing",
)  # fmt: skip
_CONTEXT = multiprocessing.get_context("forkserver")


def main() -> None:
    options = arguments()
    _CONTEXT.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "benchmarks.gpu_turn"])
    folder = Path(tempfile.mkdtemp(prefix="gpu-stall-", dir=options.folder))
    try:
        sizes = {f"{size:g}": run_size(size, options, folder) for size in options.gigabytes}
    finally:
        shutil.rmtree(folder)
    result = {"machine": machine(options.device), "options": shown(options), "gigabytes": sizes}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.png:
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
    pretended = options.device.split(":", 1)[0] in {"cpu", "fake"}
    options.gigabytes = options.gigabytes or ([0.05] if pretended else [1.0, 10.0])
    options.step_ms = options.step_ms or (30.0 if pretended else 100.0)
    options.layers = 33 if pretended else 333  # with Adam's two moments a hundred tensors, or a thousand
    options.deadline = time.monotonic() + 60 * options.minutes
    return options


def shown(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("device", "layers", "step_ms", "steps", "repeats", "minutes")}


def machine(device: str) -> str:
    module = getattr(torch, device.split(":", 1)[0], None)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device
    cores = len(os.sched_getaffinity(0))
    return f"{name}, {platform.machine()}, {cores} cores, python {platform.python_version()}, torch {torch.__version__}"


# ---- processes -----------------------------------------------------------------------------------------------------


def run_size(gigabytes: float, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One turn of every contestant; the time left is shared among those to come, by bytes."""
    turns = {}
    for number, name in enumerate(options.contestants):
        bigger = sum(size for size in options.gigabytes if size > gigabytes) * len(options.contestants)
        share = gigabytes / (bigger + gigabytes * (len(options.contestants) - number))
        seconds = max(1.0, share * (options.deadline - time.monotonic()))
        given = {key: getattr(options, key) for key in ("device", "layers", "step_ms", "steps", "repeats")}
        order = Order(name=name, gigabytes=gigabytes, seconds=seconds, folder=folder, **given)
        late = time.monotonic() > options.deadline
        turns[name] = {"error": "no time left"} if late else launch(order, limit=max(90.0, 3 * seconds))
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: what this turn started, and nothing else
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


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of a pool must not count as work
    main()
