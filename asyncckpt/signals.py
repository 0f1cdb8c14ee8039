"""A flag that signals raise: the run is asked to stop, and nothing else happens to it."""

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None


class SignalFlag:
    """Sets ``raised`` on the given signals and calls the handler that was there before.

    Installed only if there are signals to install for, which Python allows in the main thread only (``ValueError``
    elsewhere). ``restore()`` puts the old handlers back unless someone else has replaced ours since.
    """

    def __init__(self, signals: Sequence[int]) -> None:
        self.raised = False
        self.installed = bool(signals)
        self._old: dict[int, _Handler] = {}
        if signals and threading.current_thread() is not threading.main_thread():
            raise ValueError("handle_signals= works only where signals can be handled: in the main thread")
        for number in signals:
            self._old[number] = signal.getsignal(number)
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put the old handlers back. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, old in self._old.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, old if old is not None else signal.SIG_DFL)
        self._old = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.raised = True
        old = self._old.get(number)
        if callable(old):
            old(number, frame)
