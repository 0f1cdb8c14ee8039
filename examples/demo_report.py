"""What the demo shows while it runs and at its end: progress, tables, and a picture."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
Events = list[dict[str, Any]]
PALE, DARK, RED, GREEN = "#9ec5e8", "#17324d", "#c8322f", "#2a8c4a"
BESIDE_LINE: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "top", "fontsize": 10, "color": RED}


@dataclass
class Kill:
    """One SIGKILL: the last step trained before it, and what it left behind.

    ``newest`` is the newest step with a checkpoint, ``asked`` the newest one that ``save()`` had been called for.
    ``torn`` holds the files, with their bytes, of a save that was being written; it is empty if none was.
    """

    number: int
    step: int
    newest: int
    asked: int
    torn: dict[Path, int] = field(default_factory=dict)
    resumed: int | None = None

    def hit(self) -> str:
        """What was going on, in short."""
        if self.torn:
            return "a save being written"
        return "a save still in memory" if self.asked > self.newest else "no save"

    def left(self) -> str:
        """What lies on the disk because of it."""
        if not self.torn:
            return ""
        files = ", ".join(f"{path.name} with {size:,} bytes" for path, size in self.torn.items())
        return f": {next(iter(self.torn)).parent.name} has {files}, and no MANIFEST.json"

    def __str__(self) -> str:
        return f"[red]SIGKILL {self.number}[/red] after step {self.step} hit {self.hit()}{self.left()}"


@dataclass(frozen=True)
class Stalls:
    """Seconds: of every ``save()`` in the training run, then one each per alternating round on its final state."""

    in_training: list[float]
    ours: list[float]
    durable: list[float]
    theirs: list[float]


@dataclass(frozen=True)
class Sizes:
    """Bytes of the final state: in memory, on disk, and on disk by torch.save."""

    raw: int
    ours: int
    theirs: int


class Progress:
    """A bar on a terminal, else a plain line now and then."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.shown = 0
        columns = (BarColumn(40), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self.bar = Bar(*columns, console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("starting", total=steps)

    def __enter__(self) -> Self:
        self.bar.start()
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, step: int, events: Events) -> None:
        """Step so-and-so is done."""
        if step == self.shown:
            return
        text = next((f"loss {event['loss']:.3f}" for event in reversed(events) if event["event"] == "step"), "")
        self.bar.update(self.task, completed=step, description=text)
        if not console.is_terminal and step * 6 // self.steps > self.shown * 6 // self.steps:
            console.print(f"step {step:>4} of {self.steps}   {text}   {time.perf_counter() - self.began:.0f} s")
        self.shown = step

    def say(self, text: str) -> None:
        """A line that stays."""
        console.print(text, soft_wrap=True)


def print_table(stalls: Stalls, sizes: Sizes) -> None:
    """Ours against torch.save."""
    table = Table(title=f"one state of {megabytes(sizes.raw)}", title_justify="left")
    for name in ("", "asyncckpt", "torch.save + fsync + rename"):
        table.add_column(name, justify="left" if not name else "right")
    rounds = f"medians of {len(stalls.ours)} alternating rounds"
    table.add_row(f"the loop waits ({rounds})", milliseconds(stalls.ours), milliseconds(stalls.theirs))
    table.add_row("durable after", milliseconds(stalls.durable), milliseconds(stalls.theirs))
    table.add_row(
        f"the loop waited in training (median of {len(stalls.in_training)} saves)", milliseconds(stalls.in_training), ""
    )
    smaller = f"{megabytes(sizes.ours)} ({sizes.ours / sizes.theirs:.0%})"
    table.add_row("on disk", smaller, megabytes(sizes.theirs))
    console.print(table)


def print_kills(kills: list[Kill]) -> None:
    """What each kill hit, and from where the run went on."""
    table = Table("kill", "after step", "hit", "resumed from step", title="kills", title_justify="left")
    for kill in kills:
        table.add_row(str(kill.number), str(kill.step), kill.hit(), str(kill.resumed or "0 (no checkpoint yet)"))
    console.print(table)


def milliseconds(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:.0f} ms (best {min(seconds) * 1000:.0f})"


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def draw(plain: Events, killed: Events, kills: list[Kill], *, same: bool, file: Path) -> None:
    """Both loss curves above, and below which steps each start of the killed run went through."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    style = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 11, "axes.titlelocation": "left"}
    with mpl.rc_context(style):
        figure, (above, below) = plt.subplots(
            2, 1, figsize=(11, 7), sharex=True, height_ratios=(3, 1), layout="constrained"
        )
        verdict = "equal, bit by bit, to the end" if same else "DIFFERENT"
        above.set_title(f"The same training run twice: {verdict}", pad=12)
        draw_losses(above, plain, attempts(killed), kills)
        draw_attempts(below, attempts(killed), kills)
        figure.savefig(file, dpi=130)
        plt.close(figure)


def attempts(events: Events) -> list[list[tuple[int, float]]]:
    """(step, loss) of every start of the run."""
    parts: list[list[tuple[int, float]]] = []
    for event in events:
        if event["event"] == "start":
            parts.append([])
        elif event["event"] == "step":
            parts[-1].append((event["step"], event["loss"]))
    return parts


def draw_losses(axes: Any, plain: Events, parts: list[list[tuple[int, float]]], kills: list[Kill]) -> None:
    axes.plot(*columns(attempts(plain)[0]), color=PALE, linewidth=6, label="left alone, no checkpoints")
    for number, part in enumerate(parts):
        axes.plot(*columns(part), color=DARK, linewidth=1.2, label="" if number else "killed and resumed")
    losses = {step: loss for part in parts for step, loss in part}
    for number, kill in enumerate(kills):
        axes.axvline(kill.step, color=RED, linestyle="--", linewidth=1.2, label="" if number else "SIGKILL")
        what = f"kill {kill.number}" + (", in a save " if kill.torn else " ")
        axes.text(kill.step, 0.99, what, transform=axes.get_xaxis_transform(), **BESIDE_LINE)
    resumed = [kill.resumed for kill in kills if kill.resumed]
    points = [losses[step] for step in resumed]
    axes.plot(resumed, points, "o", color=GREEN, markersize=9, zorder=5, label="resumed from")
    axes.set_ylabel("loss (nats per character)")
    axes.set_xlim(0, parts[-1][-1][0] * 1.01)
    axes.legend(edgecolor="none", framealpha=0.9, loc="upper right")


def draw_attempts(axes: Any, parts: list[list[tuple[int, float]]], kills: list[Kill]) -> None:
    for row, part in enumerate(parts):
        if not part:  # killed before its first step
            continue
        first, last = part[0][0] - 1, part[-1][0]
        axes.barh(row, last - first, left=first, height=0.5, color=DARK)
        if row < len(kills):
            lost = kills[row].resumed or 0
            axes.barh(row, last - lost, left=lost, height=0.5, color=RED, label="" if row else "lost, trained again")
            axes.axvline(kills[row].step, color=RED, linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(parts)), [f"start {row + 1}" for row in range(len(parts))])
    axes.invert_yaxis()
    axes.set_xlabel("step")
    axes.legend(frameon=False, loc="upper right")


def columns(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [loss for _, loss in points]
