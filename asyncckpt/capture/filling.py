"""The order of the copies of one snapshot: what is done at once, what is enqueued, what may come late."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from asyncckpt.capture.copying import Copier
from asyncckpt.capture.jobs import Jobs
from asyncckpt.capture.memory import Buffer
from asyncckpt.capture.program import Part, Pieces
from asyncckpt.capture.streams import CopyStreams

MANY: Final = 16 << 20  # bytes of host memory from which on several threads copy faster than one
THREADS: Final = 4  # more are of no use: memory is the limit

Mask = npt.NDArray[np.bool_]


class Slots(Protocol):
    """The buffers that are filled, by number."""

    def buffer(self, i: int) -> Buffer:
        """Buffer i, which has been taken."""
        ...

    def expect(self, i: int, copies: int) -> None:
        """So many more copies are to be done before buffer i is complete."""
        ...

    def copied(self, i: int, regions: Iterable[Any] = ()) -> None:
        """One of them is done. ``regions``: those it copied, if they may have been written meanwhile."""
        ...

    def sources(self, i: int) -> list[Any]:
        """What must live until the enqueued copies to buffer i are complete."""
        ...


class Filling:
    """Copies the parts of one plan into slots. Used by the capturing thread; its jobs by any."""

    def __init__(self, copier: Copier, slots: Slots, failed: Callable[[BaseException], None]) -> None:
        self._copier, self._slots, self._failed = copier, slots, failed

    def jobs(self, parts: list[Part], mask: Mask | None, *, late: bool = False) -> Jobs:
        """The copies out of host memory, for the regions of the mask."""
        calls = list[Callable[[], None]]()
        for part in parts:
            pieces = _chosen(part.host, mask)
            if len(pieces.nbytes):
                self._slots.expect(part.buffer, 1)
                calls.append(partial(self._host, part.buffer, pieces, late))
        return Jobs(calls, self._failed)

    def enqueue(self, parts: list[Part], mask: Mask | None, streams: CopyStreams) -> Iterator[tuple[int, set[Any]]]:
        """All other copies, for the regions of the mask; gives buffers and the devices that will write to them."""
        for part in parts:
            pieces = _chosen(part.others, mask)
            if len(pieces.nbytes):
                i = part.buffer
                yield i, self._copier.others(pieces, self._slots.buffer(i), streams, self._slots.sources(i))

    def zero(self, parts: list[Part]) -> None:
        """The gaps."""
        for part in parts:
            for start, stop in part.gaps:
                self._slots.buffer(part.buffer).array[start:stop] = 0

    def _host(self, i: int, pieces: Pieces, late: bool) -> None:
        self._copier.host(pieces, self._slots.buffer(i))
        self._slots.copied(i, pieces.regions.tolist() if late else ())


def run(jobs: Jobs, nbytes: int) -> None:
    """Do all jobs now, with as many threads as help."""
    if nbytes >= MANY:
        jobs.start(min(torch.get_num_threads(), THREADS) - 1, "asyncckpt-copy")
    jobs.finish()


def _chosen(pieces: Pieces, mask: Mask | None) -> Pieces:
    return pieces if mask is None or not len(pieces.nbytes) else pieces.where(mask[pieces.regions])
