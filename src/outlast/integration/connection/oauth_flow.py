"""A sign-in by OAuth: from the address that a user is sent to, to the callback of the provider.

The `state` in that address names the request that waits. It is good for one sign-in, at one
connection, until it expires. Every way in which a callback can end has a name: see
`oauth_callback.py`.
"""

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import sha256

import msgspec

from outlast.clock import Clock
from outlast.core.instant import date_of, seconds
from outlast.core.name import authorization_name
from outlast.core.record import AuthorizationRequired, DeliveryQueued
from outlast.core.result import NewAuthorization
from outlast.errors import (
    Conflict,
    InvalidUrl,
    ProviderRefused,
    StoreError,
    UnknownRequest,
    UnknownSession,
    Unreachable,
)
from outlast.integration.connection.connection import Connection
from outlast.integration.connection.grant import PendingSignIn, refusal
from outlast.integration.connection.oauth_callback import OAuthCallback, SignInOutcome
from outlast.integration.connection.provider import OAuthProvider
from outlast.integration.connection.single_flight import SingleFlight, holding
from outlast.integration.connection.token_store import Account, TokenStore
from outlast.log_context import get_logger
from outlast.store import RequestInfo, Store

log = get_logger("outlast.integration.connection")

Admit = Callable[[RequestInfo, DeliveryQueued], Awaitable[None]]
"""Puts a reply into the inbox of the session that waits."""

PASSING = ("server_error", "temporarily_unavailable")
"""Errors of a provider after which the same address may work."""
PAGE = 500


