"""From turns to figures: medians with their spread, and ratios taken within each round."""

import math
import statistics
from typing import Any

from benchmarks.peers import PEERS

Turn = dict[str, Any]
Turns = dict[str, list[Turn]]
FIGURES = (
    "stall", "delay", "cpu", "complete", "alone_cpu", "first_stall", "first_delay", "stored", "peak", "load",
    "load_cpu", "copy", "raw_write", "raw_read", "state_bytes", "step", "steps",
)  # fmt: skip
COMPARED = ("stall", "delay", "cpu", "complete", "load")
FLOOR = "torch_save"


def summarize(turns: Turns) -> dict[str, dict[str, Any]]:
    """Name of contestant -> its figures, or its error."""
    good = {name: _with_references(mine) for name, mine in turns.items() if not any("error" in turn for turn in mine)}
    best = {figure: best_peer(good, figure) for figure in COMPARED}
    result = {}
    for name, mine in turns.items():
        failed = next((turn["error"] for turn in mine if "error" in turn), None)
        result[name] = {"error": failed} if failed else _figures(good, name, best)
    return result


def best_peer(good: Turns, figure: str) -> str | None:
    """The peer with the lowest median, among those that kept the values when used as documented."""
    fair = [name for name in PEERS if name in good and not _torn(good[name]) and _samples(good[name], figure)]
    return min(fair, key=lambda name: statistics.median(_samples(good[name], figure)), default=None)


def _torn(turns: list[Turn]) -> bool:
    return any(turn.get("documented", "kept") != "kept" for turn in turns)


def _with_references(turns: list[Turn]) -> list[Turn]:
    """The raw write of a turn is the faster of buffered and direct: a contestant may choose too."""
    return [turn | {"raw_write": _faster(turn)} if "raw_buffered" in turn else turn for turn in turns]


def _faster(turn: Turn) -> list[float]:
    pairs = zip(turn["raw_buffered"], turn["raw_direct"], strict=True)
    return [buffered if math.isnan(direct) else min(buffered, direct) for buffered, direct in pairs]


def _figures(good: Turns, name: str, best: dict[str, str | None]) -> dict[str, Any]:
    mine = good[name]
    figures: dict[str, Any] = {figure: spread(_samples(mine, figure)) for figure in FIGURES}
    figures["to_floor"] = {figure: _ratio(good, name, FLOOR, figure) for figure in COMPARED}
    figures["to_best"] = {figure: _ratio(good, name, best[figure], figure) for figure in COMPARED}
    figures["best"] = best
    figures["stall_to_copy"] = _within(mine, "stall", "copy")
    figures["call_alone_to_copy"] = _within(mine, "alone_call", "copy")
    figures["complete_to_raw"] = _within(mine, "complete", "raw_write")
    figures["load_to_raw"] = _within(mine, "load", "raw_read")
    figures["unfinished"] = next((turn["unfinished"] for turn in mine if "unfinished" in turn), "")
    figures["values"] = {"documented": _worst(mine, "documented"), "careless": _worst(mine, "careless")}
    return figures


def spread(samples: list[float]) -> dict[str, float] | None:
    """Median, lowest and highest; None of nothing."""
    if not samples:
        return None
    return {"median": statistics.median(samples), "low": min(samples), "high": max(samples)}


def _ratio(good: Turns, name: str, other: str | None, figure: str) -> dict[str, float] | None:
    """Median over rounds of mine over the other's in the same round."""
    if other is None or other not in good:
        return None
    rounds = [pair for pair in zip(good[name], good[other], strict=False) if all(figure in turn for turn in pair)]
    return spread([_over(_mid(mine[figure]), _mid(theirs[figure])) for mine, theirs in rounds])


def _over(mine: float, theirs: float) -> float:
    return mine / theirs if theirs > 0 else math.nan


def _within(turns: list[Turn], figure: str, reference: str) -> dict[str, float] | None:
    """Median over turns of one figure over another of the same turn."""
    both = [turn for turn in turns if figure in turn and reference in turn]
    return spread([_over(_mid(turn[figure]), _mid(turn[reference])) for turn in both])


def _worst(turns: list[Turn], key: str) -> str:
    said = [turn[key] for turn in turns if key in turn]
    return next((word for word in said if word != "kept"), said[0] if said else "not checked")


def _samples(turns: list[Turn], figure: str) -> list[float]:
    values = (turn[figure] for turn in turns if figure in turn)
    return [sample for value in values for sample in (value if isinstance(value, list) else [value])]


def _mid(value: Any) -> float:
    return statistics.median(value) if isinstance(value, list) else value
