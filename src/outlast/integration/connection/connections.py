"""All connections of an app: the entry for tools, the server and the app.

Joins the parts and keeps nothing itself. See `oauth_flow.py` for signing in, `token_refresh.py` for
using a token, `token_store.py` for where tokens lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from outlast.clock import Clock
from outlast.core.instant import Span, milliseconds
from outlast.core.result import NewAuthorization
from outlast.errors import InvalidDefinition, InvalidInput, UnknownConnection
from outlast.integration.connection.connection import Connection
from outlast.integration.connection.encryption import SecretBox
from outlast.integration.connection.grant import Grant
from outlast.integration.connection.oauth_callback import OAuthCallback, SignInOutcome
from outlast.integration.connection.oauth_flow import Admit, OAuthFlow
from outlast.integration.connection.provider import OAuthProvider, OpenClient, guarded
from outlast.integration.connection.token_refresh import TokenRefresher
from outlast.integration.connection.token_store import Account, TokenStore
from outlast.store import Store

NOTHING = Grant()


class AccountSignIn(Struct, frozen=True):
    """One account at a connection, as tools use it."""

    connections: Connections
    account: Account

    async def live(self, instead_of: str = "") -> Grant | None:
        return await self.connections.live(self.account, instead_of)

    async def begin(
        self, scopes: Iterable[str], timeout: Span | None, now: int
    ) -> NewAuthorization:
        return await self.connections.begin(self.account, scopes, timeout, now)


class Connections:
    """The connections of one app.

    `public_url` gives where the app is reached from outside, which may be known late, and
    `open_client` makes the HTTP client for a connection's provider.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        secret_key: str | Sequence[str],
        store: Store,
        clock: Clock,
        public_url: Callable[[], str],
        admit: Admit,
        open_client: OpenClient | None = None,
    ) -> None:
        self._connections = by_name(connections)
        self._clock = clock
        self._public_url = public_url
        self._providers = {
            each.name: OAuthProvider(each, open_client or guarded) for each in connections
        }
        self._tokens = TokenStore(store, SecretBox(secret_key, clock.token))
        self._refresher = TokenRefresher(self._tokens, store, clock, self._providers)
        self._flow = OAuthFlow(self._tokens, store, clock, self._providers, admit)

    async def close(self) -> None:
        """Finish what is under way, so that no token from a provider is lost."""
        await self._refresher.close()
        await self._flow.close()

    def account(self, connection: str, tenant: str, principal: str) -> Account:
        """Return the account whose token a session uses at a connection."""
        found = self._connections.get(connection)
        if found is None:
            known = ", ".join(sorted(self._connections)) or "none"
            raise UnknownConnection(
                f"this app has no connection {connection!r}; it has: {known}",
                connection=connection,
            )
        if found.owner == "app":
            return Account(tenant, found)
        if not principal:
            raise InvalidInput(
                f"users sign in to {connection}, and this session has no principal: start it with"
                ' one, or make the connection owner="app"'
            )
        return Account(tenant, found, principal)

    def of(self, connection: str, tenant: str, principal: str) -> AccountSignIn:
        """Return the same account for a tool."""
        return AccountSignIn(self, self.account(connection, tenant, principal))

    async def live(self, account: Account, instead_of: str = "") -> Grant | None:
        """Return a grant whose token can be used now; None if a user has to sign in."""
        return await self._refresher.live(account, instead_of)

    async def begin(
        self, account: Account, scopes: Iterable[str], timeout: Span | None, now: int
    ) -> NewAuthorization:
        """Begin a sign-in for the scopes of the connection and those asked for.

        `now` is the time of the caller's lane, from which the span counts.
        """
        connection = account.connection
        if not self._public_url():
            raise InvalidInput(
                "a sign-in needs the address at which this app is reached from outside:"
                ' Outlast(public_url="https://…")'
            )
        span = milliseconds(connection.sign_in_timeout if timeout is None else timeout)
        wanted = tuple(dict.fromkeys((*connection.scopes, *scopes)))
        redirect_uri = f"{self._public_url()}/v1/connections/{connection.name}/callback"
        return await self._flow.begin(account, wanted, now + max(1, span), redirect_uri)

    async def finish(self, connection: str, back: OAuthCallback) -> SignInOutcome:
        """Complete a sign-in with what the provider put into the callback."""
        found = self._connections.get(connection)
        return await self._flow.finish(found, back) if found else "unknown"

    async def sign_out(self, account: Account, *, revoke: bool = True) -> bool:
        """Revoke an account's token, then forget it; return whether there was one."""
        kept = await self._tokens.grant(account)
        if kept.grant is None:
            return False
        # Before it is forgotten here: without the token there is nothing to revoke it with.
        if revoke and account.connection.revoke_url:
            await self._providers[account.connection.name].revoke(kept.grant)
        # An empty grant, not a deletion: a refresh that is under way must not bring the token back.
        while not await self._tokens.put(account, NOTHING, kept.version):
            kept = await self._tokens.grant(account)
        return True


def by_name(connections: Sequence[Connection]) -> Mapping[str, Connection]:
    for each in connections:
        if not isinstance(each, Connection):
            raise InvalidDefinition(f"a {type(each).__name__} is not a Connection")
    found = {each.name: each for each in connections}
    if len(found) < len(connections):
        raise InvalidDefinition("two connections have the same name")
    return found
