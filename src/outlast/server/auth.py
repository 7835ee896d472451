"""Authentication: decides whose request this is before any of its body is read.

All is closed that is not named here as open. Knows no route beyond that.
"""

import re
from inspect import isawaitable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.clock import Clock
from outlast.core.name import check_id, check_who
from outlast.errors import InvalidDefinition, OutlastError
from outlast.server.address import (
    headers,
    host_of,
    is_allowed,
    is_local,
    is_loopback,
    path_of,
)
from outlast.server.body import in_time
from outlast.server.error import ErrorResponse, refusal_of
from outlast.server.key import find_principal
from outlast.server.limit import PROBES, RateLimiter, unknown_host
from outlast.server.principal import LOCAL, PRINCIPAL, Principal, caller
from outlast.server.settings import ServerSettings
from outlast.store import Store

OPEN = (*PROBES, "/v1/openapi.json")
CALLBACKS = "/v1/callbacks/"
"""Paths that carry their own secret: the unguessable token behind the prefix is the key."""
RETURNS = re.compile(r"/v1/connections/[^/]*/callback")
"""Where browsers come back to from signing in; the state is the key."""
CHANNELS = re.compile(r"/v1/channels/[^/]*")
"""Where channels take in what is said elsewhere; each verifies that itself."""

SAFE = ("GET", "HEAD", "OPTIONS")


def principal_of(request: Request) -> Principal:
    """Return the principal that the middleware found; no request gets here without one."""
    found: Principal = request.scope["state"][PRINCIPAL]
    return found


class AuthMiddleware:
    """Middleware: behind the guard, before the routes."""

    def __init__(self, app: ASGIApp, store: Store, clock: Clock, settings: ServerSettings) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._rate = RateLimiter(settings.rate, settings.burst, clock.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inside = self._app
        if scope["type"] == "http" and not is_open(path_of(scope)):
            try:
                principal = await in_time(self._identify(scope), self._settings.timeout)
                self._check_rate(principal)
                scope.setdefault("state", {})[PRINCIPAL] = principal
            except ErrorResponse as refusal:
                inside = refusal.response()
            except OutlastError as error:
                inside = refusal_of(error).response()
        await inside(scope, receive, send)

    async def _identify(self, scope: Scope) -> Principal:
        # The app's own way of knowing its users comes before our keys.
        if found := await ask_authenticate(self._settings, scope):
            if scope["method"] not in SAFE:
                self._check_origin(scope)  # it may be known by a cookie, which any page sends
            return found
        given = headers(scope, b"authorization")
        if given:
            if found := await find_principal(self._store, bearer(given)):
                return found
            raise unauthenticated("the key is not known, or was revoked")
        # Without any of these, callers on this machine need no key; for its browsers see
        # `_check_page`.
        if self._settings.authenticate or self._settings.require_key or not is_local(scope):
            raise unauthenticated("this request needs a key")
        self._check_page(scope)
        return LOCAL

    def _check_page(self, scope: Scope) -> None:
        """Let no web page in that a browser on this machine shows, unless it was named."""
        named = [host for host in self._settings.allowed_hosts if host != "*"]
        host = host_of(scope)
        if not is_loopback(host) and not is_allowed(host, named):
            raise unknown_host()
        self._check_origin(scope)

    def _check_origin(self, scope: Scope) -> None:
        """Refuse what another site's page sends, unless that was named."""
        hosts = headers(scope, b"host")
        own = {f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")}
        if not own.union(self._settings.cors_origins).issuperset(headers(scope, b"origin")):
            raise ErrorResponse(
                403,
                "ORIGIN_NOT_ALLOWED",
                "this page may not call the server",
                hint="Name its origin in cors_origins of ServerSettings.",
            )

    def _check_rate(self, principal: Principal) -> None:
        wait = self._rate.take(caller(principal)) if principal is not LOCAL else 0.0
        if wait:
            raise ErrorResponse(
                429,
                "RATE_LIMITED",
                f"this key is good for {self._settings.rate:g} requests a second",
                headers={"Retry-After": str(int(wait) + 1)},
            )


async def ask_authenticate(settings: ServerSettings, scope: Scope) -> Principal | None:
    """Return whose request this is by the app's own `authenticate`, if it has one and it knows."""
    if settings.authenticate is None:
        return None
    found = settings.authenticate(Request(scope))
    principal = await found if isawaitable(found) else found
    if principal is None:
        return None
    if not isinstance(principal, Principal):
        raise InvalidDefinition("`authenticate` returns a Principal or None")
    # Checked here as well: a tenant is in every key of the store, and this one comes from users'
    # code.
    check_id("tenant", principal.tenant)
    check_who("principal", principal.name)
    return principal


def is_open(path: str) -> bool:
    if path in OPEN or path.startswith(CALLBACKS):
        return True
    return any(known.fullmatch(path) for known in (RETURNS, CHANNELS))


def bearer(given: list[str]) -> str:
    scheme, _, token = given[0].partition(" ")
    # Of several headers another proxy or library might take another one.
    return token.strip() if scheme.lower() == "bearer" and len(given) == 1 else ""


def unauthenticated(message: str) -> ErrorResponse:
    return ErrorResponse(
        401,
        "UNAUTHENTICATED",
        message,
        hint="Send `Authorization: Bearer outlast_…`; `outlast keys create` makes a key.",
        headers={"WWW-Authenticate": "Bearer"},
    )