class OAuthFlow:
    """Sign-ins to the connections of an app."""

    def __init__(
        self,
        tokens: TokenStore,
        store: Store,
        clock: Clock,
        providers: Mapping[str, OAuthProvider],
        admit: Admit,
    ) -> None:
        self._tokens = tokens
        self._store = store
        self._clock = clock
        self._providers = providers
        self._admit = admit
        self._endings: SingleFlight[SignInOutcome] = SingleFlight()
        self._wakings: SingleFlight[None] = SingleFlight()

    async def close(self) -> None:
        await self._endings.wait_all()
        await self._wakings.wait_all()

    # The beginning

    async def begin(
        self, account: Account, scopes: tuple[str, ...], expires_at: int, redirect_uri: str
    ) -> NewAuthorization:
        """Store a pending sign-in, and return the address that the user has to open."""
        connection = account.connection
        state = self._clock.token()
        pending = PendingSignIn(verifier_of(self._clock.token()), redirect_uri, scopes)
        request_id = authorization_name(state)
        await self._tokens.put_pending(account.tenant, request_id, pending, expires_at)
        url = self._providers[connection.name].address(state, pending)
        return NewAuthorization(
            request_id, connection.name, url, expires_at, principal=account.principal
        )

    # The callback

    async def finish(self, connection: Connection, back: OAuthCallback) -> SignInOutcome:
        """Complete a sign-in with a callback, and return how it ended.

        An exchange with the provider that has begun is finished even if the caller goes away.
        """
        request = await self._store.listing.request(authorization_name(back.state))
        if request is None or request.kind != "authorization":
            return "unknown"
        asked = msgspec.json.decode(request.data, type=AuthorizationRequired)
        if asked.connection != connection.name:
            return "unknown"
        now = date_of(self._store.clock.earliest())
        is_past = request.expires_at and request.expires_at <= now
        if request.state != "open" or is_past:
            return how_closed(request)
        if connection.issuer and back.issuer != connection.issuer:
            return "mixed_up"
        account = Account(request.tenant, connection, asked.principal)
        if connection.owner == "user" and back.principal == "":
            return "anonymous"
        if is_stranger(account, back):
            return "stranger"
        # Only callbacks with the same content share an ending: another one may be forged.
        brought = f"{request.request_id}\n{back.error}\n{back.code}"
        return await self._endings.join(brought, partial(self._settle, account, request, back))

    async def _settle(
        self, account: Account, request: RequestInfo, back: OAuthCallback
    ) -> SignInOutcome:
        if back.error in PASSING or not (back.error or back.code):
            return "again"
        if back.error:
            return await self._refuse(request, refusal(back.error).details["reason"])
        try:
            async with self._alone(account, request):
                return await self._sign_in(account, request, back)
        except (InvalidUrl, ProviderRefused, Unreachable) as error:
            log.warning(
                "a sign-in could not be completed",
                extra={"connection": account.connection.name, "problem": error.message},
            )
            return "again"

    def _alone(self, account: Account, request: RequestInfo) -> AbstractAsyncContextManager[None]:
        """Exchange one code at a time: providers revoke the tokens of a code that is used twice."""
        hold = 2 * seconds(account.connection.timeout) + 10
        return holding(self._store, self._clock, f"sign-in/{request.request_id}", hold)

    async def _sign_in(
        self, account: Account, request: RequestInfo, back: OAuthCallback
    ) -> SignInOutcome:
        request_id = request.request_id
        known = await self._store.listing.request(request_id)
        if known is None or known.state != "open":
            return how_closed(known) if known else "unknown"
        kept = await self._tokens.grant(account)
        if kept.grant is None or kept.grant.by != request_id:  # otherwise a crash cut off the rest
            pending = await self._tokens.pending(request.tenant, request_id)
            if pending is None:
                return await self._refuse(request, "lost")
            provider = self._providers[account.connection.name]
            now = self._store.clock.earliest()  # a token may live for less, never for longer
            grant = await provider.exchange(back.code, pending, request_id, now)
            while not await self._tokens.put(account, grant, kept.version):
                kept = await self._tokens.grant(account)
        if not await self._tell(request, "completed"):
            return "closed"
        await self._tokens.drop_pending(request.tenant, request_id)
        self._wakings.start(request_id, partial(self._tell_others, account))
        return "completed"

    async def _refuse(self, request: RequestInfo, reason: str) -> SignInOutcome:
        how: SignInOutcome = "denied" if reason == "access_denied" else "failed"
        if not await self._tell(request, how, reason):
            return "closed"
        await self._tokens.drop_pending(request.tenant, request.request_id)
        return how

    async def _tell(self, request: RequestInfo, how: str, reason: str = "") -> bool:
        reply = DeliveryQueued(
            delivery_id="",
            kind="reply",
            request_id=request.request_id,
            option=how,
            text=reason,
        )
        try:
            await self._admit(request, reply)
        except (Conflict, UnknownSession, UnknownRequest):
            return False
        return True

    async def _tell_others(self, account: Account) -> None:
        """Wake all other calls that wait for the account; one that is missed has its own link."""
        try:
            async for request in self._others(account):
                await self._tell(request, "completed")
        except StoreError as error:
            log.warning("not all calls were told of a sign-in", extra={"problem": error.message})

    async def _others(self, account: Account) -> AsyncIterator[RequestInfo]:
        after = None
        while page := await self._store.listing.requests(
            tenant=account.tenant, kinds=("authorization",), after=after, limit=PAGE
        ):
            for request in page:
                asked = msgspec.json.decode(request.data, type=AuthorizationRequired)
                # A request with a path belongs to a child, or to a remote agent at another server.
                if not asked.path and is_same(account, asked):
                    yield request
            after = page[-1].request_id


def is_same(account: Account, asked: AuthorizationRequired) -> bool:
    return (account.connection.name, account.principal) == (asked.connection, asked.principal)


def is_stranger(account: Account, back: OAuthCallback) -> bool:
    """Say whether the callback is known to come from another user than the one who was asked."""
    is_user = account.connection.owner == "user"
    if is_user and back.principal not in (None, account.principal):
        return True
    return back.tenant not in (None, account.tenant)


def how_closed(request: RequestInfo) -> SignInOutcome:
    match request.state:
        case "answered":
            return "used"
        case "open" | "expired":
            return "expired"
    return "closed"


def verifier_of(random_text: str) -> str:
    """Return a verifier of 43 characters, as PKCE requires."""
    return urlsafe_b64encode(sha256(random_text.encode()).digest()).decode().rstrip("=")
