"""What gpu_stall.py prints and draws."""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers import LABELS

COLUMNS = (
    ("save() ms", "host time in the call, median"),
    ("stall ms", "the device cannot work because of the call, median"),
    ("delay ms", "of the loop per save, all steps until it is complete"),
    ("p50", "(p95, p99) steps from the call to completion, over the median step of the windows beside"),
    ("p95", ""),
    ("p99", ""),
    ("complete s", "from the call to completion, training beside it"),
    ("cold ms", "very first save(), nothing prepared"),
    ("warm ms", "first save() after warmup, where there is one"),
    ("copy GB/s", "a plain copy into ready (pinned) memory"),
    ("captured", "asyncckpt's rate until all is in host memory, nothing beside it"),
)


def table(result: dict[str, Any]) -> str:
    """All figures as text."""
    lines = [result["machine"], ", ".join(f"{key} {value}" for key, value in result["options"].items())]
    lines += [f"  {name:11} {meaning}" for name, meaning in COLUMNS if meaning]
    for size, turns in result["gigabytes"].items():
        lines += ["", f"{size} GB of state" + _clocks(turns)]
        lines += [f"{'':30}" + "".join(f"{name:>11}" for name, _ in COLUMNS)]
        lines += [_line(LABELS[name], turn) for name, turn in turns.items()]
    return "\n".join(lines)


def figures(turn: dict[str, Any]) -> dict[str, float | None]:
    """The columns of one contestant."""
    besides = [before + after for before, after in pairwise(turn["without"])]
    pairs = list(zip(turn["with"], besides, strict=True))
    relative = [step / statistics.median(beside) for window, beside in pairs for step in window]
    delays = [sum(window) - len(window) * statistics.fmean(beside) for window, beside in pairs]
    values = (
        _ms(statistics.median(turn["host"])),
        _ms(statistics.median(turn["stall"])),
        _ms(statistics.median(delays)),
        *(quantile(relative, q) for q in (0.5, 0.95, 0.99)),
        statistics.median(turn["complete"]),
        _ms(turn["first_cold"]),
        _ms(turn["first_warm"]),
        turn["bytes"] / turn["plain"] / 1e9,
        turn["bytes"] / turn["captured"] / 1e9 if turn["captured"] else None,
    )
    return dict(zip((name for name, _ in COLUMNS), values, strict=True))


def quantile(values: list[float], q: float) -> float:
    """The smallest value that a share ``q`` does not exceed."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _clocks(turns: dict[str, Any]) -> str:
    good = [turn for turn in turns.values() if "error" not in turn]
    if not good:
        return ""
    step = statistics.median(step for turn in good for window in turn["without"] for step in window)
    return f", steps of {1e3 * step:.1f} ms, timed by {good[0]['clock']}"


def _line(label: str, turn: dict[str, Any]) -> str:
    if "error" in turn:
        return f"{label:30}  {turn['error'][:120]}"
    values = figures(turn).values()
    return f"{label:30}" + "".join(f"{'':>11}" if value is None else f"{value:11.3f}" for value in values)


# ---- the picture ---------------------------------------------------------------------------------------------------


def draw(result: dict[str, Any], path: Path) -> None:
    """One row of panels per size: the call, the first call, the steps after it."""
    from matplotlib.figure import Figure

    sizes = {size: {n: t for n, t in turns.items() if "error" not in t} for size, turns in result["gigabytes"].items()}
    figure = Figure(figsize=(15, 4.2 * len(sizes)), layout="constrained")
    panels = figure.subplots(len(sizes), 3, squeeze=False)
    for (size, turns), (calls, firsts, steps) in zip(sizes.items(), panels, strict=True):
        _bars(calls, turns, ("save() ms", "stall ms", "delay ms"), f"{size} GB: what a save costs the loop, ms")
        _bars(firsts, turns, ("cold ms", "warm ms"), f"{size} GB: first save(), ms")
        _steps(steps, turns, f"{size} GB: steps from the call on")
    figure.suptitle(result["machine"], fontsize=9)
    figure.savefig(path, dpi=120)


def _bars(panel: Any, turns: dict[str, Any], columns: tuple[str, ...], title: str) -> None:
    """Horizontal bars on a logarithmic axis; what is not positive has none."""
    height = 0.8 / len(columns)
    for number, column in enumerate(columns):
        values = [max(figures(turn)[column] or 0, 1e-3) for turn in turns.values()]
        places = [row + number * height for row in range(len(turns))]
        bars = panel.barh(places, values, height, label=column.removesuffix(" ms"))
        panel.bar_label(bars, [f"{value:.3g}" for value in values], fontsize=7, padding=2)
    panel.set_yticks([row + 0.4 - height / 2 for row in range(len(turns))], [LABELS[name] for name in turns])
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.margins(x=0.2)
    panel.set_title(title, fontsize=10)
    panel.legend(fontsize=8)


def _steps(panel: Any, turns: dict[str, Any], title: str) -> None:
    """Median over windows of each step's time, over the median step without saves."""
    for name, turn in turns.items():
        median = statistics.median(step for window in turn["without"] for step in window)
        columns = zip(*turn["with"], strict=False)  # as many as the shortest has
        panel.plot([statistics.median(column) / median for column in columns], label=LABELS[name])
    panel.axhline(1, color="grey", linewidth=0.8)
    panel.set_yscale("log")
    panel.set_xlabel("steps after the call (0 includes it)", fontsize=8)
    panel.set_title(f"{title}, time over a step without saves", fontsize=10)
    panel.legend(fontsize=7)
