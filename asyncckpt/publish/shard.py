"""One rank's part of a checkpoint: its pack, then its index.

Order: every frame of the pack, durable; then the index, durable. So an index that exists speaks of a whole pack.

The store pulls. Frames are encoded in encoder threads, at most ``LOOK_AHEAD`` ahead, and handed over in order, so the
slowest stage sets the pace and at most that many encoded frames, and the one last handed over, exist. A frame's memory
is given back when the store asks for what follows it. When anything fails, or the save is cancelled, no more frames
are begun; those being encoded are waited for, because their threads still read the snapshot, and every frame that was
read is given back.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Executor, Future
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from asyncckpt.encode.base import Buffer, Codec, EncodedFrame
from asyncckpt.encode.frame import encode_frame
from asyncckpt.errors import SaveError
from asyncckpt.events import Phases
from asyncckpt.manifest.documents import VERSION, FrameTable, IndexDocument, ShardEntry
from asyncckpt.manifest.format import encode_index, file_digest
from asyncckpt.manifest.names import part_name
from asyncckpt.publish.blocks import Blocks
from asyncckpt.store.base import Store, single

T = TypeVar("T")
LOOK_AHEAD: Final = 3  # two in the encoder threads and one that is ready


async def write_shard(
    store: Store,
    folder: str,
    blocks: Blocks,
    *,
    save_id: str,
    step: int,
    rank: int = 0,
    world: int = 1,
    codec: Codec | None,
    encoders: Executor,
    phases: Phases,
    look_ahead: int = LOOK_AHEAD,
) -> ShardEntry:
    """Write one rank's pack and index; both are durable on return.

    Args:
        store: the root.
        folder: the step's folder.
        blocks: the snapshot. Every frame that is read is released exactly once, also when this fails.
        save_id: the attempt's id; no file of this name exists yet.
        step: for the index.
        rank: ours.
        world: number of ranks.
        codec: None stores every frame as it is.
        encoders: threads that read, encode and digest; they must take calls in order.
        phases: ``encode``, ``write`` and ``sync`` are added.
        look_ahead: most frames that are being encoded or wait to be written; one more than the encoder threads.

    Raises:
        StoreError: the store refused; whatever reading or encoding a frame raised comes through as it is.
    """
    frames = _Frames(blocks, codec, encoders, phases, look_ahead)
    pack = part_name(save_id, rank, world, "pack")
    async with aclosing(frames.parts()) as parts:
        pack_bytes = await store.put(f"{folder}/{pack}", parts)
    phases.add("sync", time.perf_counter() - frames.drained)
    table = frames.table()
    if pack_bytes != sum(table.stored):
        raise SaveError(f"{folder}/{pack}: {sum(table.stored)} bytes were given to the store, it took {pack_bytes}")
    document = IndexDocument(
        version=VERSION,
        step=step,
        save_id=save_id,
        rank=rank,
        world=world,
        raw_bytes=blocks.raw_bytes,
        pack_bytes=pack_bytes,
        frames=table,
        tree=blocks.tree,
    )
    return await _write_index(store, folder, pack, document, encoders, phases)


async def _write_index(
    store: Store, folder: str, pack: str, document: IndexDocument, encoders: Executor, phases: Phases
) -> ShardEntry:
    name = part_name(document.save_id, document.rank, document.world, "index")
    with phases("encode"):
        data, raw_bytes = await asyncio.get_running_loop().run_in_executor(encoders, encode_index, document)
    with phases("write"):
        await store.put(f"{folder}/{name}", single(data))
    return ShardEntry(
        pack=pack,
        pack_bytes=document.pack_bytes,
        index=name,
        index_bytes=len(data),
        index_raw_bytes=raw_bytes,
        index_digest=file_digest(data),
    )


class _Stored(NamedTuple):
    """What the index says of a frame besides what the snapshot says."""

    nbytes: int
    encoding: str
    digest: bytes


@dataclass(slots=True)
class _Frames:
    """The frames of one snapshot on their way to the store. Used on one event loop; ``_encode`` in any thread.

    Attributes:
        drained: when the store had taken them all, by ``time.perf_counter()``.
    """

    blocks: Blocks
    codec: Codec | None
    encoders: Executor
    phases: Phases
    look_ahead: int
    drained: float = 0.0
    _begun: int = 0
    _ahead: deque[tuple[int, Future[EncodedFrame]]] = field(default_factory=deque)
    _stored: list[_Stored] = field(default_factory=list)

    async def parts(self) -> AsyncGenerator[Buffer, None]:
        """The bytes of the pack, in order. Must be closed."""
        try:
            while self._fill():
                i, call = self._ahead[0]
                frame = await _result(call)
                for part in frame.parts:
                    with self.phases("write"):
                        yield part
                self._stored.append(_Stored(frame.stored_bytes, frame.encoding, frame.digest))
                self._ahead.popleft()
                self.blocks.release(i)
        finally:
            await self._give_up()
        self.drained = time.perf_counter()

    def table(self) -> FrameTable:
        """The frames that the store took."""
        specs = self.blocks.frames[: len(self._stored)]
        return FrameTable(
            raw=[spec.nbytes for spec in specs],
            stored=[frame.nbytes for frame in self._stored],
            kinds=[spec.kind for spec in specs],
            encodings=[frame.encoding for frame in self._stored],
            digests=b"".join(frame.digest for frame in self._stored).hex(),
        )

    def _fill(self) -> bool:
        """Begin frames up to the look-ahead; False if there are none left to wait for."""
        while len(self._ahead) < self.look_ahead and self._begun < len(self.blocks.frames):
            self._ahead.append((self._begun, self.encoders.submit(self._encode, self._begun)))
            self._begun += 1
        return bool(self._ahead)

    def _encode(self, i: int) -> EncodedFrame:
        """Read and encode frame i, in an encoder thread. If that fails the frame is given back here."""
        raw = self.blocks.read(i)
        try:
            with self.phases("encode"):
                return encode_frame(self.codec, raw, self.blocks.frames[i].kind)
        except BaseException:
            self.blocks.release(i)
            raise

    async def _give_up(self) -> None:
        """Give back all frames that are still ahead, in order, each as soon as its thread has let go of it.

        In order, because a frame may be waiting to be captured into the memory of the one before.
        """
        interruption: asyncio.CancelledError | None = None
        for _, call in self._ahead:
            call.cancel()  # those that no thread has begun
        while self._ahead:
            i, call = self._ahead.popleft()
            interruption = await _settled(call) or interruption
            if not call.cancelled() and call.exception() is None:
                self.blocks.release(i)
        if interruption is not None:
            raise interruption


async def _result(call: Future[T]) -> T:
    """The outcome of a call in another thread. Being cancelled does not touch the call."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    call.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    await done.wait()
    return call.result()


async def _settled(call: Future[T]) -> asyncio.CancelledError | None:
    """Wait until a call has ended, however; a cancellation that arrives meanwhile is handed to the caller."""
    interruption = None
    while not call.done():
        try:
            await _result(call)
        except asyncio.CancelledError as error:
            interruption = error
        except BaseException:  # the call's own error; here only its end matters
            break
    return interruption
