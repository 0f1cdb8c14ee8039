"""Host memory for snapshots: taken once, reused for ever, never more than the cap.

Guarantees:

1. Memory held never exceeds the cap, and no more than ``max_in_flight`` snapshots hold any.
2. A save of a size seen before allocates nothing: buffers are of one power-of-two size, touched when made, and kept.
3. A caller that is interrupted while it waits holds nothing.
4. ``close()`` gives all memory back to the system once the last snapshot has let go.

Buffers are pinned where tensors come from an accelerator; if pinning fails they are pageable, with one warning.
All methods may be called from any thread.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic

from asyncckpt.capture.layout import FRAME
from asyncckpt.capture.memory import Buffer, allocate, empty_pinned_cache
from asyncckpt.capture.streams import CopyStreams

SMALLEST = 1 << 20
LARGEST = 64 << 20
SLICE = 0.05  # seconds between looks at whether the caller was interrupted


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """A moment's figures; bytes. ``cap`` is None until the first save tells how much is needed."""

    in_flight: int
    bytes_in_use: int
    bytes_allocated: int
    peak_bytes: int
    cap: int | None


class Pool:
    """Host memory of one checkpointer.

    Args:
        host_memory: hard cap in bytes, at least 1 MiB; None: ``max_in_flight`` times the largest snapshot.
        max_in_flight: most snapshots at a time.
    """

    def __init__(self, *, host_memory: int | None, max_in_flight: int) -> None:
        if host_memory is not None and host_memory < SMALLEST:
            raise ValueError(f"host_memory={host_memory} must be at least 1 MiB")
        self.streams = CopyStreams()
        self._host_memory, self._max_in_flight = host_memory, max_in_flight
        self._changed = threading.Condition()
        self._free: list[Buffer] = []
        self._size = 0  # bytes of one buffer; 0 before the first state is known
        self._cap = 0  # buffers
        self._reserved = self._in_use = self._allocated = self._peak = self._in_flight = 0
        self._pinned = self._closed = False

    @property
    def buffer_size(self) -> int:
        """Bytes of one buffer."""
        return self._size

    @property
    def frame_size(self) -> int:
        """Raw bytes of one frame: buffers are whole multiples of it."""
        return min(FRAME, self._size)

    def admit(self, nbytes: int, *, pinned: bool = False, timeout: float | None = None) -> "Admission | None":
        """The right to hold one snapshot of ``nbytes``; None if there is no room within ``timeout`` seconds.

        Args:
            nbytes: length of the logical byte string.
            pinned: tensors come from an accelerator.
            timeout: 0 asks once, None waits for ever.
        """
        with self._changed:
            self._fit(nbytes, pinned)
            if not self._wait_for(lambda: self._has_room(nbytes), timeout):
                return None
            self._fit(nbytes, pinned)
            need, streamed = self._need(nbytes)
            self._in_flight += 1
            self._reserved += need
            return Admission(self, need, streamed)

    def prepare(self, nbytes: int, *, pinned: bool = False) -> None:
        """Allocate, pin and touch now what ``max_in_flight`` snapshots of this size need, within the cap."""
        with self._changed:
            self._fit(nbytes, pinned)
            need, _ = self._need(nbytes)
            wanted = min(self._cap, need * self._max_in_flight)
            while self._allocated < wanted:
                self._free.append(self._allocate())

    def usage(self) -> PoolUsage:
        """The figures of now."""
        with self._changed:
            return PoolUsage(
                self._in_flight,
                self._in_use * self._size,
                self._allocated * self._size,
                self._peak,
                self._cap * self._size if self._size else self._host_memory,
            )

    def close(self) -> None:
        """Free all memory: now, or as the last snapshots let go of it."""
        with self._changed:
            self._closed = True
            self._drop_free()

    # ---- for admissions ----------------------------------------------------------------------------------------

    def take(self, stopped: Callable[[], bool]) -> Buffer | None:
        """A buffer; waits while all the cap allows are in use. None once ``stopped()``."""
        with self._changed:
            self._wait_for(lambda: self._in_use < self._cap or stopped(), None)
            if stopped():
                return None
            buffer = self._free.pop() if self._free else self._allocate()
            self._in_use += 1
            self._peak = max(self._peak, self._in_use * self._size)
            return buffer

    def give_back(self, buffer: Buffer, reserved: int) -> None:
        """Take a buffer back, and with it ``reserved`` places."""
        with self._changed:
            self._in_use -= 1
            self._reserved -= reserved
            self._free.append(buffer)
            if self._closed:
                self._drop_free()
            self._changed.notify_all()

    def leave(self, reserved: int) -> None:
        """A snapshot has ended; free the places it never used."""
        with self._changed:
            self._in_flight -= 1
            self._reserved -= reserved
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    # ---- inside, with the lock held ----------------------------------------------------------------------------

    def _wait_for(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait in slices: an interrupt that is no real signal does not end the wait for a lock."""
        deadline = None if timeout is None else monotonic() + timeout
        while not ready():
            left = SLICE if deadline is None else min(SLICE, deadline - monotonic())
            if left <= 0:
                return False
            self._changed.wait(left)
        return True

    def _need(self, nbytes: int) -> tuple[int, bool]:
        """Buffers to reserve, and whether the state is streamed through fewer than it has."""
        need = -(-nbytes // self._size)
        return (self._cap, True) if need > self._cap else (need, False)

    def _has_room(self, nbytes: int) -> bool:
        need, streamed = self._need(nbytes)
        if streamed:
            return self._in_flight == 0
        return self._in_flight < self._max_in_flight and self._reserved + need <= self._cap

    def _fit(self, nbytes: int, pinned: bool) -> None:
        """Choose the buffers' size for the first state, and again, while nothing is in flight, for a far larger one."""
        ideal = self._ideal(nbytes)
        unused = not self._in_flight and not self._in_use
        if unused and (not self._size or ideal > 4 * self._size or (pinned and not self._pinned)):
            self._drop_free()
            self._size, self._pinned, self._cap = max(ideal, self._size), pinned or self._pinned, 0
        if self._host_memory is not None:
            self._cap = self._host_memory // self._size
        else:
            self._cap = max(self._cap, self._max_in_flight * max(1, -(-nbytes // self._size)))

    def _ideal(self, nbytes: int) -> int:
        wanted = 1 << max(0, (nbytes - 1) // 8).bit_length()
        size = min(max(wanted, SMALLEST), LARGEST)
        if self._host_memory is not None:
            size = min(size, 1 << (self._host_memory // 4).bit_length() - 1)
        return size

    def _allocate(self) -> Buffer:
        buffer = allocate(self._size, pinned=self._pinned)
        self._allocated += 1
        return buffer

    def _drop_free(self) -> None:
        self._allocated -= len(self._free)
        for buffer in self._free:
            buffer.free()
        if any(buffer.pinned for buffer in self._free):
            empty_pinned_cache()
        self._free = []


class Admission:
    """One snapshot's hold on the pool. ``streamed``: its state is larger than the cap and goes through it in turns."""

    def __init__(self, pool: Pool, reserved: int, streamed: bool) -> None:
        self.streamed = streamed
        self.buffer_size, self.frame_size, self.streams = pool.buffer_size, pool.frame_size, pool.streams
        self._pool, self._reserved = pool, reserved
        self._lock = threading.Lock()
        self._held: dict[int, Buffer] = {}
        self._ended = self._cancelled = False

    def buffer(self, i: int) -> Buffer | None:
        """Take buffer i. Waits only if streamed, until an earlier one comes back. None once cancelled or released."""
        buffer = self._pool.take(lambda: self._cancelled or self._ended)
        if buffer is not None:
            with self._lock:
                self._held[i] = buffer
        return buffer

    def give_back(self, i: int) -> None:
        """Buffer i is no longer read nor written."""
        with self._lock:
            buffer = self._held.pop(i, None)
            if buffer is None:
                return
            places = 0 if self.streamed else 1
            self._reserved -= places
        self._pool.give_back(buffer, places)

    def release(self, keep: Collection[int] = ()) -> None:
        """Give everything back but what is in ``keep``, which ``give_back`` takes later. Again: does nothing."""
        for i in [i for i in self._held if i not in keep]:
            self.give_back(i)
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            self._pool.leave(self._reserved)

    def cancel(self) -> None:
        """Let ``buffer()`` return without waiting any longer: the snapshot is being given up."""
        self._cancelled = True
        self._pool.wake()
