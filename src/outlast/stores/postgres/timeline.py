"""Which server a connection leads to: its system identifier and its timeline.

PostgreSQL begins a new timeline when a standby is promoted or a backup is recovered. A process that
has seen one uses no older one any more, so an old primary that comes back gets nothing from it,
and it never works on two servers at once. Commits of the old timeline may be lost on
the new one: the epoch tells that to the owners of lanes (functions/clock.sql). A process that has
just been started believes the server that it finds.
"""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outlast.log_context import get_logger
from outlast.stores.postgres.error import ServerAway, is_of_the_connection
from outlast.stores.postgres.statement import Query

log = get_logger("outlast.postgres")


class ServerRefused(ServerAway):
    """A server answered whose history is not the one that this process has seen."""


class ServerIdentity(NamedTuple):
    """Which database system it is, and in which of its histories. Zero: it does not say."""

    system: int = 0
    timeline: int = 0


class ServerGuard:
    """Knows the newest history that this process has seen. Any thread may use it."""

    def __init__(self, label: str, find_server: Query) -> None:
        self._label = label
        self._find_server = find_server.text
        self._newest = ServerIdentity()
        self._mutex = threading.Lock()

    def is_outdated(self, server: ServerIdentity) -> bool:
        """Whether a connection leads to a server that has been replaced since it was opened."""
        return 0 < server.timeline < self._newest.timeline

    def check(self, found: ServerIdentity) -> ServerIdentity:
        """Note the server that a connection leads to, or raise ServerRefused."""
        # Leases are renewed on threads of their own, which open connections too.
        with self._mutex:
            newest = self._newest
            if newest.system and found.system and found.system != newest.system:
                raise self._other_system(found)
            # 0: a hosted server that does not tell it. Nothing can be held against that.
            if 0 < found.timeline < newest.timeline:
                raise self._older_timeline(found)
            self._newest = ServerIdentity(
                newest.system or found.system, max(newest.timeline, found.timeline)
            )
        if newest.timeline and found.timeline > newest.timeline:
            extra = {"store": self._label, "before": newest.timeline, "now": found.timeline}
            log.warning("another server has become the primary", extra=extra)
        return found

    def _older_timeline(self, found: ServerIdentity) -> ServerRefused:
        return ServerRefused(
            f"the {self._label} was answered for by a server on timeline {found.timeline}, which"
            f" was replaced by one on timeline {self._newest.timeline}: an old primary has come"
            " back; stop it, or make it a standby of the new one",
            store=self._label,
            timeline=found.timeline,
        )

    def _other_system(self, found: ServerIdentity) -> ServerRefused:
        return ServerRefused(
            f"the {self._label} is now in another database system ({found.system}) than before"
            f" ({self._newest.system}), which knows nothing of what this process has done; if that"
            " is meant, restart this process",
            store=self._label,
            system=found.system,
        )

    async def admit(self, connection: psycopg.AsyncConnection[Any]) -> ServerIdentity:
        """Ask where a new connection leads to; raise ServerRefused if that is not to be used."""
        try:
            cursor = await connection.execute(self._find_server)
            return self.check(ServerIdentity(*(await cursor.fetchone() or ())))
        except psycopg.Error as error:
            return unnamed(error)

    def admit_blocking(self, connection: psycopg.Connection[Any]) -> ServerIdentity:
        """Do the same on the caller's thread."""
        try:
            found = connection.execute(self._find_server).fetchone()
            return self.check(ServerIdentity(*(found or ())))
        except psycopg.Error as error:
            return unnamed(error)


def unnamed(error: psycopg.Error) -> ServerIdentity:
    """Return the identity of a server that does not tell it, as some hosted ones do not."""
    if is_of_the_connection(error):
        raise error
    return ServerIdentity()


def places(conninfo: str) -> Iterator[str]:
    """Yield where to connect to: as the URL says, then to each of its hosts by itself.

    libpq takes the first host that accepts writes. If that one is refused, another may be right.
    """
    # As the URL says first: usually there is one server, and libpq knows best which of several to
    # take.
    yield conninfo
    settings = conninfo_to_dict(conninfo)
    lists = {
        name: str(settings.get(name) or "").split(",") for name in ("host", "hostaddr", "port")
    }
    count = max(map(len, lists.values()))
    for place in range(count if count > 1 else 0):
        one = {name: found[place if len(found) > 1 else 0] for name, found in lists.items()}
        there: dict[str, Any] = {**settings, **{name: value or None for name, value in one.items()}}
        yield make_conninfo(**there)
