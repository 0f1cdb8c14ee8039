"""The names of files and folders below a root. docs/format.md, "Names", is the prose of this file."""

import re
import secrets
from typing import Final, NamedTuple

MANIFEST_NAME: Final = "MANIFEST.json"
_STEP = re.compile(r"step-0*([0-9]{1,18})")
_PART = re.compile(r"([0-9a-f]{12})-([0-9]{5,9})-of-([0-9]{5,9})\.(pack|index)")
_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp")


class Part(NamedTuple):
    """What the name of a pack or an index says."""

    save_id: str
    rank: int
    world: int
    suffix: str


def new_save_id() -> str:
    """A fresh attempt's id: 12 random hex digits."""
    return secrets.token_hex(6)


def step_folder(step: int) -> str:
    """``step-000000001000`` for 1000. The width is for people's eyes; readers take any."""
    return f"step-{step:012d}"


def parse_step_folder(name: str) -> int | None:
    """The step of a folder name of ours, whatever its zero padding; None for a foreign name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def part_name(save_id: str, rank: int, world: int, suffix: str) -> str:
    """File name of one rank's ``pack`` or ``index``."""
    return f"{save_id}-{rank:05d}-of-{world:05d}.{suffix}"


def parse_part(name: str) -> Part | None:
    """The parts of a pack's or index's final name; None for any other name, also a temporary one."""
    match = _PART.fullmatch(name)
    return Part(match[1], int(match[2]), int(match[3]), match[4]) if match else None


def attempt_of(name: str) -> str | None:
    """The save_id of a pack or index name, also of its temporary form; None for a manifest or a foreign name."""
    base = _TEMPORARY.fullmatch(name)
    part = parse_part(base[1] if base else name)
    return part.save_id if part else None


def is_temporary_manifest(name: str) -> bool:
    """True for what a cut-short write of a manifest leaves behind."""
    base = _TEMPORARY.fullmatch(name)
    return base is not None and base[1] == MANIFEST_NAME
