"""Train the same small GPT twice, once left alone and once killed three times, and compare the ends bit by bit.

The first run is plain PyTorch: it saves nothing. The second one saves in the background, is killed with SIGKILL at
random moments, at least once in the middle of a save, and is started again by the same command each time. Exit code 1,
with the first difference named, if a single bit differs in weights, optimizer, schedule, data position, loss history or
the next random draws. Everything is written below demo/, which is emptied first; demo/loss.png shows it.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_report import Kill, Progress, Sizes, Stalls, console, draw, print_kills, print_table

EXAMPLES = Path(__file__).resolve().parent
DEMO = EXAMPLES.parent / "demo"
KILLS = 3
MOST_KILLS = 8  # when none of the three hit a save in progress, go on trying


@dataclass
class Run:
    """One training run: its command, its files, and what it has logged so far."""

    name: str
    steps: int
    save_every: int
    events: list[dict[str, Any]] = field(default_factory=list)
    offset: int = 0

    @property
    def root(self) -> Path:
        """The folder of its checkpoints."""
        return DEMO / self.name / "checkpoints"

    @property
    def log(self) -> Path:
        """One JSON object per line, written by the run."""
        return DEMO / self.name / "log.jsonl"

    @property
    def final(self) -> Path:
        """What it ended with, by torch.save."""
        return DEMO / self.name / "final.pt"

    def command(self) -> list[str]:
        """The same for the first start and for every resume."""
        script = [sys.executable, str(EXAMPLES / "train_gpt.py")]
        numbers = ["--steps", str(self.steps), "--eval-every", "10", "--save-every", str(self.save_every)]
        return [
            *script,
            *numbers,
            "--print-every",
            "10",
            "--root",
            str(self.root),
            "--log",
            str(self.log),
            "--final",
            str(self.final),
        ]

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the command; what it prints is kept in a file. It does not outlive the block."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with (self.log.parent / "output.txt").open("ab") as output:
            process = subprocess.Popen(self.command(), stdout=output, stderr=subprocess.STDOUT)  # noqa: S603
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def read_log(self) -> None:
        """Take in the lines that are new and complete."""
        if not self.log.exists():
            return
        with self.log.open("rb") as file:
            file.seek(self.offset)
            lines = file.read().split(b"\n")[:-1]
        self.offset += sum(len(line) + 1 for line in lines)
        self.events += map(json.loads, lines)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its logged events of one kind."""
        return [event for event in self.events if event["event"] == kind]

    def step(self) -> int:
        """The step it is at, or 0."""
        return next((event["step"] for event in reversed(self.events) if event["event"] != "save"), 0)

    def asked(self) -> int:
        """The newest step that its present start has called ``save()`` for, or 0."""
        kinds = [event["event"] for event in self.events]
        since = len(kinds) - kinds[::-1].index("start") if "start" in kinds else 0
        return max((event["step"] for event in self.events[since:] if event["event"] == "save"), default=0)


