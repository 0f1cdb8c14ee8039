"""What the machine itself can do with the same bytes: a copy, a durable write, a read."""

import mmap
import os
from pathlib import Path

import torch

from benchmarks.measure import forget_pages, measured

PIECE = 8 << 20


class References:
    """The state's bytes in one page-aligned touched buffer, and the plain operations on them, in seconds."""

    def __init__(self, root: Path, tensors: list[torch.Tensor]) -> None:
        self._root, self._tensors = root, tensors
        self._nbytes = sum(tensor.nbytes for tensor in tensors)
        self._memory = mmap.mmap(-1, -(-self._nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        everything, self._targets, at = torch.frombuffer(self._memory, dtype=torch.uint8), [], 0
        for tensor in sorted(tensors, key=lambda tensor: -tensor.element_size()):  # so that each stays aligned
            self._targets.append((everything[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape), tensor))
            at += tensor.nbytes
        self.copy()

    def copy(self) -> float:
        """Copy every tensor into memory that has been touched before."""
        with measured() as spent:
            for target, tensor in self._targets:
                target.copy_(tensor)
        return spent.wall

    def write(self, *, direct: bool) -> float:
        """Write all bytes to a new file and fsync it; nan if the file system refuses O_DIRECT."""
        path = self._root / "reference.bin"
        path.unlink(missing_ok=True)
        try:
            with measured() as spent:
                self._write(path, os.O_DIRECT if direct else 0)
        except OSError:
            return float("nan")
        return spent.wall

    def _write(self, path: Path, flag: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o666)
        try:
            with memoryview(self._memory) as bytes_:
                at = 0
                while at < len(bytes_):
                    at += os.write(descriptor, bytes_[at : at + PIECE])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> float:
        """Read the file last written into fresh memory, its page cache dropped before."""
        path = self._root / "reference.bin"
        forget_pages(path)
        with measured() as spent:
            path.read_bytes()
        return spent.wall

    def close(self) -> None:
        """Give the memory back, so that it is not counted as a contestant's."""
        (self._root / "reference.bin").unlink(missing_ok=True)
        self._targets.clear()
