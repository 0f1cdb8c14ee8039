"""What does not fit between a checkpoint and the objects to restore into; gathered before anything is changed."""

from dataclasses import dataclass, field

from asyncckpt.errors import StateMismatchError
from asyncckpt.events import logger


@dataclass(slots=True)
class Problems:
    """Key paths that do not fit, see ``StateMismatchError``."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)

    def settle(self, *, strict: bool) -> None:
        """Raise if there are any and ``strict``; else warn of what will be left out."""
        if not (self.missing or self.unexpected or self.mismatched):
            return
        if strict:
            raise StateMismatchError(
                f"the checkpoint does not fit the state: {self._spelled()}. Nothing was changed; strict=False loads "
                "what fits",
                missing=self.missing,
                unexpected=self.unexpected,
                mismatched=self.mismatched,
            )
        logger.warning("the checkpoint does not fit the state, and strict=False: %s", self._spelled())

    def _spelled(self) -> str:
        differing = [f"{path} ({why})" for path, why in self.mismatched.items()]
        named = {
            "not in the checkpoint": self.missing,
            "only in the checkpoint": self.unexpected,
            "differing": differing,
        }
        return "; ".join(f"{what}: {_some(paths)}" for what, paths in named.items() if paths)


def _some(paths: list[str], most: int = 20) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more
