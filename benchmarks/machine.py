"""What the figures were measured on, and with."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("asyncckpt", "torch", "torch-checkpointing", "torchsnapshot", "lightning", "safetensors", "zipnn", "blosc2")


def machine(folder: Path) -> dict[str, str]:
    """Processor, memory, file system and versions; nothing that names the machine."""
    return {
        "processor": f"{os.cpu_count()} cores, {platform.machine()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "file system": _file_system(folder),
        "python": platform.python_version(),
    } | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _file_system(folder: Path) -> str:
    done = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], check=False, capture_output=True, text=True)
    return done.stdout.strip() or "?"
