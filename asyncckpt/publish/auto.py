"""``compression="auto"``: frames are coded where that makes a save no slower.

Per byte of state, a pipeline of encoder threads and a store takes ``max(1 / encode, ratio / write)`` seconds with
coding, and ``1 / write`` without: encode and write are bytes per second, ratio is the size that is left. All three are
measured on the saves themselves:

* *encode* and *ratio* on coded frames: per thread, times the threads. While frames go as they are, a few of every
  eighth save are coded for that, and stored as they are all the same.
* *write* on what the store took, sync included. A store that gathers is busy while nobody waits for it, so a save
  gives bounds: its bytes over the whole time, and over the time in which the pipeline did wait. Where encoding is what
  takes long these are far apart; the upper one is believed at first, and again every so many saves: if that makes the
  next save go as it is, the rate is known after it.

The first save is coded, unless its first frames do not shrink: nothing is known of the store yet. Later the choice
changes only if that pays by more than ``SLACK``. Readers need not know: every frame names its encoding.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from asyncckpt.encode.base import Buffer, Codec, Kind
from asyncckpt.events import logger

SAMPLE: Final = 4  # frames
REMEASURE: Final = 8  # the encoders, every so many saves whose frames go as they are
DOUBT: Final = 32  # the store's rate, every so many saves whose frames are coded
SHRINKS: Final = 0.97  # a sample that stays larger is not worth coding
SLACK: Final = 0.05  # of the time without coding; keeps noise from flipping the choice
SMALLEST: Final = 16 << 20  # bytes; shorter saves say nothing of rates
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Rates:
    """What has been measured: raw bytes per second of all encoder threads, size left, stored bytes per second."""

    encode: float
    ratio: float
    write: float

    @property
    def slowdown(self) -> float:
        """Time of a save with coding, as a multiple of its time without."""
        return max(self.write / self.encode, self.ratio)

    def __str__(self) -> str:
        coded = f"coding leaves {self.ratio:.2f} of the size at {self.encode / GB:.2f} GB/s"
        return f"{coded}, the store takes {self.write / GB:.2f} GB/s"


def pays(rates: Rates, *, coding: bool) -> bool:
    """Whether to code from now on.

    Args:
        rates: as measured.
        coding: whether frames are coded now.
    """
    limit = 1 + SLACK if coding else 1 - SLACK
    return rates.ratio <= SHRINKS and rates.slowdown <= limit


@dataclass(frozen=True, slots=True)
class Written:
    """One save as the store took it.

    Attributes:
        raw_bytes: of the state.
        nbytes: stored.
        waited: seconds in which the pipeline waited for the store, sync included.
        seconds: from the first frame to the last sync.
    """

    raw_bytes: int
    nbytes: int
    waited: float
    seconds: float

    def bound(self, rate: float | None) -> float:
        """A store's rate in the light of this save; the upper bound where none was known."""
        low, high = (self.nbytes / max(seconds, 1e-9) for seconds in (self.seconds, self.waited))
        return high if rate is None else min(max(rate, low), high)


class AutoCompression:
    """Chooses for one checkpointer, save by save. Used by the worker thread only.

    Args:
        codec: what frames are coded with.
        threads: number of encoder threads.
        clock: seconds.
    """

    def __init__(self, codec: Codec, threads: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._codec, self._threads, self._clock = codec, threads, clock
        self._coding: bool | None = None  # None: nothing has been measured
        self._rates: Rates | None = None
        self._saves = 0  # since the choice last changed
        self._meter: Meter | None = None

    def begin(self, frames: int) -> Codec | None:
        """What a save of so many frames is to be coded with; None: not at all."""
        self._meter = self._next_meter(frames)
        return self._meter

    def learn(self, written: Written) -> None:
        """The save that was begun last is durable. Logs the choice for the next one where it changes."""
        meter = self._meter
        encode, ratio = (None, None) if meter is None else meter.measured(self._threads)
        if written.raw_bytes < SMALLEST:
            return
        if self._rates is not None:
            encode, ratio = encode or self._rates.encode, ratio or self._rates.ratio
        if encode is None or ratio is None:
            return
        doubtful = self._coding and self._saves % DOUBT == 0
        known = None if self._rates is None or doubtful else self._rates.write
        self._rates = Rates(encode, ratio, written.bound(known))
        self._choose(self._rates)

    def _next_meter(self, frames: int) -> "Meter | None":
        self._saves += 1
        if self._coding is not False:
            return Meter(self._codec, self._clock, trial=self._coding is None)
        if self._saves % REMEASURE:
            return None
        return Meter(self._codec, self._clock, every=max(1, frames // SAMPLE))

    def _choose(self, rates: Rates) -> None:
        coding = pays(rates, coding=self._coding is not False)
        if coding != self._coding:
            self._saves = 0
            words = "codes frames" if coding else "stores frames as they are"
            logger.info('compression="auto" %s from the next save on: %s', words, rates)
        self._coding = coding


class Meter:
    """A codec that measures itself, and that may leave frames as they are. Any thread.

    Args:
        codec: the real one.
        clock: seconds.
        trial: stop coding if the first ``SAMPLE`` frames do not shrink.
        every: code only each so-manieth frame, and throw the result away.
    """

    def __init__(
        self, codec: Codec, clock: Callable[[], float], *, trial: bool = False, every: int | None = None
    ) -> None:
        self._codec, self._clock = codec, clock
        self._trial, self._every = trial, every
        self._lock = threading.Lock()
        self._frames = 0
        self._sum = Measured()

    @property
    def name(self) -> str:
        """The codec's."""
        return self._codec.name

    def encode(self, raw: memoryview, kind: Kind) -> Sequence[Buffer] | None:
        """See ``Codec.encode``."""
        if not self._wanted():
            return None
        started = self._clock()
        parts = self._codec.encode(raw, kind)
        stored = len(raw) if parts is None else sum(map(len, parts))
        with self._lock:
            self._sum = self._sum.plus(len(raw), stored, self._clock() - started)
        return None if self._every else parts

    def decode(self, stored: memoryview, kind: Kind, into: memoryview) -> None:
        """See ``Codec.decode``."""
        self._codec.decode(stored, kind, into)

    def measured(self, threads: int) -> tuple[float | None, float | None]:
        """Raw bytes per second of so many threads, and size left; None if nothing was coded."""
        total = self._sum
        if not total.raw:
            return None, None
        return total.raw / max(total.seconds, 1e-9) * threads, total.stored / total.raw

    def _wanted(self) -> bool:
        with self._lock:
            i, self._frames = self._frames, self._frames + 1
            total = self._sum
        if self._every is not None:
            return i % self._every == 0
        return not self._trial or i < SAMPLE or total.stored <= total.raw * SHRINKS


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over coded frames: bytes before and after, seconds."""

    raw: int = 0
    stored: int = 0
    seconds: float = 0.0

    def plus(self, raw: int, stored: int, seconds: float) -> "Measured":
        """With one more frame."""
        return replace(self, raw=self.raw + raw, stored=self.stored + stored, seconds=self.seconds + seconds)
