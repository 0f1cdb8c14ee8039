"""Builds and registers the pretend accelerator: torch then has a device type "fake", two devices of it.

What it is for: code that orders its copies wrongly reads wrong values here too. Streams are threads, copies and fills
run late and in stream order, pinned memory can be refused, and every wait of the host is counted. See the C++ file.

Registering is for the whole process and cannot be undone. The build (g++ and ninja, about half a minute) is kept in
torch's extension cache, in a folder of its own for each version of source, torch and python. Several processes may ask
at once: one builds, the others wait; one that was killed while it built holds nobody up.
"""

import fcntl
import hashlib
import os
import platform
import sys
import types
from pathlib import Path

import torch
from torch.utils.cpp_extension import get_default_build_root, load

SOURCE = Path(__file__).with_suffix(".cpp")


def build():
    """Compile, or take from the cache. Finds ninja beside the interpreter, whether its environment is active or not."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    versions = f"{torch.__version__} {platform.python_version()} {SOURCE.read_text()}"
    name = f"asyncckpt_fake_accelerator_{hashlib.sha256(versions.encode()).hexdigest()[:12]}"
    folder = Path(get_default_build_root()) / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)  # torch's own, which a killed process leaves behind
        return load(name, [str(SOURCE)], extra_cflags=["-O1"], build_directory=str(folder))


def register():
    """Give torch the device type "fake"."""
    torch.utils.rename_privateuse1_backend("fake")
    module = types.ModuleType("torch.fake")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 2  # kDevices; torch.accelerator would only ask us again
    module.current_device = torch.accelerator.current_device_index
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    torch._register_device_module("fake", module)
    torch.utils.generate_methods_for_privateuse1_backend()


native = build()
register()
set_copy_time = native.set_copy_time  # nanoseconds per byte of an asynchronous copy
stall = native.stall  # the current stream of a device (an index) waits ...
resume = native.resume  # ... until this
set_pinning_fails = native.set_pinning_fails  # as with a low locked-memory limit
stats = native.stats  # counts: "host waits", "pinned allocations", "used device N"
reset_stats = native.reset_stats
