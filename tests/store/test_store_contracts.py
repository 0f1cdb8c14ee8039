"""The published contract, run over every store we have and over those that wrap one."""

from asyncckpt.store.local import LocalStore
from asyncckpt.testing import FaultyStore, GateStore, MemoryStore, StoreContract


class TestLocalStore(StoreContract):
    def make_store(self, tmp_path):
        return LocalStore(tmp_path / "parent" / "root")


class TestMemoryStore(StoreContract):
    def make_store(self, tmp_path):
        return MemoryStore()


class TestFaultyStoreWithoutFault(StoreContract):
    def make_store(self, tmp_path):
        return FaultyStore(MemoryStore())


class TestGateStoreThatIsOpen(StoreContract):
    def make_store(self, tmp_path):
        store = GateStore(MemoryStore(), {"put", "part", "put_new", "read", "list", "delete"})
        store.open()
        return store
