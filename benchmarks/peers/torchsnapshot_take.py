"""torchsnapshot's async_take with its defaults."""

from torchsnapshot import Snapshot, StateDict

from benchmarks.peers.base import Contestant, blank


class TorchSnapshot(Contestant):
    package = "torchsnapshot"

    def __init__(self, root, live):
        super().__init__(root, live)
        self._pending = None

    def save(self, step):
        self.finish()
        self._pending = Snapshot.async_take(str(self.place(step)), {"state": StateDict(**self.live.plain())})

    def finish(self):
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.wait()

    def load(self, step):
        target = StateDict(**blank(self.live.plain()))
        Snapshot(str(self.place(step))).restore({"state": target})
        return dict(target)
