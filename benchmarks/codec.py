"""The zstd codec against ZipNN, plain zstd, blosc2 and a copy, on the state of a really trained model, on one core.

    python -m benchmarks.codec [--rounds 9] [--steps 150] [--json FILE] [--png FILE]

Each round codes and decodes all with every contestant, one after the other, and compares what comes back: in frames of
4 MiB, and with ZipNN also in one piece, as it is used on the tensors of a model file. Figures are processor time of the
process, which runs on one core: allocations are included, and our checksums. Each peer is set as is best for it (see
``codec_peers``). A rate is the median over rounds, a ratio to another contestant the median over rounds of the ratio
within a round. A copy goes into touched memory. ZipNN and blosc2 are left out where they are not installed.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.codec_peers import available
from benchmarks.codec_states import trained_states
from benchmarks.machine import machine

FRAME = 4 << 20


def main() -> None:
    options = arguments()
    states = trained_states(options.steps)
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    rows = {name: measure(data, kind, options.rounds) for name, (data, kind) in states.items()}
    result = {"machine": machine(Path.cwd()), "rounds": options.rounds, "steps": options.steps, "states": rows}
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.png:
        draw(result, options.png)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=150, help="of training")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


# ---- measuring -----------------------------------------------------------------------------------------------------


def measure(data: Any, kind: str, rounds: int) -> dict[str, Any]:
    """Figures of every contestant on one state."""
    frames = [memoryview(data[at : at + FRAME]) for at in range(0, len(data), FRAME)]
    whole = [memoryview(data)]
    target = memoryview(np.zeros(len(data), np.uint8))
    codecs = available(kind)
    rows = []
    for _ in range(rounds + 1):  # the first one warms up
        row: dict[str, Any] = {
            name: once(codec, whole if codec.whole else frames, kind, target) for name, codec in codecs.items()
        }
        row["copy"] = copied(frames, target)
        rows.append(row)
    return {name: figures(rows[1:], name, len(data)) for name in codecs} | {"megabytes": len(data) / 1e6}


def once(codec: Any, frames: list[memoryview], kind: str, target: memoryview) -> dict[str, float]:
    encode, decode, stored_bytes = 0.0, 0.0, 0
    for frame in frames:
        prepared = codec.prepare(frame, kind)
        started = time.process_time()
        coded = codec.encode(prepared, kind)
        encode += time.process_time() - started
        stored_bytes += codec.size(coded)
        received = codec.received(coded)
        started = time.process_time()
        back = codec.decode(received, kind, target[: len(frame)])
        decode += time.process_time() - started
        if back != frame:
            raise ValueError(f"{codec.label} gives back other bytes")
    return {"encode": encode, "decode": decode, "stored": stored_bytes}


def copied(frames: list[memoryview], target: memoryview) -> float:
    started = time.process_time()
    for frame in frames:
        target[: len(frame)] = frame
    return time.process_time() - started


def figures(rows: list[dict[str, Any]], name: str, nbytes: int) -> dict[str, float]:
    """Stored size by raw size, gigabytes per second, and how many times as fast ours is."""

    def median(value: Any) -> float:
        return statistics.median(map(value, rows))

    return {
        "ratio": rows[0][name]["stored"] / nbytes,
        "encode": nbytes / 1e9 / median(lambda row: row[name]["encode"]),
        "decode": nbytes / 1e9 / median(lambda row: row[name]["decode"]),
        "ours_encodes": median(lambda row: row[name]["encode"] / row["ours"]["encode"]),
        "ours_decodes": median(lambda row: row[name]["decode"] / row["ours"]["decode"]),
        "copies": median(lambda row: row[name]["encode"] / row["copy"]),
    }


# ---- showing -------------------------------------------------------------------------------------------------------


def contestants(states: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and labels of those that took part."""
    labels = {name: codec.label for name, codec in available("f4").items()}
    return [(name, label) for name, label in labels.items() if any(name in row for row in states.values())]


def described(result: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in result["machine"].items())


def table(result: dict[str, Any]) -> str:
    lines = [described(result), f"{'':24}{'':12}{'stored/raw':>11}{'encode':>8}{'decode':>8} GB/s"]
    lines[1] += f"{'ours encodes':>15}{'decodes':>9} times as fast{'a copy x':>12}"
    for state, row in result["states"].items():
        for name, label in contestants({state: row}):
            f, title = row[name], state if name == "ours" else ""
            line = f"{title:24}{label:12}{f['ratio']:11.4f}{f['encode']:8.2f}{f['decode']:8.2f}"
            line += f"{'':5}{f['ours_encodes']:15.2f}{f['ours_decodes']:9.2f}{'':14}{f['copies']:12.1f}"
            lines.append(line.rstrip())
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Encoding, decoding and size, one group of bars per state of floats."""
    from matplotlib.figure import Figure

    states = {name: row for name, row in result["states"].items() if "ZipNN" in row or "fp64" in name}
    figure = Figure(figsize=(14, 5), layout="constrained")
    panels = (("encode", "encode, GB/s on one core"), ("decode", "decode, GB/s on one core"), ("ratio", "stored/raw"))
    for panel, (column, title) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        names = contestants(states)
        height = 0.8 / len(names)
        for number, (name, label) in enumerate(names):
            values = [row.get(name, {}).get(column, 0) for row in states.values()]
            places = [row + number * height for row in range(len(states))]
            bars = panel.barh(places, values, height, label=label)
            panel.bar_label(bars, [f"{value:.3g}" if value else "" for value in values], fontsize=7, padding=2)
        panel.set_yticks([row + 0.4 - height / 2 for row in range(len(states))], list(states))
        panel.margins(x=0.15)
        panel.set_title(title, fontsize=10)
    panel.invert_yaxis()
    panel.legend(fontsize=8)
    figure.suptitle(described(result), fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
