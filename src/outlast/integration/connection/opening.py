"""Opens the bureau, which needs the extra `connections`, for apps that have connections."""

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
    from outlast.integration.connection.provider import OpenOutbound


def open_bureau(
    connections: Sequence[Connection],
    secret_key: str | Sequence[str],
    store: Store,
    clock: Clock,
    address: Callable[[], str],
    admit: Callable[..., Any],
    outbound: OpenOutbound | None = None,
) -> Connections | None:
    """Return what looks after an app's connections, if it has any.

    Their providers are spoken to by what `outbound` makes, else by the guarded client.
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
    return Connections(connections, secret_key, store, clock, address, admit, outbound)
