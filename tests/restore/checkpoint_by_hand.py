"""Writes a checkpoint without capture or publish: frames and documents by hand, into a store in memory."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from asyncckpt.encode.frame import digest_of, encode_frame, known_codecs
from asyncckpt.manifest.format import (
    FrameTable,
    IndexDocument,
    Manifest,
    ShardEntry,
    decode_manifest,
    encode_index,
    encode_manifest,
    file_digest,
    part_name,
)
from asyncckpt.manifest.tree import NOT_LEAF, flatten
from asyncckpt.restore.load import Reader, load_tree
from asyncckpt.store.base import single
from asyncckpt.testing import MemoryStore

SAVE_ID = "0123456789ab"
FOLDER = "step-000000000007"


@dataclass
class Hand:
    """A state laid out by hand: storages that tensors share are one region; a region for every array."""

    frame_size: int = 1024
    codec: Any = None
    raw: bytearray = field(default_factory=bytearray)
    regions: dict = field(default_factory=dict)
    store: MemoryStore = field(default_factory=MemoryStore)
    manifest: Any = None

    def region(self, data, key=None):
        """Append bytes; give where they begin."""
        if key is not None and key in self.regions:
            return self.regions[key]
        self.raw += bytes(-len(self.raw) % 16)
        start = len(self.raw)
        self.raw += data
        if key is not None:
            self.regions[key] = start
        return start

    def tensor(self, t, device=None, flags=None):
        """The node of a tensor: its whole storage is a region."""
        storage = t.untyped_storage()
        data = bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        start = self.region(data, key=storage.data_ptr() if data else None)
        if flags is None:
            flags = "p" * isinstance(t, torch.nn.Parameter) + "g" * t.requires_grad
        strides = None if t.is_contiguous() else list(t.stride())
        name = str(t.dtype).removeprefix("torch.")
        where = device or str(t.device)
        offset = t.storage_offset() * t.element_size()
        return ["tensor", name, list(t.shape), strides, start, len(data), offset, where, flags]

    def leaf(self, value, _path):
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, np.ndarray):
            order = "C" if value.flags.c_contiguous else "F"
            data = value.tobytes(order)
            return ["array", value.dtype.str, list(value.shape), order, self.region(data), len(data)]
        if isinstance(value, bytes | bytearray):
            kind = {bytes: "bytes", bytearray: "bytearray"}.get(type(value), "pickle")
            return ["data", self.region(bytes(value)), len(value), kind]
        if isinstance(value, torch.dtype):
            return ["torch.dtype", str(value).removeprefix("torch.")]
        if isinstance(value, torch.Size):
            return ["torch.Size", *value]
        return NOT_LEAF

    def write(self, state=None, *, payload=None, tree=None, rng=None, optimizers=None, allow_pickle=False):
        """Lay out, cut, encode, commit."""
        if tree is None:
            payload = payload or {"state": state, "rng": rng, "optimizers": optimizers or {}}
            tree = flatten(payload, self.leaf, allow_pickle=allow_pickle)
        pieces = [bytes(self.raw[i : i + self.frame_size]) for i in range(0, len(self.raw), self.frame_size)]
        frames = [encode_frame(self.codec, memoryview(piece), "b1") for piece in pieces]
        stored = [b"".join(map(bytes, frame.parts)) for frame in frames]
        table = FrameTable(
            raw=[len(piece) for piece in pieces],
            stored=[len(part) for part in stored],
            kinds=["b1"] * len(pieces),
            encodings=[frame.encoding for frame in frames],
            digests="".join(digest_of([part]).hex() for part in stored),
        )
        self.commit(tree, table, b"".join(stored))
        return self

    def commit(self, tree, table, pack):
        """Put the three files."""
        total = sum(table.raw)
        index = IndexDocument(1, 7, SAVE_ID, 0, 1, total, len(pack), table, tree)
        data, raw_len = encode_index(index)
        names = [part_name(SAVE_ID, 0, 1, kind) for kind in ("pack", "index")]
        shard = ShardEntry(names[0], len(pack), names[1], len(data), raw_len, file_digest(data))
        manifest = Manifest(1, "", 7, SAVE_ID, 0.0, {}, ["dict"], total, len(pack) + len(data), {}, {}, [shard])
        files = {names[0]: pack, names[1]: data, "MANIFEST.json": encode_manifest(manifest)}
        for name, content in files.items():
            asyncio.run(self.store.put(f"{FOLDER}/{name}", single(content)))
        self.manifest = decode_manifest(files["MANIFEST.json"], file="MANIFEST.json")

    @property
    def pack_key(self):
        return f"{FOLDER}/{self.manifest.shards[0].pack}"

    def load(self, **keywords):
        """As ``asyncckpt.load``."""
        keywords.setdefault("codecs", known_codecs())
        return asyncio.run(load_tree(self.store, FOLDER, self.manifest, **keywords))

    def fill(self, destinations, **keywords):
        """Read into given tensors."""

        async def go():
            reader = Reader(self.store, FOLDER, self.manifest, codecs=known_codecs())
            await reader.open()
            return await reader.read(destinations=destinations, **keywords)

        return asyncio.run(go())


def reads_of(store):
    """Wrap a store's ``read`` to note key, start and length of each call."""
    calls: list[tuple[str, int, int]] = []
    inner = store.read

    async def read(key, start, into):
        calls.append((key, start, len(into)))
        await inner(key, start, into)

    store.read = read
    return calls
