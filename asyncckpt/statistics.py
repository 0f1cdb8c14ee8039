"""What a checkpointer has done so far, counted."""

import threading
from dataclasses import dataclass

from asyncckpt.events import SaveEvent


@dataclass(frozen=True, slots=True)
class Statistics:
    """A moment's counts. Bytes and seconds; ``stalled`` is time the caller spent inside ``save()``.

    Attributes:
        committed: saves that became checkpoints.
        skipped: saves not begun because a limit was reached.
        superseded: saves dropped in favour of a newer one.
        failed: saves that ended with an error.
        in_flight: snapshots in host memory now.
        in_flight_bytes: pool memory they hold.
        pool_bytes: pool memory allocated.
        pool_peak_bytes: the most that was in use at once.
        stalled_copy: seconds of ``save()`` spent reading and copying the state.
        stalled_backpressure: seconds of ``save()`` spent waiting for room.
        stalled_fence: seconds spent waiting in ``fence()``.
        raw_bytes: bytes of state committed.
        stored_bytes: bytes of pack and index files committed.
    """

    committed: int
    skipped: int
    superseded: int
    failed: int
    in_flight: int
    in_flight_bytes: int
    pool_bytes: int
    pool_peak_bytes: int
    stalled_copy: float
    stalled_backpressure: float
    stalled_fence: float
    raw_bytes: int
    stored_bytes: int


class Tally:
    """Adds up outcomes and stalls; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes = dict.fromkeys(("committed", "skipped", "superseded", "failed"), 0)
        self.stalls = dict.fromkeys(("copy", "wait", "fence"), 0.0)
        self.raw_bytes = 0
        self.stored_bytes = 0

    def count(self, event: SaveEvent) -> None:
        """One save's outcome."""
        with self._lock:
            self.outcomes[event.outcome] += 1
            if event.outcome == "committed":
                self.raw_bytes += event.raw_bytes
                self.stored_bytes += event.stored_bytes

    def stall(self, phase: str, seconds: float) -> None:
        """Time the caller spent waiting in one phase."""
        with self._lock:
            self.stalls[phase] += seconds

    def freeze(self, in_flight: int, in_flight_bytes: int, pool_bytes: int, pool_peak_bytes: int) -> Statistics:
        """The counts of now."""
        with self._lock:
            return Statistics(
                **self.outcomes,
                in_flight=in_flight,
                in_flight_bytes=in_flight_bytes,
                pool_bytes=pool_bytes,
                pool_peak_bytes=pool_peak_bytes,
                stalled_copy=self.stalls["copy"],
                stalled_backpressure=self.stalls["wait"],
                stalled_fence=self.stalls["fence"],
                raw_bytes=self.raw_bytes,
                stored_bytes=self.stored_bytes,
            )