def main() -> int:
    args = parse_args()
    began = time.perf_counter()
    shutil.rmtree(DEMO, ignore_errors=True)
    console.print(f"{args.steps} steps, a checkpoint every {args.save_every}; random seed of the kills: {args.seed}")

    plain = Run("undisturbed", args.steps, save_every=0)
    killed = Run("killed", args.steps, args.save_every)
    console.rule("1. left alone, without checkpoints", align="left")
    train(plain)
    console.rule("2. with checkpoints, killed and resumed", align="left")
    kills = train_with_kills(killed, random.Random(args.seed))
    console.rule("3. compared bit by bit", align="left")
    same = compare_ends(plain, killed)
    console.rule("4. figures", align="left")
    print_figures(killed, kills)
    draw(plain.events, killed.events, kills, same=same, file=DEMO / "loss.png")
    console.print(f"picture: {DEMO / 'loss.png'}   ({time.perf_counter() - began:.0f} s altogether)")
    return 0 if same and enough(kills) else 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=160, help="steps of each run (default 160)")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints (default 10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the kills (default random)")
    args = parser.parse_args()
    if args.steps < 6 * args.save_every:
        parser.error("--steps must be at least six times --save-every: three kills want some room")
    return args


def train(run: Run) -> None:
    """Let a run come to its end."""
    with Progress(run.steps) as progress:
        follow(run, progress, stop=lambda: False)


def train_with_kills(run: Run, dice: random.Random) -> list[Kill]:
    """Start the run again and again, killing it, until it has been killed often enough and comes to its end."""
    moments = kill_steps(run, dice)
    inside = dice.randrange(KILLS)  # this one waits for a save in progress; so do those after it, until one hits
    kills: list[Kill] = []
    with Progress(run.steps) as progress:
        while len(kills) < KILLS or (not any(kill.torn for kill in kills) and len(kills) < MOST_KILLS):
            after = moments[len(kills)] if len(kills) < KILLS else run.step()
            in_save = len(kills) >= inside and not any(kill.torn for kill in kills)
            if not follow(run, progress, moment(run, dice, after=after, in_save=in_save)):
                break  # it came to its end first
            kills.append(describe_kill(run, kills))
            progress.say(str(kills[-1]))
        else:
            follow(run, progress, stop=lambda: False)
    note_resumes(run, kills)
    return kills


def kill_steps(run: Run, dice: random.Random) -> list[int]:
    """A random step in each third of the run, with some room between them, before the first and after the last."""
    first, last = run.save_every * 3 // 2, run.steps - 2 * run.save_every
    third = (last - first) / KILLS
    return [int(first + third * (number + 0.6 * dice.random())) for number in range(KILLS)]


def moment(run: Run, dice: random.Random, *, after: int, in_save: bool) -> Callable[[], bool]:
    """A condition that becomes true at the moment to kill: past a step, and if wanted while a save is being written."""
    old, starts = torn_files(run.root), len(run.of("start"))
    delay = dice.random() * 0.15

    def reached() -> bool:
        if len(run.of("start")) == starts or run.step() < after:
            return False
        if in_save:
            return bool(torn_files(run.root).keys() - old)
        time.sleep(delay)
        return True

    return reached


def follow(run: Run, progress: Progress, stop: Callable[[], bool]) -> bool:
    """Start the run and watch it; True if it was killed because ``stop()`` said so, False if it ended by itself."""
    with run.started() as process:
        while process.poll() is None:
            run.read_log()
            progress.show(run.step(), run.events)
            if stop():
                process.send_signal(signal.SIGKILL)
                process.wait()
                run.read_log()
                return True
            time.sleep(0.002)
    run.read_log()
    progress.show(run.step(), run.events)
    if process.returncode != 0:
        output = (run.log.parent / "output.txt").read_text(errors="replace")
        raise SystemExit(f"the {run.name} run failed with exit code {process.returncode}:\n{output[-3000:]}")
    return False


def torn_files(root: Path) -> dict[Path, int]:
    """Files, and their bytes, of saves that are not finished: no MANIFEST.json yet, and newer than those that have one.

    An older folder without a MANIFEST.json is one that is being deleted.
    """
    done = committed_steps(root)
    files = [path for path in root.glob("step-*/*") if step_of(path.parent) > max(done, default=0)]
    return {path: size for path in files if (size := size_of(path))}


def size_of(path: Path) -> int:
    """Its bytes; 0 if it has just been renamed or deleted."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def committed_steps(root: Path) -> list[int]:
    return [step_of(path.parent) for path in root.glob("step-*/MANIFEST.json")]


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def describe_kill(run: Run, kills: list[Kill]) -> Kill:
    """What the kill left behind, looked at afterwards."""
    known = {path for kill in kills for path in kill.torn}
    torn = {path: size for path, size in torn_files(run.root).items() if path not in known}
    newest = max(committed_steps(run.root), default=0)
    return Kill(len(kills) + 1, run.step(), newest, run.asked(), torn)


def note_resumes(run: Run, kills: list[Kill]) -> None:
    """From which step each start after a kill went on, as the run itself reported it."""
    starts = [event["step"] for event in run.of("start")]
    for kill, start in zip(kills, starts[1:], strict=True):
        kill.resumed = start


def compare_ends(plain: Run, killed: Run) -> bool:
    """Compare what both runs ended with, and what the library gives back, bit by bit."""
    import torch
    from bitwise import compare

    import asyncckpt

    ends = [torch.load(run.final, map_location="cpu", weights_only=True) for run in (plain, killed)]
    loaded = asyncckpt.load(killed.root)
    saved = {key: value for key, value in ends[1].items() if key != "next_draws"}
    return all(
        [
            tell("killed run against the undisturbed one", compare(*ends)),
            tell("newest checkpoint against torch.save of the same", compare(saved, loaded)),
        ]
    )


def tell(what: str, verdict: Any) -> bool:
    """Print one verdict; True if nothing differs."""
    if verdict.difference is None:
        console.print(f"[green]equal[/green]  {what}: {verdict.tensors} tensors, {verdict.nbytes:,} bytes")
        return True
    console.print("[bold red]DIFFERENT[/bold red]", f"{what}: {verdict.difference}")
    return False


def enough(kills: list[Kill]) -> bool:
    """Whether the kills were what was promised; says so if not."""
    if len(kills) >= KILLS and any(kill.torn for kill in kills):
        return True
    console.print("[bold red]not shown[/bold red]  the run ended before three kills, one of them in a save, had hit it")
    return False


def print_figures(killed: Run, kills: list[Kill]) -> None:
    """Time both ways of saving, and print the tables."""
    from demo_stalls import measure

    import asyncckpt

    info = asyncckpt.inspect(killed.root)
    stalls = Stalls([event["stall"] for event in killed.of("save")], *measure(killed.final, DEMO / "stalls"))
    print_table(stalls, Sizes(info.raw_bytes, info.stored_bytes, killed.final.stat().st_size))
    print_kills(kills)


if __name__ == "__main__":
    sys.exit(main())
