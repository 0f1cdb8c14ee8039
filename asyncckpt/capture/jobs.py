"""Copies that several threads share: each takes the next one until none is left.

Whoever needs the copies to be done takes part himself (``finish``): so nobody waits for a thread of low priority, or
for one that could not be started, and a copy that runs already is short.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable


class Jobs:
    """A queue of calls. Any thread may call any method.

    Args:
        calls: begun in this order, each once.
        failed: gets what a call raised; the calls that nobody has begun are then dropped.
    """

    def __init__(self, calls: list[Callable[[], None]], failed: Callable[[BaseException], None]) -> None:
        self._calls = deque(calls)
        self._failed = failed
        self._changed = threading.Condition()
        self._working = set[int]()  # threads that are in a call

    def start(self, threads: int, name: str) -> None:
        """Begin in so many threads of their own; in fewer if no more can be started."""
        for i in range(threads):
            try:
                threading.Thread(target=self._in_background, name=f"{name}-{i}", daemon=False).start()
            except RuntimeError:  # the system's limit, or the interpreter is shutting down
                return

    def work(self) -> None:
        """Do calls until none is left to begin. Raises what a call raises."""
        try:
            while (call := self._take()) is not None:
                call()
        except BaseException as error:
            self._drop()
            self._failed(error)
            raise
        finally:
            self._leave()

    def finish(self) -> None:
        """Return when all are done, doing those that nobody has begun. Raises what one of these raises."""
        self.work()
        self._settle()

    def cancel(self) -> None:
        """Drop those that nobody has begun, and wait for the others."""
        self._drop()
        self._leave()  # an interrupt may have kept this thread from it
        self._settle()

    def done(self) -> bool:
        """Whether none is left, nor being done."""
        with self._changed:
            return not self._calls and not self._working

    def _in_background(self) -> None:
        with contextlib.suppress(Exception):  # ``failed`` has it
            self.work()

    def _take(self) -> Callable[[], None] | None:
        with self._changed:
            if not self._calls:
                return None
            self._working.add(threading.get_ident())
            return self._calls.popleft()

    def _drop(self) -> None:
        with self._changed:
            self._calls.clear()

    def _leave(self) -> None:
        with self._changed:
            self._working.discard(threading.get_ident())
            self._changed.notify_all()

    def _settle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._working)
