"""The process's random states: python, numpy's legacy generator, torch's CPU generator, every accelerator's.

No device is initialised for this: one that was never used has no state worth saving.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from asyncckpt.events import logger


def capture_rng() -> dict[str, Any]:
    """All states, in forms that restore exactly. Draws nothing."""
    devices = {} if (name := _accelerator()) is None else {name: _device_states(name)}
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the global state is what is to be saved
        "torch": torch.get_rng_state(),
        "devices": {name: states for name, states in devices.items() if states},
    }


def restore_rng(saved: object) -> list[str]:
    """Set all states that were saved and fit; warn of each that does not. Never raises.

    Returns:
        The names of those that could not be set.
    """
    if saved is None:
        return []
    if not isinstance(saved, Mapping):
        logger.warning("the saved random states are damaged; none was restored")
        return ["all"]
    setters: dict[str, Callable[[Any], object]] = {
        "python": random.setstate,
        "numpy": np.random.set_state,
        "torch": torch.set_rng_state,
        "devices": _set_devices,
    }
    return [name for name, setter in setters.items() if not _set(name, setter, saved)]


def _set(name: str, setter: Callable[[Any], object], saved: Mapping[str, Any]) -> bool:
    try:
        setter(saved[name])
    except Exception as error:
        logger.warning("the random state of %s was not restored: %s: %s", name, type(error).__name__, error)
        return False
    return True


def _accelerator() -> str | None:
    """The kind of accelerator here, if it has been initialised and tells its random states."""
    if not torch.accelerator.is_available():
        return None
    device = torch.accelerator.current_accelerator()
    module = None if device is None else torch.get_device_module(device.type)
    initialised = getattr(module, "is_initialized", lambda: True)
    if device is None or not hasattr(module, "get_rng_state") or not initialised():
        return None
    return device.type


def _device_states(name: str) -> list[torch.Tensor]:
    module = torch.get_device_module(name)
    return [module.get_rng_state(i) for i in range(module.device_count())]


def _set_devices(saved: Mapping[str, list[torch.Tensor]]) -> None:
    for name, states in saved.items():
        module = getattr(torch, name, None)
        count = module.device_count() if module is not None and hasattr(module, "set_rng_state") else 0
        if count != len(states):
            logger.warning(
                "%d random states of %s devices were saved, %d devices are here; the first %d are restored",
                len(states), name, count, min(count, len(states)),
            )  # fmt: skip
        for i in range(min(count, len(states))):
            module.set_rng_state(states[i], i)  # type: ignore[union-attr]  # count is 0 without a module
