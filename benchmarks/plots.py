"""One picture: what a save costs, by workload and contestant."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.peers import LABELS, OURS

PANELS = (("delay", 1e3, "delay of the loop per save, ms"), ("cpu", 1e3, "extra processor time per save, ms"))
OUR_COLOUR, PEER_COLOUR, TORN_COLOUR = "#1b6ca8", "#9aa5b1", "#d9822b"


def draw(result: dict[str, Any], path: Path) -> None:
    """Bars with their lowest and highest sample, on a logarithmic scale; peers that tore the values are marked."""
    mpl.use("Agg")
    workloads = {name: _good(rows) for name, rows in result["workloads"].items()}
    workloads = {name: rows for name, rows in workloads.items() if rows}
    heights = [len(rows) + 1.5 for rows in workloads.values()]
    figure, axes = plt.subplots(
        len(workloads), 2, figsize=(13, 0.3 * sum(heights) + 1), squeeze=False, layout="constrained",
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    for (name, rows), pair in zip(workloads.items(), axes, strict=True):
        for axis, panel in zip(pair, PANELS, strict=True):
            _bars(axis, rows, *panel)
        pair[0].set_title(_title(name, rows), loc="left", fontsize=10, fontweight="bold")
        pair[1].set_yticklabels([])
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _good(rows: dict[str, Any]) -> dict[str, Any]:
    return {name: row for name, row in rows.items() if "error" not in row}


def _title(name: str, rows: dict[str, Any]) -> str:
    size = next(iter(rows.values()))["state_bytes"]["median"]
    return f"{name}: {size / 1e6:.0f} MB of state"


def _bars(axis: Any, rows: dict[str, Any], key: str, scale: float, label: str) -> None:
    names = list(rows)
    values = [max(rows[name][key]["median"] * scale, 1.0) for name in names]
    low = [max(rows[name][key]["low"] * scale, 1.0) for name in names]
    high = [max(rows[name][key]["high"] * scale, 1.0) for name in names]
    spreads = [
        [max(v - b, 0) for v, b in zip(values, low, strict=True)],
        [max(t - v, 0) for v, t in zip(values, high, strict=True)],
    ]
    axis.barh(range(len(names)), values, xerr=spreads, color=[_colour(name, rows[name]) for name in names],
              error_kw={"elinewidth": 0.8, "capsize": 2, "ecolor": "#444444"})  # fmt: skip
    axis.set_yticks(range(len(names)), [_label(name, rows[name]) for name in names], fontsize=8)
    for at, (value, top) in enumerate(zip(values, high, strict=True)):
        axis.text(max(value, top) * 1.1, at, f"{value:.0f}", va="center", fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(1, max(high) * 2.5)
    axis.invert_yaxis()
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _torn(row: dict[str, Any]) -> bool:
    return row["values"]["documented"] != "kept"


def _label(name: str, row: dict[str, Any]) -> str:
    return f"{LABELS[name]} (values torn)" if _torn(row) else LABELS[name]


def _colour(name: str, row: dict[str, Any]) -> str:
    if _torn(row):
        return TORN_COLOUR
    return OUR_COLOUR if name in OURS else PEER_COLOUR
