"""asyncckpt. ``host_memory`` comes from the workload: None, or a tenth of the state."""

import asyncckpt
from asyncckpt import AsyncCheckpointer
from benchmarks.peers.base import Contestant


class Ours(Contestant):
    package = "asyncckpt"
    durable_by_source = "data yes, directory yes"

    def __init__(self, root, live, *, snapshot, compression):
        super().__init__(root, live)
        self._handle = None
        self._checkpointer = AsyncCheckpointer(
            root, snapshot=snapshot, compression=compression, host_memory=live.host_memory, rng=False
        )

    def warm(self):
        self._checkpointer.warmup(self.live.objects())

    def save(self, step):
        self._handle = self._checkpointer.save(step, self.live.objects())

    def before_update(self):
        """Nothing: in overlapped mode the optimizer's own hook does what is needed."""

    def finish(self):
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.result()

    def load(self, step):
        return asyncckpt.load(self.root, step=step)

    def close(self):
        self._checkpointer.close()
