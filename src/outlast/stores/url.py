"""The store that a URL names.

Owns the schemes, and the message where a driver is missing. What else a URL may say is the affair
of each store.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from outlast.clock import Clock
from outlast.errors import UnsupportedStore
from outlast.store import Store
from outlast.stores.sqlite import MemoryStore, SqliteStore


def store_of(given: str | Store, clock: Clock) -> Store:
    """Return a store, or the one that a URL names. Nothing is opened yet."""
    if isinstance(given, str):
        return open_store(given, clock)
    if not (hasattr(given, "log") and hasattr(given, "work")):
        raise UnsupportedStore(f"a store is a URL such as sqlite:///file.db, not {given!r}")
    return given


def open_store(url: str, clock: Clock) -> Store:
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            return MemoryStore(clock)
        case "sqlite":
            # As everywhere: three slashes and a relative path, four and an absolute one.
            path = unquote(parts.path.removeprefix("/"))
            if parts.netloc or not path:
                raise UnsupportedStore(f"{url!r} has no path: write sqlite:///file.db")
            return SqliteStore(Path(path), clock)
        case "postgresql" | "postgres":
            return open_postgres(url, clock)
    raise UnsupportedStore(
        f"there is no store for {parts.scheme or url!r}: use sqlite:///path,"
        " postgresql://user@host/database or memory://"
    )


def open_postgres(url: str, clock: Clock) -> Store:
    try:
        from outlast.stores.postgres import PostgresStore
    except ImportError as error:
        raise UnsupportedStore(
            f"the driver for PostgreSQL is missing ({error}):"
            " install Outlast with its extra 'postgres'"
        ) from error
    return PostgresStore(url, clock)
