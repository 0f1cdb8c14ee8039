"""Lightning's AsyncCheckpointIO over its TorchCheckpointIO. There is no call to wait for a save but ``teardown``."""

import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from benchmarks.peers.base import Contestant


class LightningIO(Contestant):
    package = "lightning"

    def __init__(self, root, live):
        super().__init__(root, live)
        self._io = AsyncCheckpointIO(TorchCheckpointIO())

    def save(self, step):
        self._io.save_checkpoint(self.live.plain(), str(self.place(step)))

    def finish(self):
        self._io.teardown()  # waits; the next save starts a new thread

    def load(self, step):
        return torch.load(self.place(step))
