"""Looking at the checkpoints of a root: which there are, which is newest, which is best. Any thread."""

from asyncckpt.loading import best_info, good_infos
from asyncckpt.manifest.catalog import committed, newest_valid
from asyncckpt.policy.schedule import History, Schedule
from asyncckpt.publish.keep import Keep
from asyncckpt.store.base import Store
from asyncckpt.threads import run_blocking


class Lookup:
    """The part of a checkpointer that only reads. ``keep`` and ``schedule`` say which metric is meant by "best"."""

    def __init__(self, store: Store, keep: Keep | None, schedule: Schedule | None) -> None:
        self._store, self._keep, self._schedule = store, keep, schedule

    def latest(self) -> int | None:
        """The newest step that passes the cheap checks (manifest digest, file sizes); None if there is none."""
        found = run_blocking(lambda: newest_valid(self._store))
        return found.step if found else None

    def best(self) -> int | None:
        """The good step with the best metric, as ``KeepBest`` or ``OnBest`` name it; None if there is none.

        Raises:
            ValueError: neither ``keep`` nor ``schedule`` names a metric.
        """
        info = best_info(good_infos(self._store), self._objective())
        return info.step if info else None

    def steps(self) -> list[int]:
        """All committed steps, ascending."""
        return run_blocking(lambda: committed(self._store))

    def _objective(self) -> tuple[str, str] | None:
        """Metric and mode that ``best`` goes by."""
        by_keep = self._keep.objective() if self._keep is not None else None
        return by_keep or (self._schedule.objective() if self._schedule is not None else None)

    def _first_history(self, resumed: int | None, seconds: float) -> History:
        """Where the schedule starts counting: behind the resumed step, knowing the metrics of what exists."""
        history = History.begin(-1 if resumed is None else resumed, seconds)
        if self._schedule is not None and self._schedule.objective() is not None:
            for info in good_infos(self._store):
                history = history.seen(info.metrics)
        return history
