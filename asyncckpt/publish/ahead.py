"""Frames being encoded in other threads, ahead of the one that is wanted next.

Every frame that is begun has exactly one outcome in the end: encoded, failed, or passed over because the save was
given up first. Frames are submitted in batches, which one thread works off in order; each outcome can be taken as soon
as it is there, so a frame of a batch may wait for memory that an earlier one gives back. Waking a thread costs more
than the checksum of a megabyte: the event loop is woken only for the frame that it waits for.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import NamedTuple

from asyncckpt.encode.base import EncodedFrame

Outcome = EncodedFrame | BaseException | None  # None: passed over, never read


class _Wanted(NamedTuple):
    """The frame that the event loop waits for."""

    i: int
    loop: asyncio.AbstractEventLoop
    arrived: asyncio.Event


class Ahead:
    """The frames begun and not yet dropped, in order. Used on one event loop, but for what encoder threads deliver.

    Args:
        encode: reads and encodes one frame; called in the threads of ``encoders``.
        encoders: must take calls in order.
        total: number of frames.
        limit: most frames begun and not yet dropped.
        batch: frames of one call.
    """

    def __init__(
        self, encode: Callable[[int], EncodedFrame], encoders: Executor, *, total: int, limit: int, batch: int
    ) -> None:
        self._encode, self._encoders = encode, encoders
        self._total, self._limit, self._batch = total, limit, min(batch, limit)
        self._lock = threading.Lock()
        self._outcomes: dict[int, Outcome] = {}
        self._wanted: _Wanted | None = None
        self._batches: deque[tuple[range, Future[None]]] = deque()
        self._first = self._begun = 0
        self._stopped = False

    def fill(self) -> bool:
        """Begin frames up to the limit; False if there are none left to wait for."""
        while self._begun < self._total and self._begun + self._batch <= self._first + self._limit:
            batch = range(self._begun, min(self._begun + self._batch, self._total))
            self._batches.append((batch, self._encoders.submit(self._work_off, batch)))
            self._begun = batch.stop
        return self._first < self._begun

    async def first(self) -> EncodedFrame:
        """The first frame, as soon as it is encoded; raises what encoding it raised."""
        await self._arrival(self._first)
        outcome = self._outcomes[self._first]
        if not isinstance(outcome, EncodedFrame):
            raise outcome or asyncio.CancelledError
        return outcome

    def ready(self) -> Iterator[EncodedFrame]:
        """The encoded frames from the first on that need no waiting."""
        for i in range(self._first, self._begun):
            outcome = self._outcomes.get(i)
            if not isinstance(outcome, EncodedFrame):
                return
            yield outcome

    def drop(self) -> int:
        """Forget the first frame; give its number."""
        del self._outcomes[self._first]
        while self._batches and self._batches[0][0].stop <= self._first + 1:
            self._batches.popleft()
        self._first += 1
        return self._first - 1

    async def give_up(self, release: Callable[[int], None]) -> None:
        """Begin nothing more, and release all encoded frames in order, each as soon as its thread has let go of it.

        In order, because a frame may be waiting to be captured into the memory of the one before.
        """
        self._stopped = True
        for batch, call in self._batches:
            if call.cancel():  # no thread had begun it
                self._deliver_all(batch)
        interruption: asyncio.CancelledError | None = None
        while self._first < self._begun:
            interruption = await self._settled(self._first) or interruption
            encoded = isinstance(self._outcomes[self._first], EncodedFrame)
            i = self.drop()
            if encoded:
                release(i)
        if interruption is not None:
            raise interruption

    async def _arrival(self, i: int) -> None:
        """Wait until frame i has its outcome. Being cancelled does not touch the threads."""
        with self._lock:
            if i in self._outcomes:
                return
            self._wanted = wanted = _Wanted(i, asyncio.get_running_loop(), asyncio.Event())
        await wanted.arrived.wait()

    async def _settled(self, i: int) -> asyncio.CancelledError | None:
        """Like ``_arrival``; a cancellation that arrives meanwhile is handed to the caller."""
        interruption = None
        while i not in self._outcomes:
            try:
                await self._arrival(i)
            except asyncio.CancelledError as error:
                interruption = error
        return interruption

    # ---- in encoder threads ------------------------------------------------------------------------------------

    def _work_off(self, batch: range) -> None:
        for i in batch:
            if self._stopped:
                self._deliver_all(range(i, batch.stop))
                return
            try:
                outcome: Outcome = self._encode(i)
            except BaseException as error:
                outcome = error
            self._deliver(i, outcome)
            del outcome  # a thread that goes on must not keep it alive

    def _deliver_all(self, frames: range) -> None:
        for i in frames:
            self._deliver(i, None)

    def _deliver(self, i: int, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes[i] = outcome
            wanted = self._wanted
            if wanted is None or wanted.i != i:
                return
            self._wanted = None
        wanted.loop.call_soon_threadsafe(wanted.arrived.set)
