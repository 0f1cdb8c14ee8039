"""The tables, as text, and the files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.durability import summary as durable_words
from benchmarks.peers import LABELS

LEGEND = """\
stall    of the call, and over a plain copy of the state into touched memory
delay    of the loop per save, everything included until the save is complete, against the same number of steps without
         (lowest to highest); /ts over torch.save + fsync + rename, /best over the best peer, in the same round
cpu      extra user + system seconds per save, children included; /best over the best peer
done     from call to completion with nothing beside it, and over a raw write + fsync of the same bytes (buffered or
         O_DIRECT, whichever is faster)
first    stall and delay of the first save
disk     bytes on disk over bytes of state
memory   extra host memory at its peak over bytes of state
restore  into fresh memory, page cache dropped; over a raw read of the state's bytes; /ts over torch.load
values   of the moment of the call? when the next update comes at once with the care that the documentation asks for,
         and with no care at all
A best peer is the one with the lowest median among those whose values were kept when used as documented."""

COST = ("contestant", "stall ms", "xcopy", "delay ms", "low..high", "/ts", "/best", "cpu s", "/best", "done s", "xraw",
        "first ms", "delay")  # fmt: skip
WORTH = ("contestant", "disk", "memory", "restore s", "xraw", "/ts", "durable", "values, as documented", "careless")


def report(result: dict[str, Any], json_path: Path | None, png_path: Path | None) -> None:
    """Print everything; write what was asked for."""
    print(text(result))
    if json_path:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    if png_path:
        from benchmarks.plots import draw

        draw(result, png_path)


def text(result: dict[str, Any]) -> str:
    """The whole report."""
    parts = [", ".join(f"{key} {value}" for key, value in result["machine"].items())]
    parts.append(", ".join(f"{key} {value}" for key, value in result["options"].items()))
    parts += [_workload(name, rows, result["durable"]) for name, rows in result["workloads"].items()]
    return "\n\n".join([*parts, LEGEND])


def _workload(name: str, rows: dict[str, Any], durable: dict[str, Any]) -> str:
    good = {key: row for key, row in rows.items() if "error" not in row}
    bad = [f"{LABELS[key]}: {row['error']}" for key, row in rows.items() if "error" in row]
    bad += [f"{LABELS[key]}: {row['unfinished']}" for key, row in good.items() if row["unfinished"]]
    tables = [
        table(COST, [_cost(key, row) for key, row in good.items()]),
        table(WORTH, [_worth(key, row, durable.get(key, {"error": "?"})) for key, row in good.items()]),
    ]
    return "\n\n".join([_title(name, good), *tables, *bad])


def _title(name: str, good: dict[str, Any]) -> str:
    if not good:
        return f"== {name}"
    row = next(iter(good.values()))
    size, step, steps = (row[key]["median"] for key in ("state_bytes", "step", "steps"))
    return f"== {name}: {size / 1e6:.0f} MB of state, a step takes {step * 1e3:.0f} ms, {steps:.0f} steps a window"


def _cost(name: str, row: dict[str, Any]) -> list[str]:
    delay = row["delay"]
    return [
        LABELS[name], _ms(row["stall"]), _x(row["stall_to_copy"]),
        _ms(delay), _range(delay),
        _x(row["to_floor"]["delay"]), _x(row["to_best"]["delay"]),
        _s(row["cpu"], 3), _x(row["to_best"]["cpu"]),
        _s(row["complete"]), _x(row["complete_to_raw"]),
        _ms(row["first_stall"]), _ms(row["first_delay"]),
    ]  # fmt: skip


def _worth(name: str, row: dict[str, Any], durable: dict[str, Any]) -> list[str]:
    size = row["state_bytes"]["median"]
    return [
        LABELS[name], _s(row["stored"], 3, size), _s(row["peak"], 2, size),
        _s(row["load"]), _x(row["load_to_raw"]), _x(row["to_floor"]["load"]),
        durable_words(durable), row["values"]["documented"], row["values"]["careless"],
    ]  # fmt: skip


def _ms(figure: dict[str, float] | None) -> str:
    return "-" if figure is None else f"{figure['median'] * 1e3:.1f}"


def _range(figure: dict[str, float] | None) -> str:
    return "-" if figure is None else f"{figure['low'] * 1e3:.0f}..{figure['high'] * 1e3:.0f}"


def _s(figure: dict[str, float] | None, digits: int = 2, unit: float = 1.0) -> str:
    return "-" if figure is None else f"{figure['median'] / unit:.{digits}f}"


def _x(ratio: dict[str, float] | None) -> str:
    return "-" if ratio is None else f"{ratio['median']:.2f}"


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """Columns as wide as they need to be; text to the left, numbers to the right."""
    widths = [max(len(line[at]) for line in [head, *rows]) for at in range(len(head))]
    left = [at == 0 or title in WORTH[6:] for at, title in enumerate(head)]

    def line(cells: Sequence[str]) -> str:
        sides = zip(cells, widths, left, strict=True)
        return "  ".join(cell.ljust(width) if to_left else cell.rjust(width) for cell, width, to_left in sides)

    return "\n".join(line(cells).rstrip() for cells in [head, *rows])
