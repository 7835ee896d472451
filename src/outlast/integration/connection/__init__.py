"""Connections: services that tools use on behalf of a user, who signs in by OAuth.

`Connection` is what users write in code. `connections.py` is the entry to everything else. That
needs the extra `connections`, so it is imported only for apps that have connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outlast.clock import Clock
from outlast.core.setting import listed
from outlast.errors import InvalidDefinition
from outlast.integration.connection.connection import Connection
from outlast.store import Store

if TYPE_CHECKING:
    from outlast.integration.connection.connections import Connections
    from outlast.integration.connection.provider import OpenClient

__all__ = ["Connection", "open_connections"]


def open_connections(
    connections: Sequence[Connection],
    secret_key: str | Sequence[str],
    store: Store,
    clock: Clock,
    public_url: Callable[[], str],
    admit: Callable[..., Any],
    open_client: OpenClient | None = None,
) -> Connections | None:
    """Return the connections of an app, if it has any.

    `open_client` makes the HTTP client for a connection's provider; by default a guarded one.
    """
    connections = listed("connections", connections)
    if not connections:
        return None
    try:
        from outlast.integration.connection.connections import Connections
    except ImportError as error:
        raise InvalidDefinition(
            f"connections are not installed ({error}): install Outlast with its extra 'connections'"
        ) from error
    return Connections(connections, secret_key, store, clock, public_url, admit, open_client)
