"""The app as routes use it: the calling principal, and the sessions of its tenant.

The one place where an id from outside becomes a session: for a session of another tenant it says
that there is none.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request

from outlast.app import Outlast
from outlast.clock import Clock
from outlast.core.index import PEOPLE, RELAYED
from outlast.core.name import MAX_ID, is_storable
from outlast.errors import StoreError, StoreUnavailable, UnknownRequest, UnknownSession
from outlast.server.auth import caller, principal_of
from outlast.server.body import in_time
from outlast.server.error import ErrorResponse
from outlast.server.key import find_key
from outlast.server.limit import StreamLimiter
from outlast.server.principal import LOCAL, Principal
from outlast.server.settings import ServerSettings
from outlast.server.stream.feed import SessionFeeds
from outlast.session import Session
from outlast.store import RequestInfo, SessionInfo, Store

FRESH = 1.0
PATIENCE = 2.0
NOBODY = "ses_nobody"
"""A session that does not exist; asking for it is the cheapest question there is."""


class Readiness:
    """Remembers the last answer for a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None
        self._is_ready = False

    async def is_ready(self) -> bool:
        async with self._lock:
            now = self._clock.monotonic()
            if self._asked_at is None or now - self._asked_at >= FRESH:
                self._is_ready = await self._ask()
                self._asked_at = self._clock.monotonic()
            return self._is_ready

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._store.listing.session(NOBODY)
        except (StoreError, TimeoutError):
            return False
        return True


class ServerBackend:
    """Stands between the routes and the app."""

    def __init__(self, app: Outlast, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings
        self.heartbeat = settings.heartbeat
        self.streams = StreamLimiter(settings.max_streams_per_key)
        self.readiness = Readiness(app.store, app.clock)
        self.feeds = SessionFeeds(app.store, app.clock)

    def principal(self, request: Request, scope: str = "") -> Principal:
        """Return the calling principal, or refuse it if it lacks the scope."""
        principal = principal_of(request)
        if scope and not principal.may(scope):
            raise ErrorResponse(
                403,
                "MISSING_SCOPE",
                f"this needs the scope {scope}",
                hint="`outlast keys create --scopes` makes a key with other scopes.",
                scope=scope,
            )
        return principal

    async def session(
        self, request: Request, session_id: str, scope: str = "read"
    ) -> tuple[Principal, SessionInfo]:
        """Return the principal and a session of its tenant; others do not exist for it."""
        principal = self.principal(request, scope)
        return principal, await self.owned_session(principal, session_id)

    async def owned_session(self, principal: Principal, session_id: str) -> SessionInfo:
        info = None
        if is_id(session_id):
            info = await in_time(self.app.store.listing.session(session_id), self.settings.timeout)
        if info is None or info.tenant != principal.tenant:
            shown = session_id[:MAX_ID]
            raise UnknownSession(f"there is no session {shown}", session=shown)
        return info

    async def owned_request(self, principal: Principal, request_id: str) -> RequestInfo:
        """Return a request of the caller's tenant, open or not."""
        info = await self.app.store.listing.request(request_id) if is_id(request_id) else None
        session = await self.app.store.listing.session(info.session_id) if info else None
        is_theirs = session is not None and session.tenant == principal.tenant
        if info is None or not is_theirs or info.kind not in (*PEOPLE, RELAYED):
            shown = request_id[:MAX_ID]
            raise UnknownRequest(f"there is no request {shown}", request=shown)
        return info

    async def handle(
        self, principal: Principal, session_id: str
    ) -> tuple[Session[Any], SessionInfo]:
        """Return a session of the caller's to be used, and how it stands."""
        info = await self.owned_session(principal, session_id)
        return await self.app.session(info.session_id), info

    @asynccontextmanager
    async def hold(self, principal: Principal) -> AsyncIterator[None]:
        """Count a stream for as long as it is open, or refuse it."""
        name = caller(principal)
        if not self.streams.enter(name, is_limited=principal is not LOCAL):
            raise ErrorResponse(
                429,
                "TOO_MANY_STREAMS",
                f"this key has {self.settings.max_streams_per_key} streams open, which is the most",
                hint="Close one, or read several sessions one after another.",
                headers={"Retry-After": "5"},
            )
        try:
            yield
        finally:
            self.streams.leave(name)

    async def still_valid(self, principal: Principal) -> bool:
        """Say whether the principal's key is still valid, as far as the store can tell."""
        if not principal.key_id:
            return True
        try:
            key = await find_key(self.app.store, principal.key_id)
        except StoreUnavailable:
            return True  # nothing new can be read now, either
        return key is not None and not key.revoked_at

    def url(self, request: Request, path: str) -> str:
        """Return where something is found: as seen from outside, if that is known."""
        root = self.app.public_url or str(request.scope.get("root_path", ""))
        return f"{root.rstrip('/')}/v1{path}"


def is_id(text: str) -> bool:
    """Whether a text can be an id at all: what no store could look up is not looked up."""
    return 0 < len(text) <= MAX_ID and is_storable(text)
