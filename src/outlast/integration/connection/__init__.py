"""Connections: services that tools use on behalf of a user, who signs in by OAuth.

`Connection` and `ConnectionSettings` are what users write in code. `connections.py` is the entry to
everything else. That needs the extra `connections`, so it is imported only for apps that have some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlast.clock import Clock
from outlast.core.setting import listed, settings_of
from outlast.errors import InvalidDefinition
from outlast.integration.connection.connection import Connection, ConnectionSettings
from outlast.integration.connection.control import ConnectionControl
from outlast.integration.connection.oauth_callback import SignInOutcome
from outlast.store import Store

if TYPE_CHECKING:
    from outlast.integration.connection.connections import Connections
    from outlast.integration.connection.provider import OpenClient

__all__ = [
    "Connection",
    "ConnectionControl",
    "ConnectionSettings",
    "SignInOutcome",
    "open_connections",
]


def open_connections(
    settings: ConnectionSettings | None,
    store: Store,
    clock: Clock,
    public_url: Callable[[], str],
    admit: Callable[..., Any],
    open_client: OpenClient | None = None,
) -> Connections | None:
    """Return the connections of an app, if it has any.

    `open_client` makes the HTTP client for a connection's provider; by default a guarded one.
    """
    settings = settings_of(ConnectionSettings, "connections", settings)
    connections = listed("connections", settings.connections) if settings else []
    if settings is None or not connections:
        return None
    try:
        from outlast.integration.connection.connections import Connections
    except ImportError as error:
        raise InvalidDefinition(
            f"connections are not installed ({error}): install Outlast with its extra 'connections'"
        ) from error
    return Connections(
        connections, settings.secret_key, store, clock, public_url, admit, open_client
    )
