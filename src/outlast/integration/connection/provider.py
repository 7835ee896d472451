"""A connection's provider, as it is spoken to: OAuth 2.1 with PKCE, through the guarded client.

Authlib knows the protocol's texts; what is sent where, and what is believed of the answers, is
decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from authlib.oauth2.client import (  # type: ignore[import-untyped]
    DEFAULT_HEADERS,
    OAuth2Client,
)
from authlib.oauth2.rfc6749.parameters import (  # type: ignore[import-untyped]
    prepare_token_request,
)
from authlib.oauth2.rfc7009 import (  # type: ignore[import-untyped]
    prepare_revoke_token_request,
)

from outlast.integration.connection.connection import Connection
from outlast.integration.connection.grant import (
    Grant,
    PendingSignIn,
    read_answer,
    read_grant,
    refusal,
)
from outlast.net.client import GuardedClient

MOST_TOLD = 64 * 1024


OpenOutbound = Callable[[Connection], GuardedClient]
"""Makes the client by which a connection's provider is spoken to."""


def guarded(connection: Connection) -> GuardedClient:
    return GuardedClient(
        allow_private=connection.allow_private, timeout=connection.timeout, tls=connection.tls
    )


class OAuthProvider:
    """Speaks for one connection."""

    def __init__(self, connection: Connection, outbound: OpenOutbound = guarded) -> None:
        self._connection = connection
        self._open_outbound = outbound
        self._client = OAuth2Client(
            None,
            client_id=connection.client_id,
            client_secret=connection.client_secret or None,
            code_challenge_method="S256",
        )

    @cached_property
    def _outbound(self) -> GuardedClient:
        """The guarded client; made late, since it reads all certificates of this world."""
        return self._open_outbound(self._connection)

    def address(self, state: str, pending: PendingSignIn) -> str:
        """Return where somebody has to go to sign in."""
        url, _ = self._client.create_authorization_url(
            self._connection.authorize_url,
            state=state,
            code_verifier=pending.verifier,
            redirect_uri=pending.redirect_uri,
            scope=" ".join(pending.scopes) or None,
            **self._connection.authorize_params,
        )
        return str(url)

    async def exchange(self, code: str, pending: PendingSignIn, request_id: str, now: int) -> Grant:
        """Return what a code is good for."""
        body = prepare_token_request(
            "authorization_code",
            redirect_uri=pending.redirect_uri,
            code=code,
            code_verifier=pending.verifier,
        )
        status, told = await self._ask(self._connection.token_url, body)
        return read_grant(status, told, Grant(scopes=pending.scopes, by=request_id), now)

    async def refresh(self, grant: Grant, now: int) -> Grant:
        """Return what takes the place of a grant whose time is over."""
        body = prepare_token_request("refresh_token", refresh_token=grant.refresh_token)
        status, told = await self._ask(self._connection.token_url, body)
        return read_grant(status, told, grant, now)

    async def revoke(self, grant: Grant) -> None:
        """Give a grant back; one that the provider does not know any more is given back too."""
        body, _ = prepare_revoke_token_request(grant.refresh_token or grant.access_token)
        status, told = await self._ask(self._connection.revoke_url, body)
        if status >= 400:
            raise refusal(read_answer(status, told).error)

    async def _ask(self, url: str, body: str) -> tuple[int, bytes]:
        how = f"client_secret_{self._connection.client_auth}"
        auth = self._client.client_auth(how if self._connection.client_secret else "none")
        _, headers, text = auth.prepare("POST", url, dict(DEFAULT_HEADERS), body)
        async with self._outbound.open(url) as connection:
            answer = await connection.exchange(text.encode(), headers, MOST_TOLD)
        return answer.status, answer.body
