"""safetensors, then fsync and rename. Tensors under dotted names; everything else as JSON in the header."""

import json

import torch
from safetensors.torch import load_file, save_file

from benchmarks.peers.base import Contestant, flat, publish


class SafetensorsFile(Contestant):
    package = "safetensors"
    durable_by_source = "data yes, directory yes"

    def save(self, step):
        leaves = flat(self.live.plain())
        tensors = {key: leaf for key, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
        others = {key: json.dumps(leaf) for key, leaf in leaves.items() if key not in tensors}
        temporary = self.root / "saving.tmp"
        save_file(tensors, temporary, metadata=others)
        publish(temporary, self.place(step))

    def load(self, step):
        return load_file(self.place(step))
