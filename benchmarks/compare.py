"""asyncckpt beside its peers, in one table: what a save costs the training loop, and what a checkpoint is worth.

    python -m benchmarks.compare [--quick] [--workload adam ...] [--contestants torch_save ...] [--rounds 3]
                                 [--megabytes 300] [--json FILE] [--png FILE] [--folder DIR]

Every round gives each contestant one turn in a fresh process (turn.py); a turn alternates windows of the training loop
without and with a save. Figures are medians over all turns, ratios medians over rounds of the ratio within a round.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.durability import by_source, durability
from benchmarks.launch import launch
from benchmarks.machine import machine
from benchmarks.peers import LABELS, NAMES, OURS
from benchmarks.report import report
from benchmarks.summary import summarize
from benchmarks.turn import TurnOrder
from benchmarks.workloads import WORKLOADS, prepare

ONE_OF_EACH = ("torch_save", "safetensors", "torchsnapshot", "dcp_strong_1", "torch_checkpointing", *OURS)
CAPPED = ("torch_save", "dcp_strong_1", "torch_checkpointing", *OURS)  # the cap is ours; peers as they are
SHORTER = {"tiny": ONE_OF_EACH, "python": ONE_OF_EACH, "capped": CAPPED}  # these take peers minutes; the report says so


def main() -> None:
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="compare-", dir=options.folder))
    try:
        result = {"machine": machine(folder), "options": shown(options)}
        result["durable"] = {name: watched(name, folder, quick=options.quick) for name in options.contestants}
        result["workloads"] = {name: run_workload(name, options, folder) for name in options.workload}
    finally:
        shutil.rmtree(folder)
    report(result, options.json, options.png)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, help="default: all; with --quick: adam")
    parser.add_argument("--contestants", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--rounds", type=int, help="turns of each contestant per workload")
    parser.add_argument("--megabytes", type=int, help="of state, for the workloads adam, huge and capped")
    parser.add_argument("--repeats", type=int, help="saves per turn, after the first")
    parser.add_argument("--window", type=float, help="least seconds of training per window")
    parser.add_argument("--threads", type=int, default=1, help="of torch in the training loop")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds after which a turn is given up")
    parser.add_argument("--quick", action="store_true", help="smaller, fewer: a look in under four minutes")
    parser.add_argument("--folder", help="where to write (default: the temporary directory)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    return with_defaults(parser.parse_args())


def with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Sizes of a full run, or of a quick one, for what was not given."""
    defaults = {"rounds": 1, "megabytes": 60, "repeats": 1, "window": 0.5, "workload": ["adam"]} if options.quick else {
        "rounds": 2, "megabytes": 300, "repeats": 3, "window": 1.5, "workload": list(WORKLOADS)
    }  # fmt: skip
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def watched(name: str, folder: Path, *, quick: bool) -> dict[str, str]:
    if quick:
        return by_source(name)
    say(f"watching a save of {LABELS[name]}")
    return durability(name, folder)


def shown(options: argparse.Namespace) -> dict[str, Any]:
    names = ("rounds", "megabytes", "repeats", "window", "threads", "limit")
    return {name: getattr(options, name) for name in names}


def run_workload(workload: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All rounds of one workload, summarized."""
    say(f"{workload}: preparing")
    prepare(workload, folder)
    names = [name for name in options.contestants if name in SHORTER.get(workload, NAMES)]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds_of(workload, options)):
        for name in random.Random(number).sample(names, len(names)):
            if not any("error" in turn for turn in turns[name]):
                turns[name].append(one_turn(name, workload, number, options, folder))
    left_out = {name: {"error": "not run on this workload"} for name in options.contestants if name not in names}
    return summarize(turns) | left_out


def rounds_of(workload: str, options: argparse.Namespace) -> int:
    """The Adam workload is the one that is judged; the others show that nothing else is paid for it."""
    return options.rounds if workload == "adam" else 1


def one_turn(name: str, workload: str, number: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    order = TurnOrder(
        name=name,
        workload=workload,
        megabytes=options.megabytes,
        folder=folder,
        seconds=options.window,
        repeats=0 if workload == "tiny" else options.repeats,
        threads=options.threads,
        check=number == 0,
    )
    started = time.perf_counter()
    turn = launch(order, options.limit)
    say(f"{workload}, round {number + 1}: {LABELS[name]}, {time.perf_counter() - started:.0f} s", turn.get("error", ""))
    return turn


def say(*words: str) -> None:
    print(*words, file=sys.stderr, flush=True)


# Idle threads of a pool must not count as work; and memory that a contestant frees stays with its process, touched, for
# its next save: allocating in every save is then cheaper than on most machines, which favours those who do it.
SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 30),
}

if __name__ == "__main__":
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    main()
