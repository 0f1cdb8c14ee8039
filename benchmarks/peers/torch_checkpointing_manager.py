"""torch_checkpointing's CheckpointManager: asynchronous, prewarmed, its lock held around every update.

O_DIRECT is its default for writing. Where the file system refuses what it does with it, it runs without.
"""

from torch_checkpointing import CheckpointManager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from benchmarks.peers.base import Contestant, blank


class TorchCheckpointing(Contestant):
    package = "torch-checkpointing"

    def __init__(self, root, live):
        super().__init__(root, live)
        self._write = None
        self._manager = self._build(direct=True)
        if not self._works():
            self._manager = self._build(direct=False)

    def _build(self, *, direct):
        storage = LocalFileSystemStorageConfig(use_direct_io=direct)
        return CheckpointManager(CheckpointManager.Config(storage_config=storage))

    def _works(self):
        """One failure poisons every later save of a manager: try on one that is thrown away."""
        trial = self.root / "trial"
        try:
            self._manager.save(str(trial), {"model": {"w": self.live.tensors()[0].flatten()[:1000].clone()}}).result()
        except Exception:
            self._manager._saver.close()  # noqa: SLF001 - close() of a failed manager raises before it ends its process
            return False
        return True

    def warm(self):
        self._manager.prewarm_staging(self.live.plain())

    def save(self, step):
        self._write = self._manager.save(str(self.place(step)), self.live.plain())

    def updating(self):
        return self._manager.lock()

    def finish(self):
        if self._write is not None:
            write, self._write = self._write, None
            write.result()

    def load(self, step):
        return self._manager.load(str(self.place(step)), into=blank(self.live.plain()))

    def close(self):
        self._manager.close()
