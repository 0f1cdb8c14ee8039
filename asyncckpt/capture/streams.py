"""One copy stream per device, and the order between it and the caller's stream. Device-agnostic torch API only."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class CopyStreams:
    """Streams made once per device and kept."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.Stream] = {}

    def devices(self) -> list[torch.device]:
        """Those that have a copy stream."""
        return list(self._streams)

    def of(self, device: torch.device) -> torch.Stream:
        """The copy stream of a device."""
        if device not in self._streams:
            self._streams[device] = torch.Stream(device=device)
        return self._streams[device]

    @contextmanager
    def copying(self, devices: Iterable[torch.device]) -> Iterator[None]:
        """Around enqueueing copies: they start after what the caller has queued, and hold up what it queues next.

        The waits happen on the devices; the host waits for nothing.
        """
        callers = {device: torch.accelerator.current_stream(device) for device in devices}
        for device, caller in callers.items():
            self.follow(device, caller)
        try:
            yield
        finally:
            for device, caller in callers.items():
                self.hold_up(device, caller)

    def follow(self, device: torch.device, caller: torch.Stream) -> None:
        """What is enqueued on the copy stream from now on runs after all that the caller's stream has queued."""
        self.of(device).wait_stream(caller)

    def hold_up(self, device: torch.device, caller: torch.Stream) -> None:
        """What the caller's stream queues from now on runs after all that is enqueued on the copy stream."""
        caller.wait_event(self.mark(device))

    def mark(self, device: torch.device) -> torch.Event:
        """An event behind everything enqueued on the device's copy stream so far."""
        event = torch.Event(device=device)
        event.record(self.of(device))
        return event


def wait_for(device: torch.device, event: torch.Event) -> None:
    """Make this thread wait for an event, with the event's own device current: never a context on another.

    The device that was current before is so again afterwards, since the thread may be one of the caller's.
    """
    with torch.accelerator.device_index(device.index):
        event.synchronize()
