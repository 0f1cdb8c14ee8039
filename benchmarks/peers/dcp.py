"""torch.distributed.checkpoint: as most users type it, and as strong as it can be made on one process."""

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.peers.base import Contestant, blank


class DcpTyped(Contestant):
    """``async_save(state, checkpoint_id=...)``, the last one awaited before the next, as the tutorial does."""

    durable_by_source = "data yes but .metadata no, directory no"

    def __init__(self, root, live):
        super().__init__(root, live)
        self._upload = None

    def save(self, step):
        self.finish()
        self._upload = dcp.async_save(self.live.plain(), checkpoint_id=str(self.place(step)), no_dist=True)

    def finish(self):
        if self._upload is not None:
            upload, self._upload = self._upload, None
            upload.result()

    def load(self, step):
        target = blank(self.live.plain())
        dcp.load(target, checkpoint_id=str(self.place(step)), no_dist=True)
        return target


class DcpStrong(DcpTyped):
    """One stager kept, staging in its thread and awaited before the update, the upload awaited before the next save."""

    def __init__(self, root, live, *, threads):
        super().__init__(root, live)
        self._threads, self._staging = threads, None
        self._stager = DefaultStager(StagingOptions(False, True, True, False))  # pinning needs an accelerator

    def warm(self):
        self._stager.stage(self.live.plain()).result()

    def save(self, step):
        self.finish()
        writer = dcp.FileSystemWriter(str(self.place(step)), thread_count=self._threads)
        response = dcp.async_save(self.live.plain(), storage_writer=writer, async_stager=self._stager, no_dist=True)
        self._staging, self._upload = response.staging_completion, response.upload_completion

    def before_update(self):
        if self._staging is not None:
            staging, self._staging = self._staging, None
            staging.result()

    def close(self):
        self._stager.close()
