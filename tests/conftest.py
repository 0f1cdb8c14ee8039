"""What all tests share: the pretend accelerator."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "fake_accelerator"


@pytest.fixture(scope="session")
def fake_device():
    """The pretend accelerator, built and registered once per process."""
    ninja = shutil.which("ninja") or shutil.which("ninja", path=Path(sys.executable).parent)
    if not shutil.which("g++") or not ninja:
        pytest.skip("NOT TESTED: the device path needs g++ and ninja to build the pretend accelerator")
    sys.path.insert(0, str(FOLDER))
    return importlib.import_module("fake_accelerator")


@pytest.fixture
def fake(fake_device):
    """The pretend accelerator, idle, fast and with its counts at zero."""
    import torch

    def calm():
        fake_device.resume()
        fake_device.set_copy_time(0.0)
        fake_device.set_pinning_fails(False)
        torch.accelerator.set_device_index(0)
        for device in range(2):
            torch.accelerator.synchronize(device)
        fake_device.reset_stats()

    calm()
    yield fake_device
    calm()
