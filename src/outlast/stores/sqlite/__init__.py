"""A store in one SQLite file, safe for many processes of one machine; and one in memory."""

from outlast.stores.sqlite.memory import MemoryStore
from outlast.stores.sqlite.store import SqliteStore

__all__ = ["MemoryStore", "SqliteStore"]
