"""From the user's state to a plan, in the calling thread: objects, random states, and what may be copied late."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from asyncckpt.capture.coverage import Coverage, Mask
from asyncckpt.capture.gate import Gate
from asyncckpt.capture.plan import Planner, SnapshotPlan
from asyncckpt.errors import UnsupportedStateError
from asyncckpt.events import logger
from asyncckpt.training.stateful import Found, payload_of


class Planned(NamedTuple):
    """A plan, and which of its regions may be copied late; None: none."""

    plan: SnapshotPlan
    late: Mask | None


class Planning:
    """Plans one checkpointer's saves. One call at a time: the checkpointer serializes its callers.

    Args:
        rng: whether random states belong to the checkpoint.
        allow_pickle: see ``AsyncCheckpointer``.
        overlapped: whether what optimizers write may be copied late.
        optimizers: those; None: all that are found in the state.
        stalled: told the seconds of each fence.
    """

    def __init__(
        self,
        *,
        rng: bool,
        allow_pickle: bool,
        overlapped: bool,
        optimizers: Sequence[torch.optim.Optimizer] | None,
        stalled: Callable[[float], None],
    ) -> None:
        self.gate = Gate(stalled)
        self._rng, self._overlapped, self._optimizers = rng, overlapped, optimizers
        self._planner = Planner(allow_pickle=allow_pickle)
        self._coverage = Coverage()
        self._warned = False

    def plan(self, state: Mapping[Any, Any]) -> Planned:
        """The plan of a state with its random states.

        Raises:
            UnsupportedStateError: a value cannot be saved; its path is the one that the user knows.
        """
        try:
            payload, found = payload_of(state, rng=self._rng)
            plan = self._planner.plan(payload)
        except UnsupportedStateError as error:
            raise _for_user(error) from error.__cause__
        return Planned(plan, self._late(plan, found) if self._overlapped else None)

    def _late(self, plan: SnapshotPlan, found: Found) -> Mask:
        values = [value for _, value in found]
        modules = [value for value in values if isinstance(value, nn.Module)]
        optimizers = self._optimizers
        if optimizers is None:
            optimizers = [value for value in values if isinstance(value, torch.optim.Optimizer)]
        self.gate.watch(optimizers, modules)
        mask = self._coverage.mask(plan, optimizers, modules)
        if not mask.any() and not self._warned:
            self._warned = True
            logger.warning(
                'snapshot="overlapped": nothing in the state belongs to an optimizer that is in it or was given by '
                "optimizers=; everything is copied before save() returns"
            )
        return mask


def _for_user(error: UnsupportedStateError) -> UnsupportedStateError:
    """The error without the payload's own key, which is no business of users."""
    below = error.path.removeprefix("state").removeprefix(".")
    shown = error.path if error.path in str(error) else "state."  # long paths are cut short in messages
    message = str(error).replace(shown, "" if shown == "state." else below or "the state", 1)
    return UnsupportedStateError(message, path=below)
