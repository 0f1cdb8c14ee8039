"""The copies themselves: from live memory into the buffers of one snapshot, with as little Python as can be.

Small host tensors of one dtype lie back to back in the logical byte string, so a run of them is one ``torch.cat`` into
its place. Everything else is one copy per tensor and buffer.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from asyncckpt.capture.memory import Buffer
from asyncckpt.capture.plan import SnapshotPlan
from asyncckpt.capture.sources import HOST, Source
from asyncckpt.capture.streams import CopyStreams

SMALL = 1 << 20
_JOINABLE = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8}
    | {torch.uint8, torch.bool, torch.complex64, torch.complex128}
)


class Copy(NamedTuple):
    """Bytes ``[skip, skip + nbytes)`` of a source go to ``start`` of the buffer. Without a source: zeros."""

    start: int
    nbytes: int
    source: Source | None
    skip: int


def copies_by_buffer(plan: SnapshotPlan, size: int) -> Iterator[tuple[int, list[Copy]]]:
    """For each buffer of ``size`` bytes, in order, what goes there, in order."""
    placed = zip(plan.layout.offsets, plan.sources, strict=True)
    pieces: list[tuple[int, int, Source | None]] = [(start, stop - start, None) for start, stop in plan.layout.gaps]
    pieces += [(offset, source.nbytes, source) for offset, source in placed if source.nbytes]
    pieces.sort(key=lambda piece: piece[0])
    number, copies = 0, list[Copy]()
    for offset, nbytes, source in pieces:
        skip = 0
        while skip < nbytes:
            at = offset + skip
            if at // size != number:
                yield number, copies
                number, copies = at // size, []
            take = min(nbytes - skip, (number + 1) * size - at)
            copies.append(Copy(at % size, take, source, skip))
            skip += take
    if copies:
        yield number, copies


def copy_all(copies: list[Copy], buffer: Buffer, streams: CopyStreams, held: list[Any]) -> list[torch.device]:
    """Do the copies into one buffer; give the devices whose copies are only enqueued.

    ``held`` gets everything that an enqueued copy reads; it must live until that copy is complete.
    """
    devices: dict[torch.device, None] = {}
    run: list[torch.Tensor] = []
    run_start = 0
    for copy in copies:
        joinable = _joinable(copy)
        if run and (joinable is None or joinable.dtype is not run[0].dtype):
            _join(run, run_start, buffer)
            run = []
        if joinable is not None:
            run_start = copy.start if not run else run_start
            run.append(joinable)
        elif copy.source is not None and copy.source.device.type != HOST.type:
            devices[copy.source.device] = None
            _enqueue(copy, copy.source, buffer, streams, held)
        else:
            _copy_host(copy, buffer)
    if run:
        _join(run, run_start, buffer)
    return list(devices)


def _joinable(copy: Copy) -> torch.Tensor | None:
    """The flat tensor of a small whole host source that ``torch.cat`` can take; else None."""
    source = copy.source
    if source is None or source.nbytes > SMALL or copy.nbytes != source.nbytes:
        return None
    tensor = source.tensor
    if tensor is None or tensor.device.type != HOST.type or tensor.dtype not in _JOINABLE:
        return None
    return tensor.reshape(-1)


def _join(run: list[torch.Tensor], start: int, buffer: Buffer) -> None:
    """Copy a run of flat tensors of one dtype to ``start``; they lie back to back there."""
    nbytes = sum(tensor.numel() for tensor in run) * run[0].element_size()
    target = buffer.tensor[start : start + nbytes].view(run[0].dtype)
    torch.cat(run, out=target)


def _copy_host(copy: Copy, buffer: Buffer) -> None:
    stop = copy.start + copy.nbytes
    if copy.source is None:
        buffer.array[copy.start : stop] = 0
    elif copy.source.array is not None:
        np.copyto(buffer.array[copy.start : stop], copy.source.array[copy.skip : copy.skip + copy.nbytes])
    else:
        buffer.tensor[copy.start : stop].copy_(copy.source.piece(copy.skip, copy.nbytes))


def _enqueue(copy: Copy, source: Source, buffer: Buffer, streams: CopyStreams, held: list[Any]) -> None:
    """Enqueue one copy on the device's copy stream; a tensor with holes is made contiguous there first."""
    with streams.of(source.device):
        part = source.piece(copy.skip, copy.nbytes)
        buffer.tensor[copy.start : copy.start + copy.nbytes].copy_(part, non_blocking=True)
    held += [source.tensor, part]
