"""Tokens that can be used now: the stored one, or a refreshed one, refreshed once by all workers.

A provider may accept a refresh token for the last time when it gives a new one. So the new pair is
stored before a tool gets its access token, and only in the place of the pair that it came from.
Until then the old pair stays.
"""

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.instant import seconds
from outlast.errors import ProviderRefused, Unreachable
from outlast.integration.connection.grant import Grant
from outlast.integration.connection.provider import OAuthProvider
from outlast.integration.connection.single_flight import SingleFlight, holding
from outlast.integration.connection.token_store import Account, StoredGrant, TokenStore
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.integration.connection")


class TokenRefresher:
    """Refreshes the tokens of all accounts of an app."""

    def __init__(
        self, tokens: TokenStore, store: Store, clock: Clock, providers: Mapping[str, OAuthProvider]
    ) -> None:
        self._tokens = tokens
        self._store = store
        self._clock = clock
        self._providers = providers
        self._refreshes: SingleFlight[Grant | None] = SingleFlight()

    async def close(self) -> None:
        await self._refreshes.wait_all()

    async def live(self, account: Account, instead_of: str = "") -> Grant | None:
        """Return a grant whose token can be used now; None if a user has to sign in."""
        kept = await self._tokens.grant(account)
        grant = kept.grant
        if grant is None or grant.serves(self._store.clock.latest(), instead_of):
            return grant
        if not grant.refresh_token:
            return None
        try:
            newer = await self._refreshes.join(
                # By the version: a refresh of an older token is no answer for this one.
                f"{account.tenant}\n{account.name}\n{kept.version}",
                partial(self._replace, account, kept),
            )
        # The provider is away, and the token may be good for some seconds more.
        except Unreachable:
            if grant.lives(self._store.clock.latest(), instead_of):
                return grant  # it has not expired yet
            raise
        return newer if newer and newer.serves(self._store.clock.latest(), instead_of) else None

    async def _replace(self, account: Account, stale: StoredGrant) -> Grant | None:
        """Return the grant that replaces a stale one; another worker may have been faster."""
        hold = 2 * seconds(account.connection.timeout) + 10
        name = f"refresh/{account.tenant}/{account.name}"
        async with holding(self._store, self._clock, name, hold):
            kept = await self._tokens.grant(account)
            # Looked at again now that the name is held: another worker may have refreshed it, or
            # somebody signed out.
            if kept.version != stale.version or kept.grant is None:
                return kept.grant
            fresh = await self._refreshed(account, kept.grant)
            return await self._put(account, fresh, kept.version)

    async def _refreshed(self, account: Account, grant: Grant) -> Grant:
        try:
            provider = self._providers[account.connection.name]
            return await provider.refresh(grant, self._store.clock.earliest())
        except ProviderRefused as refused:
            # Any other refusal is a mistake in the app's own settings: the user's grant may be
            # good.
            if refused.details["reason"] != "invalid_grant":
                raise
            log.info("a token cannot be refreshed", extra={"connection": account.connection.name})
            return replace(grant, refresh_token="")  # no further refresh can succeed

    async def _put(self, account: Account, fresh: Grant, expected: int | None) -> Grant | None:
        """Store a grant, unless one that was stored meanwhile is as good."""
        while not await self._tokens.put(account, fresh, expected):
            kept = await self._tokens.grant(account)
            # Signed out meanwhile: the token must not come back.
            is_good = kept.grant is None or kept.grant.serves(self._store.clock.latest())
            if is_good or not fresh.refresh_token:
                return kept.grant
            expected = kept.version
        return fresh
