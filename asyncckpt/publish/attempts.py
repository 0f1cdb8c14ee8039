"""Which files of a step folder belong to which attempt. Pure; nothing is ever removed that is not named here."""

from collections.abc import Collection, Iterable, Sequence

from asyncckpt.manifest.names import attempt_of, is_temporary_manifest, parse_part
from asyncckpt.store.base import Entry


def attempts_in(entries: Iterable[Entry]) -> set[str]:
    """The save_ids that have files here."""
    owners = (None if entry.is_folder else attempt_of(entry.name) for entry in entries)
    return {owner for owner in owners if owner is not None}


def files_of(entries: Iterable[Entry], save_id: str) -> list[str]:
    """One attempt's packs, indexes and their temporary files, in the order of removal."""
    return _in_order(entry.name for entry in entries if not entry.is_folder and attempt_of(entry.name) == save_id)


def dead_files(entries: Sequence[Entry], *, named: str | None, in_flight: Collection[str]) -> list[str]:
    """What may be removed, in the order of removal.

    Args:
        entries: the folder's.
        named: the save_id that the MANIFEST names; of that attempt only temporary files may go.
        in_flight: attempts that nothing may be removed of. Where one of them has files, a temporary MANIFEST may be
            its own, and stays as well.
    """
    busy = bool(attempts_in(entries) & set(in_flight))

    def dead(name: str) -> bool:
        if is_temporary_manifest(name):
            return not busy
        owner = attempt_of(name)
        if owner is None or owner in in_flight:
            return False
        return owner != named or parse_part(name) is None

    return _in_order(entry.name for entry in entries if not entry.is_folder and dead(entry.name))


def _in_order(names: Iterable[str]) -> list[str]:
    """Indexes before packs, as a MANIFEST goes before indexes: nothing that stays names what is gone."""
    return sorted(names, key=lambda name: (".pack" in name, name))
