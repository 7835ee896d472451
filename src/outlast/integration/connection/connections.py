"""All connections of an app in one place: what tools and the server ask for goes through here."""

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
from outlast.integration.connection.oauth_callback import Ending, OAuthCallback
from outlast.integration.connection.oauth_flow import Admit, OAuthFlow
from outlast.integration.connection.provider import OAuthProvider, OpenOutbound, guarded
from outlast.integration.connection.token_refresh import TokenRefresher
from outlast.integration.connection.token_store import Account, TokenStore
from outlast.store import Store

NOTHING = Grant()


class AccountSignIn(Struct, frozen=True):
    """An account at a connection, as a tool uses it."""

    connections: Connections
    account: Account

    async def live(self, instead_of: str = "") -> Grant | None:
        return await self.connections.live(self.account, instead_of)

    async def begin(
        self, scopes: Iterable[str], timeout: Span | None, now: int
    ) -> NewAuthorization:
        return await self.connections.begin(self.account, scopes, timeout, now)


class Connections:
    """Made once per app. `address` says where the app is reached from outside by now, and
    `outbound` makes what speaks to a connection's provider.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        secret_key: str | Sequence[str],
        store: Store,
        clock: Clock,
        address: Callable[[], str],
        admit: Admit,
        outbound: OpenOutbound | None = None,
    ) -> None:
        self._connections = by_name(connections)
        self._clock = clock
        self._address = address
        self._providers = {
            each.name: OAuthProvider(each, outbound or guarded) for each in connections
        }
        self._vault = TokenStore(store, SecretBox(secret_key, clock.token))
        self._keeper = TokenRefresher(self._vault, store, clock, self._providers)
        self._flow = OAuthFlow(self._vault, store, clock, self._providers, admit)

    async def close(self) -> None:
        """Bring to its end what is under way: what a provider gives must not be lost."""
        await self._keeper.close()
        await self._flow.close()

    def account(self, connection: str, tenant: str, principal: str) -> Account:
        """Return whose token a session uses at a connection."""
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
                f"{connection} is signed in to by users, and this session is nobody's: start it"
                ' with a principal, or have the connection be owner="app"'
            )
        return Account(tenant, found, principal)

    def of(self, connection: str, tenant: str, principal: str) -> AccountSignIn:
        """Return the account whose token a session uses at a connection, for a tool."""
        return AccountSignIn(self, self.account(connection, tenant, principal))

    async def live(self, account: Account, instead_of: str = "") -> Grant | None:
        """Return a grant whose token can be used now; None: somebody has to sign in."""
        return await self._keeper.live(account, instead_of)

    async def begin(
        self, account: Account, scopes: Iterable[str], timeout: Span | None, now: int
    ) -> NewAuthorization:
        """Begin a sign-in, for what the connection and whoever asks need; `now` it is for them."""
        connection = account.connection
        if not self._address():
            raise InvalidInput(
                "a sign-in needs the address at which this app is reached from outside:"
                ' Outlast(public_url="https://…")'
            )
        span = milliseconds(connection.sign_in_timeout if timeout is None else timeout)
        wanted = tuple(dict.fromkeys((*connection.scopes, *scopes)))
        redirect_uri = f"{self._address()}/v1/connections/{connection.name}/callback"
        return await self._flow.begin(account, wanted, now + max(1, span), redirect_uri)

    async def finish(self, connection: str, back: OAuthCallback) -> Ending:
        """Take in somebody who comes back from a provider."""
        found = self._connections.get(connection)
        return await self._flow.finish(found, back) if found else "unknown"

    async def sign_out(self, account: Account, *, revoke: bool = True) -> bool:
        """Forget an account's token, and say whether there was one; first give it back."""
        kept = await self._vault.grant(account)
        if kept.grant is None:
            return False
        if revoke and account.connection.revoke_url:
            await self._providers[account.connection.name].revoke(kept.grant)
        # Kept empty, not dropped: what is being refreshed at this moment must not come back.
        while not await self._vault.keep(account, NOTHING, kept.version):
            kept = await self._vault.grant(account)
        return True


def by_name(connections: Sequence[Connection]) -> Mapping[str, Connection]:
    for each in connections:
        if not isinstance(each, Connection):
            raise InvalidDefinition(f"a {type(each).__name__} is not a Connection")
    found = {each.name: each for each in connections}
    if len(found) < len(connections):
        raise InvalidDefinition("two connections have the same name")
    return found
