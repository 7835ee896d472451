"""A store in plain dictionaries: for tests and trying things out. Nothing survives the process."""

from outlast.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
