"""Is a finished save durable? Watched: one small save under strace, and what was fsynced after it was last written.

*data*: every file that the save left was fsynced after its last write. *directory*: every directory that gained an
entry was fsynced after it. Where there is no strace, what reading the sources says stands instead; the report says so.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CALLS = "write,pwrite64,writev,pwritev,pwritev2,ftruncate,fsync,fdatasync,/^rename.*,/^link.*,/^mkdir.*"
_CALL = re.compile(r"^(?:\d+\s+)?(\w+)\((.*)")
_DESCRIPTOR = re.compile(r"^\d+<([^>]*)>")
_NAME = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"([^"]*)"')


def durability(name: str, folder: Path) -> dict[str, str]:
    """``{"data": "yes" | "no: which", "directory": ..., "how": "strace" | "source"}`` or ``{"error": ...}``."""
    if not shutil.which("strace"):
        return by_source(name)
    root, log = folder / f"traced-{name}", folder / f"{name}.strace"
    command = ["strace", "-f", "-y", "-qq", "-s", "256", "--seccomp-bpf", "-e", f"trace={CALLS}", "-o", str(log)]
    done = subprocess.run(
        [*command, sys.executable, "-m", "benchmarks.one_save", name, str(root)],
        check=False, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:300]}
    return verdict(Trace(root, log.read_text(errors="replace").splitlines()), root) | {"how": "strace"}


def by_source(name: str) -> dict[str, str]:
    from benchmarks.peers import contestant

    try:
        said = contestant(name).func.durable_by_source
    except ImportError as error:
        return {"error": f"not installed: {error}"}
    data, directory = (part.strip() for part in said.split(", "))
    return {"data": data.removeprefix("data "), "directory": directory.removeprefix("directory "), "how": "source"}


class Trace:
    """When each path below a folder was last written, named and fsynced: numbers of lines."""

    def __init__(self, root: Path, lines: list[str]) -> None:
        self._root = str(root)
        self.written: dict[str, int] = {}
        self.named: dict[str, int] = {}
        self.synced: dict[str, int] = {}
        for number, line in enumerate(lines):
            if (call := _CALL.match(line)) and self._root in line and " = -1 " not in line:
                self._note(call[1], call[2], number)

    def _note(self, call: str, arguments: str, number: int) -> None:
        if call in {"fsync", "fdatasync"}:
            self._mark(self.synced, arguments, number)
        elif call.startswith(("mkdir", "rename", "link")):
            self._name(call, [_joined(*found) for found in _NAME.findall(arguments)], number)
        else:
            self._mark(self.written, arguments, number)

    def _mark(self, record: dict[str, int], arguments: str, number: int) -> None:
        if (found := _DESCRIPTOR.match(arguments)) and found[1].startswith(self._root):
            record[found[1]] = number

    def _name(self, call: str, paths: list[str], number: int) -> None:
        self.named[paths[-1]] = number
        if len(paths) == 2:
            for record in (self.written, self.synced):
                if paths[0] in record:
                    record[paths[1]] = record[paths[0]] if call.startswith("link") else record.pop(paths[0])


def _joined(folder: str, name: str) -> str:
    return name if name.startswith("/") or not folder else f"{folder}/{name}"


def verdict(trace: Trace, root: Path) -> dict[str, str]:
    """What of the files that are there now was made durable."""
    entries = [path for path in root.rglob("*") if not path.name.startswith(".asyncckpt.lock")]
    files = [path for path in entries if path.is_file() and path.stat().st_size]
    data = [path for path in files if trace.synced.get(str(path), -1) <= trace.written.get(str(path), -1)]
    folders = [path for path in entries if trace.synced.get(str(path.parent), -1) <= _appeared(trace, path)]
    return {"data": _words(data, files), "directory": _words(folders, entries)}


def _appeared(trace: Trace, path: Path) -> int:
    return trace.named.get(str(path), 0)


def _words(bad: list[Path], all_: list[Path]) -> str:
    if not bad:
        return "yes"
    return "no" if len(bad) == len(all_) else f"no: {', '.join(sorted(path.name for path in bad)[:2])}"[:60]


def summary(found: dict[str, Any]) -> str:
    """In a cell of a table."""
    return "?" if "error" in found else f"data {found['data']}; directory {found['directory']} ({found['how']})"
