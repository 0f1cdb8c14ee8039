"""Clocks and counters of one process and its children."""

import os
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

_TICK = os.sysconf("SC_CLK_TCK")


@contextmanager
def measured():
    """Wall and processor seconds of what runs inside: ``.wall``, ``.cpu`` (user + system, living children included)."""
    spent = SimpleNamespace(wall=0.0, cpu=0.0)
    wall, cpu = time.perf_counter(), processor_seconds()
    yield spent
    spent.wall, spent.cpu = time.perf_counter() - wall, processor_seconds() - cpu


def processor_seconds() -> float:
    """User + system seconds of this process and its descendants; theirs come in ticks of 10 ms."""
    return time.process_time() + sum(map(_ticks_of, descendants(os.getpid())))


def descendants(pid: int) -> list[int]:
    """Living children, their children, and so on."""
    try:
        found = [
            int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
    except OSError:
        return []
    return found + [grandchild for child in found for grandchild in descendants(child)]


def _ticks_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def reset_peak() -> None:
    """Begin a new high-water mark of this process's memory."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """High-water mark in bytes: this process, and what its children hold for themselves (no shared pages twice)."""
    own = _status("self")["VmHWM"]
    return own + sum(_private_peak(pid) for pid in descendants(os.getpid()))


def _private_peak(pid: int) -> int:
    try:
        status = _status(pid)
    except OSError:
        return 0
    return max(0, status["VmHWM"] - status["RssShmem"] - status["RssFile"])


def _status(pid: int | str) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields}


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)


def forget_pages(path: Path) -> None:
    """Drop the page cache of a file, or of all files below a folder: what is read next comes from the disk."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
