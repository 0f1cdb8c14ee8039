"""The contestants: one file each, all with the small protocol of ``base.py``. Imported late: a peer may be missing."""

import importlib
from functools import partial

from benchmarks.peers.base import Contestant

_WHERE = {
    "torch_save": ("torch_save", "TorchSave", {}),
    "safetensors": ("safetensors_file", "SafetensorsFile", {}),
    "lightning": ("lightning_io", "LightningIO", {}),
    "torchsnapshot": ("torchsnapshot_take", "TorchSnapshot", {}),
    "dcp_typed": ("dcp", "DcpTyped", {}),
    "dcp_strong_1": ("dcp", "DcpStrong", {"threads": 1}),
    "dcp_strong_4": ("dcp", "DcpStrong", {"threads": 4}),
    "torch_checkpointing": ("torch_checkpointing_manager", "TorchCheckpointing", {}),
    "ours_blocking_none": ("ours", "Ours", {"snapshot": "blocking", "compression": "none"}),
    "ours_blocking_zstd": ("ours", "Ours", {"snapshot": "blocking", "compression": "zstd"}),
    "ours_overlapped_none": ("ours", "Ours", {"snapshot": "overlapped", "compression": "none"}),
    "ours_overlapped_zstd": ("ours", "Ours", {"snapshot": "overlapped", "compression": "zstd"}),
}
LABELS = {
    "torch_save": "torch.save + fsync + rename",
    "safetensors": "safetensors + fsync + rename",
    "lightning": "Lightning AsyncCheckpointIO",
    "torchsnapshot": "torchsnapshot async_take",
    "dcp_typed": "DCP async_save, as typed",
    "dcp_strong_1": "DCP kept stager, 1 thread",
    "dcp_strong_4": "DCP kept stager, 4 threads",
    "torch_checkpointing": "torch_checkpointing, locked",
    "ours_blocking_none": "asyncckpt blocking, none",
    "ours_blocking_zstd": "asyncckpt blocking, zstd",
    "ours_overlapped_none": "asyncckpt overlapped, none",
    "ours_overlapped_zstd": "asyncckpt overlapped, zstd",
}
NAMES = tuple(_WHERE)
OURS = tuple(name for name in NAMES if name.startswith("ours_"))
PEERS = tuple(name for name in NAMES if name not in OURS)


def contestant(name: str) -> "partial[Contestant]":
    """A contestant by its name, ready to be called with a folder and a live training state.

    Raises:
        ImportError: the peer is not installed.
    """
    module, kind, options = _WHERE[name]
    return partial(getattr(importlib.import_module(f"benchmarks.peers.{module}"), kind), **options)
