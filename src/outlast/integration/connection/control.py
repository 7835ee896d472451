"""Sign-ins as the app completes and ends them: `app.connections`.

Knows no OAuth: `integration/connection/connections.py` does, and is loaded only for apps that have
connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.errors import UnknownConnection
from outlast.integration.connection.oauth_callback import OAuthCallback, SignInOutcome

if TYPE_CHECKING:
    from outlast.integration.connection.connections import Connections


class ConnectionControl:
    """The sign-ins to the connections of an app: `app.connections`."""

    def __init__(self, connections: Callable[[], Connections | None]) -> None:
        self._connections = connections

    async def complete(
        self,
        connection: str,
        *,
        state: str,
        code: str = "",
        error: str = "",
        iss: str = "",
        tenant: str | None = None,
        principal: str | None = None,
    ) -> SignInOutcome:
        """Complete a sign-in when its user comes back from the provider, and say how it ended.

        The server does this at `/v1/connections/{name}/callback`. The provider's parameters are
        given as they are. `tenant` and `principal` say who brings them, where users are known: then
        it has to be the one whom the sign-in was asked of, and a `principal` of "" is no user.
        """
        connections = self._connections()
        if connections is None:
            return "unknown"
        back = OAuthCallback(state, code, error, iss, tenant, principal)
        return await connections.finish(connection, back)

    async def sign_out(
        self,
        connection: str,
        *,
        tenant: str = "default",
        principal: str = "",
        revoke: bool = True,
    ) -> bool:
        """Delete the token of a principal, or of the app; return whether there was one.

        If the connection has a `revoke_url`, the token is revoked there first; if that fails,
        nothing is deleted, unless `revoke=False`.
        """
        connections = self._connections()
        if connections is None:
            raise UnknownConnection("this app has no connections", connection=connection)
        account = connections.account(connection, tenant, principal)
        return await connections.sign_out(account, revoke=revoke)
