"""Restoring into a run: one step after the other is tried until one is whole.

I/O runs on a short-lived thread; every call to the caller's objects is made in the caller's thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asyncckpt.encode.base import Codec
from asyncckpt.errors import CheckpointNotFoundError
from asyncckpt.events import logger
from asyncckpt.loading import MapLocation, Search, best_info, exact, good_infos, info_at
from asyncckpt.manifest.catalog import Found
from asyncckpt.options import check_step
from asyncckpt.restore.restored import Restored
from asyncckpt.store.base import Store
from asyncckpt.training.restore import restore_state


@dataclass(frozen=True, slots=True)
class Restoration:
    """What to restore into, and how. See ``AsyncCheckpointer.restore`` for the meaning of each."""

    store: Store
    state: Mapping[Any, Any] | None
    strict: bool
    only: str | Sequence[str] | None
    map_location: MapLocation
    codecs: Mapping[str, Codec]
    allow_pickle: bool
    rng: bool

    def run(self, step: int | Literal["latest"]) -> Restored | None:
        """Restore the newest good step, or exactly this one."""
        if step != "latest":
            return self._use(exact(self.store, check_step(step)))
        search = Search(self.store)
        try:
            restored = search.first(self._use)
        except CheckpointNotFoundError as error:
            if search.read:
                error.add_note("the objects given to restore() may hold parts of a damaged checkpoint")
            raise
        if restored is None:
            logger.info("%s holds no checkpoint: nothing is restored", self.store.url)
        return restored

    def best(self, objective: tuple[str, str] | None) -> Restored | None:
        """Restore the best by a metric; None if no step was ever committed."""
        good = good_infos(self.store)
        info = best_info(good, objective)
        if info is not None:
            return self.run(info.step)
        if good and objective is not None:
            raise CheckpointNotFoundError(f"no checkpoint has the metric {objective[0]!r}")
        return self.run("latest")

    def _use(self, found: Found) -> Restored:
        assert found.manifest is not None  # noqa: S101 - only good steps are used
        rest = restore_state(
            self.state,
            self.store,
            found.folder,
            found.manifest,
            strict=self.strict,
            only=self.only,
            map_location=self.map_location,
            codecs=self.codecs,
            allow_pickle=self.allow_pickle,
            rng=self.rng,
        )
        info = info_at(self.store, found)
        return Restored(rest, step=info.step, metrics=info.metrics, metadata=info.metadata, path=info.path)
