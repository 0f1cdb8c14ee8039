"""Version counters of tensors that are copied late: what tells that one was written too early.

torch counts the in-place writes to a tensor and its views. Some kernels do not count (fused optimizers, native
batch_norm), and tensors made in inference mode have no counter: this is an alarm, not what protects.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from asyncckpt.capture.plan import SnapshotPlan
from asyncckpt.errors import TornSnapshotError
from asyncckpt.manifest.tree import leaves, render

_REGION = 3  # place in the arguments of a tensor's node


class Versions:
    """The counters of some regions' tensors at the time of the save. Any thread."""

    def __init__(self, plan: SnapshotPlan, regions: Iterable[int]) -> None:
        self._tree, self._offsets = plan.tree, plan.outline.layout.offsets
        numbers = plan.outline.region_leaves - len(plan.leaves.arrays)
        tensors = [(i, plan.leaves.tensors[numbers[i]]) for i in regions]
        self._then = {i: (tensor, _version(tensor)) for i, tensor in tensors}

    def check(self, regions: Iterable[Any]) -> None:
        """Compare, and let go of these regions' tensors. Raises ``TornSnapshotError``, which names the tensor."""
        for region in regions:
            tensor, version = self._then.pop(region, (None, None))
            if tensor is not None and _version(tensor) != version:
                raise TornSnapshotError(
                    f"{self._path(region)} was written after save() and before its copy was complete: call fence() "
                    'before anything but optimizer.step() changes the state, or use snapshot="blocking"'
                )

    def forget(self) -> None:
        """Let go of all tensors."""
        self._then.clear()

    def _path(self, region: int) -> str:
        offset = self._offsets[region]
        for path, tag, arguments in leaves(self._tree):
            if tag == "tensor" and arguments[_REGION] == offset and arguments[_REGION + 1]:
                return render(path[1:] if path[:1] == ("state",) else path)
        return "a tensor"


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001 - the only name it has


def numbers(mask: Any) -> list[int]:
    """The places where a mask is true."""
    found: list[int] = np.flatnonzero(mask).tolist()
    return found
