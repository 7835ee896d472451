"""The app as routes use it: the calling principal, and the sessions of its tenant.

The one place where an id from outside becomes a session: for a session of another tenant it says
that there is none.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request

from outlast.app import Outlast
from outlast.clock import Clock
from outlast.core.index import PEOPLE, RELAYED
from outlast.core.instant import seconds
from outlast.core.name import MAX_ID, is_storable
from outlast.errors import StoreError, StoreUnavailable, UnknownRequest, UnknownSession
from outlast.log_context import get_logger
from outlast.server.auth import ask_authenticate, principal_of, unauthenticated
from outlast.server.body import in_time
from outlast.server.error import ErrorResponse
from outlast.server.key import find_key
from outlast.server.limit import StreamLimiter
from outlast.server.principal import LOCAL, Principal, caller
from outlast.server.settings import ServerSettings
from outlast.server.stream.feed import SessionFeeds
from outlast.session import Session
from outlast.store import RequestInfo, SessionInfo, Store

log = get_logger("outlast.server")

FRESH = 1.0
TIMEOUT = 2.0
PARSERS = 2
"""Threads on which large bodies are read: they share one interpreter, so more would not help."""
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
            # Under the lock: a hundred probes at once ask the store once.
            if self._asked_at is None or now - self._asked_at >= FRESH:
                self._is_ready = await self._ask()
                self._asked_at = self._clock.monotonic()
            return self._is_ready

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._store.listing.session(NOBODY)
        except (StoreError, TimeoutError):
            return False
        return True


class ServerBackend:
    """Stands between the routes and the app."""

    def __init__(self, app: Outlast, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings
        self.heartbeat = seconds(settings.heartbeat)
        self.streams = StreamLimiter(settings.max_streams_per_key)
        self.readiness = Readiness(app.store, app.clock)
        self.feeds = SessionFeeds(app.store, app.clock)
        self.threads = ThreadPoolExecutor(PARSERS, thread_name_prefix="outlast-body")

    def principal(self, request: Request, *scopes: str) -> Principal:
        """Return the calling principal, or refuse it if it has none of the scopes."""
        principal = principal_of(request)
        if scopes and not any(principal.may(scope) for scope in scopes):
            needed = " or ".join(scopes)
            raise ErrorResponse(
                403,
                "MISSING_SCOPE",
                f"this needs the scope {needed}",
                hint="`outlast keys create --scopes` makes a key with other scopes.",
                scope=needed,
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
        # In the same words: another tenant's session is not told from one that does not exist.
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

    async def check_still_valid(self, request: Request) -> None:
        """Refuse a caller that has waited, and whose key or login has ended meanwhile."""
        if not await self.still_valid(request):
            raise unauthenticated("the key was revoked, or the login has ended")

    async def still_valid(self, request: Request) -> bool:
        """Say whether a request would still be let in, as far as that can be told now."""
        principal = principal_of(request)
        try:
            if principal.key_id:
                key = await find_key(self.app.store, principal.key_id)
                return key is not None and not key.revoked_at
            if self.settings.authenticate is None:
                return True
            found = await in_time(
                ask_authenticate(self.settings, request.scope), seconds(self.settings.timeout)
            )
        except (StoreUnavailable, ErrorResponse):
            return True  # nothing new can be read now, either
        except Exception:
            log.exception("`authenticate` has failed for a stream that is open")
            return False
        return found is not None and is_as_before(found, principal)

    def close(self) -> None:
        """Cut all streams, and read no more bodies."""
        self.feeds.close()
        # A body that is being read has no reader any more.
        self.threads.shutdown(wait=False)

    def url(self, request: Request, path: str) -> str:
        """Return where something is found: as seen from outside, if that is known."""
        root = self.app.public_url or str(request.scope.get("root_path", ""))
        return f"{root.rstrip('/')}/v1{path}"


def is_as_before(found: Principal, principal: Principal) -> bool:
    """Whether a caller is the one that it was, and may do all that it did."""
    same = (found.tenant, found.name) == (principal.tenant, principal.name)
    return same and all(found.may(scope) for scope in principal.scopes)


def is_id(text: str) -> bool:
    """Whether a text can be an id at all: what no store could look up is not looked up."""
    return 0 < len(text) <= MAX_ID and is_storable(text)
