"""asyncckpt writes PyTorch training checkpoints in the background: no stall, nothing lost, every byte checked.

The names below are the whole public API; they are imported when first used, so that ``import asyncckpt`` costs little
and listing or inspecting checkpoints does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncckpt.checkpointer import AsyncCheckpointer
    from asyncckpt.encode.base import Codec
    from asyncckpt.encode.codec import Zstd
    from asyncckpt.errors import (
        BackpressureError,
        CheckpointError,
        CheckpointNotFoundError,
        ClosedError,
        FormatError,
        IntegrityError,
        PeerFailedError,
        PermanentStoreError,
        RestoreError,
        RootInUseError,
        SaveError,
        SaveSkippedError,
        StateMismatchError,
        StoreError,
        TornSnapshotError,
        TransientStoreError,
        UnsupportedStateError,
    )
    from asyncckpt.loading import inspect, load
    from asyncckpt.manifest.catalog import CheckpointInfo
    from asyncckpt.manifest.tree import register_type
    from asyncckpt.policy.schedule import EveryEpoch, EverySeconds, EverySteps, OnBest
    from asyncckpt.publish.keep import KeepAll, KeepBest, KeepEvery, KeepLast
    from asyncckpt.restore.restored import Restored
    from asyncckpt.statistics import Statistics
    from asyncckpt.store.base import Store
    from asyncckpt.timeline import Timeline
    from asyncckpt.worker import PendingSave

__version__ = "0.1.0.dev0"

_HOMES = {
    "checkpointer": ["AsyncCheckpointer"],
    "encode.base": ["Codec"],
    "encode.codec": ["Zstd"],
    "errors": [
        "BackpressureError",
        "CheckpointError",
        "CheckpointNotFoundError",
        "ClosedError",
        "FormatError",
        "IntegrityError",
        "PeerFailedError",
        "PermanentStoreError",
        "RestoreError",
        "RootInUseError",
        "SaveError",
        "SaveSkippedError",
        "StateMismatchError",
        "StoreError",
        "TornSnapshotError",
        "TransientStoreError",
        "UnsupportedStateError",
    ],
    "loading": ["inspect", "load"],
    "manifest.catalog": ["CheckpointInfo"],
    "manifest.tree": ["register_type"],
    "policy.schedule": ["EveryEpoch", "EverySeconds", "EverySteps", "OnBest"],
    "publish.keep": ["KeepAll", "KeepBest", "KeepEvery", "KeepLast"],
    "restore.restored": ["Restored"],
    "statistics": ["Statistics"],
    "store.base": ["Store"],
    "timeline": ["Timeline"],
    "worker": ["PendingSave"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the order of a first reading
    "AsyncCheckpointer", "load", "inspect", "register_type",
    "KeepAll", "KeepBest", "KeepEvery", "KeepLast",
    "EveryEpoch", "EverySeconds", "EverySteps", "OnBest",
    "PendingSave", "CheckpointInfo", "Restored", "Statistics", "Timeline",
    "Codec", "Zstd", "Store",
    "BackpressureError", "CheckpointError", "CheckpointNotFoundError", "ClosedError", "FormatError", "IntegrityError",
    "PeerFailedError", "PermanentStoreError", "RestoreError", "RootInUseError", "SaveError", "SaveSkippedError",
    "StateMismatchError", "StoreError", "TornSnapshotError", "TransientStoreError", "UnsupportedStateError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"asyncckpt.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
