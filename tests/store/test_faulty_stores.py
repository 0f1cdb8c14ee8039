"""The stores for tests: faults that strike where they should, gates that hold and let go."""

import asyncio
import errno
import threading

import pytest

from asyncckpt.errors import PermanentStoreError, RootInUseError, TransientStoreError
from asyncckpt.store.base import read_all, single
from asyncckpt.store.local import LocalStore
from asyncckpt.testing import Fault, FaultyStore, GateStore, MemoryStore


async def two(part=b"12345"):
    """Two parts."""
    yield part
    yield part


async def save(store):
    """Seven operations."""
    await store.put("f/a", two())
    await store.put_new("f/b", b"x")
    await store.list("f")
    await read_all(store, "f/a", 10)
    await store.delete(["f/a"])


def test_operations_are_recorded():
    """Every call counts, and in a put every part."""
    store = FaultyStore(MemoryStore())
    asyncio.run(save(store))
    names = [operation.name for operation in store.operations]
    assert names == ["put", "part", "part", "put_new", "list", "read", "delete"]
    assert [operation.number for operation in store.operations] == list(range(1, 8))
    assert store.operations[3].key == "f/b"


@pytest.mark.parametrize("k", range(1, 8))
def test_the_kth_operation_fails_once(k):
    """The error has the errno asked for; the same run then passes; a put that failed left nothing."""
    inner = MemoryStore()
    store = FaultyStore(inner, Fault(at=k, errno=errno.ENOSPC))
    with pytest.raises(PermanentStoreError) as caught:
        asyncio.run(save(store))
    assert caught.value.errno == errno.ENOSPC
    assert [operation.number for operation in store.operations if operation.failed] == [k]
    assert ("f/a" in inner.objects) == (k > 3)
    asyncio.run(save(FaultyStore(MemoryStore(), Fault(at=k + 7))))


def test_a_fault_for_ever_and_its_end():
    """It strikes until it is lifted."""
    store = FaultyStore(MemoryStore(), Fault(for_ever=True, transient=True, where=lambda op: op.name == "put_new"))
    for _ in range(3):
        with pytest.raises(TransientStoreError):
            asyncio.run(save(store))
    store.set_fault(None)
    asyncio.run(save(store))


@pytest.mark.parametrize(("after", "parts"), [(3, 1), (7, 2), (10, 2), (99, 2)])
def test_a_put_fails_after_some_bytes(tmp_path, after, parts):
    """So many bytes get through, then the error comes; nothing stays under the name."""
    inner = LocalStore(tmp_path)
    store = FaultyStore(inner, Fault(errno=errno.EDQUOT, after_bytes=after, where=lambda op: op.name == "put"))
    with pytest.raises(PermanentStoreError) as caught:
        asyncio.run(save(store))
    assert caught.value.errno == errno.EDQUOT
    assert sum(operation.name == "part" for operation in store.operations) == parts
    assert list(tmp_path.glob("f/*")) == []


def test_a_failing_lock():
    """The lock can fail too, and is otherwise that of the inner store."""
    store = FaultyStore(MemoryStore(), Fault())
    with pytest.raises(PermanentStoreError):
        store.writer_lock()
    with store.writer_lock(), pytest.raises(RootInUseError):
        store.writer_lock().__enter__()


def test_operations_can_be_slowed():
    """The hook is awaited with each operation."""
    seen = []

    async def slow(operation):
        seen.append(operation.name)
        await asyncio.sleep(0)

    asyncio.run(save(FaultyStore(MemoryStore(), slow=slow)))
    assert seen == ["put", "part", "part", "put_new", "list", "read", "delete"]


@pytest.mark.parametrize("operations", [{"put"}, {"part"}, {"put_new"}, {"delete"}])
def test_a_gate_holds_until_opened_from_another_thread(operations):
    """The chosen operation waits, ``entered`` says so, and ``open()`` lets it go on from any thread."""
    inner = MemoryStore()
    store = GateStore(inner, operations)
    thread = threading.Thread(target=lambda: asyncio.run(save(store)))
    thread.start()
    assert store.entered.wait(30)
    assert "f/b" not in inner.objects or operations == {"delete"}
    store.open()
    thread.join()
    assert set(inner.objects) == {"f/b"}


def test_a_gate_for_some_keys():
    """Only keys with the suffix are held up."""
    store = GateStore(MemoryStore(), {"put", "put_new"}, suffix="MANIFEST.json")
    asyncio.run(save(store))
    assert not store.entered.is_set()


def test_a_gate_can_be_closed_again():
    """After ``close()`` operations wait anew, on other event loops too."""
    store = GateStore(inner := MemoryStore())
    store.open()
    asyncio.run(save(store))
    store.close()
    for _ in range(2):
        store.entered.clear()
        thread = threading.Thread(target=lambda: asyncio.run(put_again(store)))
        thread.start()
        assert store.entered.wait(30)
        store.open()
        thread.join()
        store.close()
    assert inner.objects["f/a"] == b"again"


async def put_again(store):
    """One small put."""
    await store.put("f/a", single(b"again"))


def test_cancelling_what_waits_at_a_gate():
    """A cancelled put leaves nothing, and opening the gate afterwards does no harm."""
    store = GateStore(inner := MemoryStore())

    async def main():
        task = asyncio.create_task(put_again(store))
        await asyncio.to_thread(store.entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.open()

    asyncio.run(main())
    store.open()
    assert inner.objects == {}


def test_memory_can_be_damaged():
    """Tests of damage need no file system."""
    store = MemoryStore()
    asyncio.run(put_again(store))
    store.damage("f/a", b"agaim")
    assert store.objects == {"f/a": b"agaim"}
    store.damage("f/a", None)
    assert store.objects == {}
