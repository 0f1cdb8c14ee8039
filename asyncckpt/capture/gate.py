"""The gate between late copies and the next write to what they read.

Parameters and optimizer state do not change between one ``optimizer.step()`` and the next. So hooks that run before
``step()``, and before ``load_state_dict()`` of optimizers and modules, are where pending copies must be finished. A
hook stays on its object until ``close()``; while nothing is pending it costs one look at an empty list.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from asyncckpt.capture.ranges import profiled


class Fenced(Protocol):
    """A snapshot, as the gate sees it."""

    def fence(self) -> None:
        """Finish, or make the current streams wait for, all copies."""
        ...

    def settled(self) -> bool:
        """Whether no copy is under way any more."""
        ...


class Gate:
    """Knows the snapshots with pending copies. Any thread; a forked child has none pending.

    Args:
        stalled: told the seconds that each fence took.
    """

    def __init__(self, stalled: Callable[[float], None]) -> None:
        self._stalled = stalled
        self._lock = threading.RLock()  # a signal handler may save in the middle of a fence
        self._pending: list[tuple[Fenced, Callable[[float], None]]] = []
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handles: list[Any] = []
        self._process = os.getpid()

    def watch(self, optimizers: Iterable[torch.optim.Optimizer], modules: Iterable[nn.Module]) -> None:
        """Fence before these are written; once for each object."""
        for optimizer in optimizers:
            if optimizer not in self._watched:
                hook: Any = torch.compiler.disable(lambda *_: self.fence())  # type: ignore[no-untyped-call]
                self._handles.append(optimizer.register_step_pre_hook(hook))
                self._handles.append(optimizer.register_load_state_dict_pre_hook(lambda *_: self.fence()))
                self._watched.add(optimizer)
        for module in modules:
            if module not in self._watched:
                for part in module.modules():
                    before: Any = part.register_load_state_dict_pre_hook
                    self._handles.append(before(_BeforeLoading(self)))
                self._watched.add(module)

    def add(self, snapshot: Fenced, fenced: Callable[[float], None]) -> None:
        """A snapshot has copies pending. ``fenced`` is told the seconds of its fence."""
        with self._lock:
            self._pending = [entry for entry in self._pending if not entry[0].settled()]
            self._pending.append((snapshot, fenced))

    def fence(self) -> None:
        """Make everything that is pending safe against what this thread does next.

        Copies on devices stay pending until they are through: another thread, on another stream, may ask as well.
        """
        if not self._pending or os.getpid() != self._process:
            return
        with self._lock:
            for snapshot, fenced in self._pending:
                started = time.perf_counter()
                with profiled("asyncckpt.fence"):
                    snapshot.fence()
                seconds = time.perf_counter() - started
                fenced(seconds)
                self._stalled(seconds)
            self._pending = [entry for entry in self._pending if not entry[0].settled()]

    def close(self) -> None:
        """Fence, and take all hooks away."""
        self.fence()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched.clear()


class _BeforeLoading:
    """A hook of a module. Copies of the module, made by deepcopy or pickle, get one that does nothing."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __call__(self, *_: Any) -> None:
        self._gate.fence()

    def __reduce__(self) -> Any:
        return _no_hook, ()


def _no_hook() -> Any:
    return _pass


def _pass(*_: Any) -> None:
    """Do nothing."""
