"""Reads a committed checkpoint: indexes first, then the frames that are wanted, each verified as it comes.

Relies on the manifest having been checked (``decode_manifest``). Reads nothing that is not wanted, and writes only into
memory it was given or took itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from asyncckpt.encode.base import Codec
from asyncckpt.errors import FormatError, IntegrityError
from asyncckpt.manifest.format import IndexDocument, Manifest, ShardEntry, decode_index
from asyncckpt.manifest.tree import Node, Path
from asyncckpt.restore.build import Fill
from asyncckpt.restore.execute import Pack, carry_out
from asyncckpt.restore.locations import Locate, MapLocation, locator
from asyncckpt.restore.nodes import entries, tag_of
from asyncckpt.restore.plan import LOCAL_READ, READ_BYTES, plan_reads
from asyncckpt.restore.select import Selection, prune, selected
from asyncckpt.store.base import BlockingReads, Store, read_all

STATE, RNG, OPTIMIZERS = "state", "rng", "optimizers"  # the payload: what a tree's root holds


class Reader:
    """One checkpoint. ``open()`` first."""

    def __init__(
        self,
        store: Store,
        folder: str,
        manifest: Manifest,
        *,
        codecs: Mapping[str, Codec],
        allow_pickle: bool = False,
    ) -> None:
        self._store, self._folder, self._manifest = store, folder, manifest
        self._codecs, self._allow_pickle = codecs, allow_pickle
        self._indexes: list[IndexDocument] = []

    async def open(self) -> None:
        """Read and verify the index of every shard."""
        self._indexes = [await self._index(shard) for shard in self._manifest.shards]
        if sum(index.raw_bytes for index in self._indexes) != self._manifest.raw_bytes:
            raise FormatError(
                f"{self._folder}: the indexes do not add up to the manifest's raw_bytes", defect="raw_bytes differ"
            )

    async def _index(self, shard: ShardEntry) -> IndexDocument:
        key = f"{self._folder}/{shard.index}"
        try:
            stored = await read_all(self._store, key, shard.index_bytes)
        except (EOFError, FileNotFoundError) as error:
            raise IntegrityError(f"{key} is missing or too short", file=key) from error
        return decode_index(stored, file=key, entry=shard, step=self._manifest.step)

    @property
    def tree(self) -> Node:
        """The tree of rank 0."""
        return self._indexes[0].tree

    def part(self, name: str) -> Node:
        """The node of one part of the payload; None (null) if it is not there."""
        if tag_of(self.tree) != "dict":
            raise FormatError(f"{self._folder}: the tree's root is not a dict", defect="bad payload")
        return dict(entries(self.tree)).get(name)

    def prepare(self, tree: Node, *, destinations: Mapping[Path, torch.Tensor], locate: Locate) -> Fill:
        """Check a tree (a piece of ours) and take memory for it; in the thread that will use the values."""
        return Fill(
            tree,
            self._indexes[0].raw_bytes,
            destinations=destinations,
            locate=locate,
            allow_pickle=self._allow_pickle,
        )

    async def fill(self, fill: Fill) -> None:
        """Read, verify, decode and place the bytes. Then ``fill.value()`` may be asked for.

        Raises:
            IntegrityError, FormatError: damaged or malformed; the destinations are then partly written.
        """
        index, shard = self._indexes[0], self._manifest.shards[0]
        direct = {i for i, target in enumerate(fill.targets) if target.view is not None}
        limit = LOCAL_READ if isinstance(self._store, BlockingReads) else READ_BYTES
        reads = plan_reads(index.frames, fill.wants, direct, limit=limit)
        key = f"{self._folder}/{shard.pack}"
        pack = Pack(self._store, key, index.frames, self._codecs, fill.name_of, shared=_has_peers())
        await carry_out(pack, reads, fill.targets)

    async def read(
        self,
        *,
        select: Selection | None = None,
        destinations: Mapping[Path, torch.Tensor] | None = None,
        map_location: MapLocation = "cpu",
    ) -> Any:
        """The state, or what is chosen of it; tensors with a destination that fits are filled in place."""
        tree = prune(self.part(STATE), select or selected(None))
        fill = self.prepare(tree, destinations=destinations or {}, locate=locator(map_location))
        await self.fill(fill)
        return fill.value()


def _has_peers() -> bool:
    """Whether other processes of this run are likely to restore the same checkpoint now."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


async def load_tree(
    store: Store,
    folder: str,
    manifest: Manifest,
    *,
    only: str | Sequence[str] | None = None,
    map_location: MapLocation = "cpu",
    codecs: Mapping[str, Codec],
    allow_pickle: bool = False,
) -> dict[Any, Any]:
    """The state of a checkpoint as plain values.

    Args:
        store: where it is.
        folder: of a checkpoint that passed the cheap checks.
        manifest: its manifest.
        only: key paths; only these values are read.
        map_location: where tensors go.
        codecs: by name.
        allow_pickle: unpickle what was pickled. Runs code from the file.

    Raises:
        IntegrityError, FormatError: damaged or malformed; carries the step.
        StateMismatchError: ``only`` names something that is not there.
    """
    reader = Reader(store, folder, manifest, codecs=codecs, allow_pickle=allow_pickle)
    await reader.open()
    state = await reader.read(select=selected(only), map_location=map_location)
    if not isinstance(state, dict):
        raise FormatError(f"{folder}: the state is not a dict", defect="bad payload")
    return state
