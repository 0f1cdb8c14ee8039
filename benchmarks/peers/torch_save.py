"""torch.save, then fsync and rename: what a careful user writes, and the floor of every comparison."""

import torch

from benchmarks.peers.base import Contestant, publish


class TorchSave(Contestant):
    durable_by_source = "data yes, directory yes"

    def save(self, step):
        temporary = self.root / "saving.tmp"
        torch.save(self.live.plain(), temporary)
        publish(temporary, self.place(step))

    def load(self, step):
        return torch.load(self.place(step))
