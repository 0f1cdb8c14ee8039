"""What ``restore`` gives back."""

from collections.abc import Iterator, Mapping
from typing import Any


class Restored(Mapping[Any, Any]):
    """What was not loaded in place, by the keys it has in the state, and where it came from.

    Attributes:
        step: the step that was restored.
        metrics: name -> number, as given to ``save()``.
        metadata: as given to ``save()``.
        path: where the checkpoint is, an absolute path or a URL.
    """

    __slots__ = ("_values", "metadata", "metrics", "path", "step")

    def __init__(
        self,
        values: Mapping[Any, Any],
        *,
        step: int,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[Any, Any] | None = None,
        path: str = "",
    ) -> None:
        self._values = dict(values)
        self.step = step
        self.metrics = dict(metrics or {})
        self.metadata = dict(metadata or {})
        self.path = path

    def __getitem__(self, key: Any) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise KeyError(f"{key!r} was loaded in place or is not in step {self.step}; here: {list(self)!r}") from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        """A checkpoint was restored, even if nothing is left to hand out: ``if restored:`` must not skip it."""
        return True

    def __repr__(self) -> str:
        return f"Restored(step={self.step}, path={self.path!r}, keys={list(self._values)!r})"
