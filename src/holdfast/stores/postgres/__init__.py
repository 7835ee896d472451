"""A store in a schema of a PostgreSQL database, for many processes on many machines."""

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
