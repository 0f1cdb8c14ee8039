"""``map_location``: on which device a saved tensor comes to life. The device it was saved from is never needed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from asyncckpt.manifest.format import TensorLeaf
from asyncckpt.manifest.tree import Path

MapLocation = str | torch.device | Mapping[Any, Any] | Callable[[str], Any] | None
Locate = Callable[[Path, TensorLeaf], torch.device]

_CPU: Final = torch.device("cpu")
_GENERATOR_STATES: Final = frozenset({(16,), (5056,)})  # bytes of an accelerator's generator state, and of the CPU's


def locator(map_location: MapLocation) -> Locate:
    """Where each tensor goes.

    Args:
        map_location: a device, for all; a dict from saved device (``"cuda:0"``, or ``"cuda"`` for each of them) to
            device; a callable from saved device to device; None: the CPU. What a dict does not list, and what a
            callable gives None for, goes to the CPU.

    Generator states are of use on the CPU only, and stay there whatever is asked for.
    """
    choose = _chooser(map_location)
    known: dict[str, torch.device] = {}

    def locate(_path: Path, leaf: TensorLeaf) -> torch.device:
        if is_generator_state(leaf):
            return _CPU
        if leaf.device not in known:
            known[leaf.device] = _device(choose(leaf.device))
        return known[leaf.device]

    return locate


def is_generator_state(leaf: TensorLeaf) -> bool:
    """Whether a tensor looks like what ``get_rng_state()`` gives."""
    return leaf.dtype == "uint8" and leaf.device == "cpu" and leaf.shape in _GENERATOR_STATES


def _chooser(map_location: MapLocation) -> Callable[[str], Any]:
    if callable(map_location):
        return map_location
    if isinstance(map_location, Mapping):
        table = {str(key): value for key, value in map_location.items()}
        return lambda saved: table.get(saved, table.get(saved.partition(":")[0]))
    if map_location is None or isinstance(map_location, str | torch.device):
        return lambda _saved: map_location
    raise TypeError(f"map_location must be a device, a dict or a callable, not a {type(map_location).__qualname__}")


def _device(choice: Any) -> torch.device:
    return _CPU if choice is None else torch.device(choice)
