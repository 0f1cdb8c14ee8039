"""What every store must do, as tests: subclass ``StoreContract`` in your suite, give it ``make_store``.

::

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path):
            return MyStore(tmp_path / "root")

Plain functions that run their own event loops: no plug-in for asyncio is needed. The power cut of guarantees 1 and 3
cannot be tested from within; see docs/storage.md for what a new store must say about it.
"""

# ruff: noqa: S101, PLR2004 - these are tests, though they stand in the package

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from asyncckpt.errors import RootInUseError
from asyncckpt.store.base import Buffer, Store, read_all, single
from asyncckpt.testing.tools import (
    RACERS,
    Closable,
    Stuck,
    call,
    cancel_when,
    in_threads,
    names,
    pattern,
    raised,
    raises,
    sizes,
    split,
    winners,
)


class StoreContract:
    """Subclass me with a name that your test runner collects."""

    def make_store(self, tmp_path: Path) -> Store:
        """A fresh, empty store. Called once or more per test; a second one is independent of the first."""
        raise NotImplementedError

    def test_it_is_a_store_with_a_url(self, tmp_path: Path) -> None:
        """The object satisfies the protocol and says where it is."""
        store = self.make_store(tmp_path)
        assert isinstance(store, Store)
        assert store.url

    def test_put_then_read(self, tmp_path: Path) -> None:
        """What was put is read back, whole and in ranges, and put gives the size."""
        store = self.make_store(tmp_path)
        data = pattern(300_000)

        async def main() -> None:
            assert await store.put("f/a", split(data, 70_001)) == len(data)
            assert await read_all(store, "f/a", len(data)) == data
            into = bytearray(1000)
            await store.read("f/a", 123_457, memoryview(into))
            assert into == data[123_457:124_457]

        asyncio.run(main())

    def test_put_of_all_sizes(self, tmp_path: Path) -> None:
        """Sizes around pages and large pieces come back exactly, in few parts and in one."""
        store = self.make_store(tmp_path)
        whole = pattern((8 << 20) + 4097)

        async def main() -> None:
            for size in (0, 1, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, (8 << 20) - 1, 8 << 20, len(whole)):
                data = whole[:size]
                assert await store.put("f/one", single(data)) == size
                assert await store.put("f/many", split(data, 3_000_000)) == size
                assert await read_all(store, "f/one", size) == data
                assert await read_all(store, "f/many", size) == data

        asyncio.run(main())

    def test_parts_may_be_any_buffer_and_empty(self, tmp_path: Path) -> None:
        """Bytes, bytearrays, memoryviews and empty parts are all taken."""
        store = self.make_store(tmp_path)

        async def parts() -> AsyncIterator[Buffer]:
            for part in (b"", b"one", bytearray(b"two"), memoryview(b"three"), memoryview(b"")):
                yield part

        async def main() -> None:
            assert await store.put("f/a", parts()) == 11
            assert await read_all(store, "f/a", 11) == b"onetwothree"

        asyncio.run(main())

    def test_a_part_is_not_kept_after_the_next_is_asked_for(self, tmp_path: Path) -> None:
        """A producer may reuse one buffer for all parts, whatever their size."""
        store = self.make_store(tmp_path)

        async def parts(size: int) -> AsyncIterator[Buffer]:
            buffer = bytearray(size)
            for value in range(1, 9):
                buffer[:] = bytes([value]) * size
                yield buffer
            buffer[:] = bytes(size)

        async def main() -> None:
            for size in (1000, 1 << 20, (3 << 20) + 5):
                await store.put("f/a", parts(size))
                found = await read_all(store, "f/a", 8 * size)
                assert found == b"".join(bytes([value]) * size for value in range(1, 9))

        asyncio.run(main())

    def test_the_iterator_is_closed_after_success(self, tmp_path: Path) -> None:
        """Put closes its iterator when all is written."""
        store, parts = self.make_store(tmp_path), Closable([b"a", b"b"])
        asyncio.run(call(store.put("f/a", parts)))
        assert parts.closed

    def test_a_failing_iterator_leaves_nothing(self, tmp_path: Path) -> None:
        """The iterator's own exception comes through unchanged; no name is left; the iterator is closed."""
        store = self.make_store(tmp_path)
        for before in ([], [b"a"], [bytes(9 << 20)]):
            parts = Closable(before, error := OSError(28, "mine"))
            caught = raised(lambda parts=parts: asyncio.run(call(store.put("f/a", parts))))  # type: ignore[misc]
            assert caught is error
            assert parts.closed
            assert names(store, "f") == set()

    def test_replacing_is_atomic(self, tmp_path: Path) -> None:
        """Until put has returned, readers see the old content, whole."""
        store = self.make_store(tmp_path)
        old, new = b"o" * 5000, b"n" * 9000

        async def parts() -> AsyncIterator[Buffer]:
            yield new[:4000]
            assert await read_all(store, "f/a", len(old)) == old
            yield new[4000:]
            assert await read_all(store, "f/a", len(old)) == old

        async def main() -> None:
            await store.put("f/a", single(old))
            await store.put("f/a", parts())
            assert await read_all(store, "f/a", len(new)) == new
            assert sizes(await store.list("f")) == {"a": len(new)}

        asyncio.run(main())

    def test_a_failed_replacement_keeps_the_old_content(self, tmp_path: Path) -> None:
        """An object that was to be replaced is untouched when the put fails."""
        store = self.make_store(tmp_path)
        asyncio.run(call(store.put("f/a", single(b"old"))))
        raised(lambda: asyncio.run(call(store.put("f/a", Closable([b"new"], ValueError("mine"))))))
        assert asyncio.run(call(read_all(store, "f/a", 3))) == b"old"

    def test_a_cancelled_put_leaves_nothing(self, tmp_path: Path) -> None:
        """Cancelling a put that waits for its next part cleans up and closes the iterator."""
        store = self.make_store(tmp_path)
        for size in (10, 20 << 20):
            parts = Stuck(bytes(size))
            asyncio.run(cancel_when(parts.waiting, store.put("f/a", parts)))
            assert parts.closed
            assert names(store, "f") == set()

    def test_put_new_takes_only_a_free_name(self, tmp_path: Path) -> None:
        """A second put_new raises FileExistsError and changes nothing."""
        store = self.make_store(tmp_path)

        async def main() -> None:
            await store.put_new("f/a", b"first")
            with raises(FileExistsError):
                await store.put_new("f/a", b"second")
            assert await read_all(store, "f/a", 5) == b"first"
            assert sizes(await store.list("f")) == {"a": 5}

        asyncio.run(main())

    def test_put_new_has_one_winner_in_one_loop(self, tmp_path: Path) -> None:
        """Of 16 racing tasks exactly one succeeds, and its bytes are there."""
        store = self.make_store(tmp_path)

        async def main() -> None:
            racers = [store.put_new("f/a", b"%02d" % i) for i in range(RACERS)]
            won = winners(await asyncio.gather(*racers, return_exceptions=True))
            assert await read_all(store, "f/a", 2) == b"%02d" % won

        asyncio.run(main())

    def test_put_new_has_one_winner_over_threads(self, tmp_path: Path) -> None:
        """Of 16 racing threads with event loops of their own exactly one succeeds."""
        store = self.make_store(tmp_path)
        start = threading.Barrier(RACERS)

        def race(i: int) -> None:
            start.wait()
            asyncio.run(call(store.put_new("f/a", b"%02d" % i)))

        won = winners([future.exception() for future in in_threads(race)])
        assert asyncio.run(call(read_all(store, "f/a", 2))) == b"%02d" % won

    def test_reading_what_is_not_there(self, tmp_path: Path) -> None:
        """FileNotFoundError for a missing name or folder; EOFError for bytes past the end."""
        store = self.make_store(tmp_path)

        async def main() -> None:
            for key in ("a", "f/a"):
                with raises(FileNotFoundError):
                    await read_all(store, key, 1)
            await store.put("f/a", single(b"12345"))
            with raises(FileNotFoundError):
                await read_all(store, "f/b", 1)
            for start, size in ((0, 6), (5, 1), (100, 1)):
                with raises(EOFError):
                    await store.read("f/a", start, memoryview(bytearray(size)))
            await store.read("f/a", 5, memoryview(bytearray()))

        asyncio.run(main())

    def test_listing_shows_one_level(self, tmp_path: Path) -> None:
        """Files with their sizes and folders, right below; a folder that is not there is empty."""
        store = self.make_store(tmp_path)

        async def main() -> None:
            assert await store.list("") == []
            assert await store.list("f") == []
            await store.put("f/a", single(b"123"))
            await store.put("f/b", single(b""))
            await store.put("ff/c", single(b"1"))
            await store.put("d", single(b"12"))
            assert sizes(await store.list("")) == {"f/": 0, "ff/": 0, "d": 2}
            assert sizes(await store.list("f")) == {"a": 3, "b": 0}

        asyncio.run(main())

    def test_deleting(self, tmp_path: Path) -> None:
        """Deleted names are gone, missing ones are fine, a folder left empty goes, others stay."""
        store = self.make_store(tmp_path)

        async def main() -> None:
            await store.delete(["a", "f/a"])
            for key in ("f/a", "f/b", "g/a", "c"):
                await store.put(key, single(b"1"))
            await store.delete(["f/a", "f/none"])
            assert sizes(await store.list("f")) == {"b": 1}
            await store.delete(["f/b", "g/a", "c"])
            assert await store.list("") == []
            await store.delete([])
            await store.put("f/a", single(b"again"))
            assert await read_all(store, "f/a", 5) == b"again"

        asyncio.run(main())

    def test_operations_side_by_side(self, tmp_path: Path) -> None:
        """Many puts and reads may run at once on one loop, and on several."""
        store = self.make_store(tmp_path)

        async def one(key: str) -> None:
            data = key.encode() * 50_000
            await store.put(key, split(data, 64_000))
            assert await read_all(store, key, len(data)) == data

        async def some(thread: int) -> None:
            await asyncio.gather(*(one(f"f/{thread}-{i}") for i in range(3)))

        for future in in_threads(lambda thread: asyncio.run(some(thread)), 4):
            future.result()
        assert len(names(store, "f")) == 12

    def test_the_writer_lock_is_exclusive_or_absent(self, tmp_path: Path) -> None:
        """It can be taken again after release; a second holder gets RootInUseError, where the store can lock."""
        store = self.make_store(tmp_path)
        for _ in range(2):
            with store.writer_lock():
                refused = raised(lambda: store.writer_lock().__enter__())
                assert refused is None or isinstance(refused, RootInUseError)
