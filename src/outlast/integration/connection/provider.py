"""The provider of a connection: OAuth 2.1 with PKCE, through the guarded client.

Authlib builds the protocol's messages; this decides what is sent where and which answers count.
"""

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

from outlast.core.instant import seconds
from outlast.integration.connection.connection import Connection
from outlast.integration.connection.grant import (
    Grant,
    PendingSignIn,
    read_answer,
    read_grant,
    refusal,
)
from outlast.net.client import GuardedClient

MOST_READ = 64 * 1024


OpenClient = Callable[[Connection], GuardedClient]
"""Makes the HTTP client for a connection's provider."""


def guarded(connection: Connection) -> GuardedClient:
    return GuardedClient(
        allow_private=connection.allow_private,
        timeout=seconds(connection.timeout),
        tls=connection.tls,
    )


class OAuthProvider:
    """Sends the requests of one connection to its provider."""

    def __init__(self, connection: Connection, open_client: OpenClient = guarded) -> None:
        self._connection = connection
        self._open_client = open_client
        self._client = OAuth2Client(
            None,
            client_id=connection.client_id,
            client_secret=connection.client_secret or None,
            code_challenge_method="S256",
        )

    @cached_property
    def _http(self) -> GuardedClient:
        """The HTTP client. It is made late: it reads all trusted certificates."""
        return self._open_client(self._connection)

    def address(self, state: str, pending: PendingSignIn) -> str:
        """Return the address that a user opens to sign in."""
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
        """Exchange a code for a grant."""
        body = prepare_token_request(
            "authorization_code",
            redirect_uri=pending.redirect_uri,
            code=code,
            code_verifier=pending.verifier,
        )
        status, answer = await self._ask(self._connection.token_url, body)
        return read_grant(status, answer, Grant(scopes=pending.scopes, by=request_id), now)

    async def refresh(self, grant: Grant, now: int) -> Grant:
        """Return the grant that replaces an expired one."""
        body = prepare_token_request("refresh_token", refresh_token=grant.refresh_token)
        status, answer = await self._ask(self._connection.token_url, body)
        return read_grant(status, answer, grant, now)

    async def revoke(self, grant: Grant) -> None:
        """Revoke a grant; a grant that the provider no longer knows counts as revoked."""
        body, _ = prepare_revoke_token_request(grant.refresh_token or grant.access_token)
        status, answer = await self._ask(self._connection.revoke_url, body)
        if status >= 400:
            raise refusal(read_answer(status, answer).error)

    async def _ask(self, url: str, body: str) -> tuple[int, bytes]:
        how = f"client_secret_{self._connection.client_auth}"
        auth = self._client.client_auth(how if self._connection.client_secret else "none")
        _, headers, text = auth.prepare("POST", url, dict(DEFAULT_HEADERS), body)
        async with self._http.open(url) as connection:
            answer = await connection.exchange(text.encode(), headers, MOST_READ)
        return answer.status, answer.body
