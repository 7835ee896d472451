"""A store in one SQLite file, safe for many processes of one machine."""

from outlast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
