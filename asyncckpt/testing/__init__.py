"""Stores and contracts for tests, ours and yours. Shipped; nothing in the library imports it."""

from asyncckpt.testing.contract import StoreContract
from asyncckpt.testing.faulty import Fault, FaultyStore, Operation
from asyncckpt.testing.gate import GateStore
from asyncckpt.testing.memory import MemoryStore

__all__ = ["Fault", "FaultyStore", "GateStore", "MemoryStore", "Operation", "StoreContract"]
