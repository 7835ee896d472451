"""A store in a schema of a PostgreSQL database, for many processes on many machines."""

from outlast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
