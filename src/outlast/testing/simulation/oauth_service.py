"""A service that people sign in to, in a simulation: as strict as OAuth 2.1 allows, and often away.

Outlast speaks to it through its own client, as to any provider; only the wire is simulated.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from outlast.clock import Clock
from outlast.core.name import authorization_name
from outlast.errors import Unreachable
from outlast.integration.connection import ConnectionSettings, open_connections
from outlast.integration.connection.connection import Connection
from outlast.net.client import GuardedClient, HttpAnswer, ReceiverConnection
from outlast.store import Store
from outlast.testing.simulation.history import History, UserSignedIn
from outlast.testing.simulation.random_answer import chance_of

if TYPE_CHECKING:
    from outlast.integration.connection.connections import Connections

NAME = "oauth_service"
URL = "https://oauth_service.example"
CONNECTION = Connection(
    NAME,
    authorize_url=f"{URL}/authorize",
    token_url=f"{URL}/token",
    client_id="simulated",
    issuer=URL,
    timeout=1.0,
)
KEY = "a key that is the same in every simulation"
LIFE = 40
"""Seconds that an access token is good for."""


@dataclass
class TokenFamily:
    """The tokens of one sign-in: whose they are, and which are still valid."""

    owner: str
    access: set[str] = field(default_factory=set)
    refresh: str = ""


class OAuthService:
    """The service. A code is good once, a refresh token too: shown again, it costs all."""

    def __init__(self, seed: int, history: History) -> None:
        self._seed = seed
        self._history = history
        self._codes: dict[str, tuple[str, str, str]] = {}
        self._families: dict[str, TokenFamily] = {}
        self._made = 0

    # People

    def sign_in(self, url: str, owner: str, *, says_yes: bool) -> dict[str, str]:
        """Say yes or no to what an address asks for; return what is brought back."""
        asked = dict(parse_qsl(urlsplit(url).query))
        back = {"state": asked["state"], "iss": URL}
        how = "granted" if says_yes else "denied"
        request_id = authorization_name(asked["state"])
        self._history.note(UserSignedIn, request_id=request_id, owner=owner, how=how)
        if not says_yes:
            return {**back, "error": "access_denied"}
        code = self._new("code")
        self._codes[code] = (owner, asked["code_challenge"], asked["redirect_uri"])
        return {**back, "code": code}

    # Tools

    def owner_of(self, access_token: str) -> str:
        """Return whose token it is; empty if it is good no more."""
        known = (f.owner for f in self._families.values() if access_token in f.access)
        return next(known, "")

    # Outlast

    def connections(
        self, store: Store, clock: Clock, address: str, admit: Callable[..., Any]
    ) -> Connections | None:
        """Return what looks after sign-ins to this service in some process."""
        return open_connections(
            ConnectionSettings([CONNECTION], KEY),
            store,
            clock,
            lambda: address,
            admit,
            self._outbound,
        )

    def _outbound(self, _: Connection) -> GuardedClient:
        return OAuthServiceClient(self)

    async def answer(self, body: bytes) -> tuple[int, bytes]:
        """Answer a token request, unless that gets lost."""
        self._made += 1
        luck = chance_of(self._seed, "oauth_service", self._made)
        await asyncio.sleep(luck.choice([0.01, 0.1, 0.9]))
        if luck.random() < 0.1:
            return 503, b""
        status, told = self._token(dict(parse_qsl(body.decode())))
        if luck.random() < 0.05:
            raise Unreachable("the answer was lost")
        return status, msgspec.json.encode(told)

    def _token(self, form: Mapping[str, str]) -> tuple[int, dict[str, object]]:
        if form["grant_type"] == "authorization_code":
            family = self._exchange(form)
        else:
            family = self._renew(form["refresh_token"])
        if family is None:
            return 400, {"error": "invalid_grant"}
        access, family.refresh = self._new("access"), self._new("refresh")
        family.access.add(access)
        told = {"access_token": access, "refresh_token": family.refresh, "expires_in": LIFE}
        return 200, {**told, "token_type": "Bearer"}

    def _exchange(self, form: Mapping[str, str]) -> TokenFamily | None:
        code = form["code"]
        if code in self._families:
            self._revoke(self._families[code])
            return None
        owner, challenge, redirect_uri = self._codes.get(code, ("", "", ""))
        if (challenge_of(form["code_verifier"]), form["redirect_uri"]) != (challenge, redirect_uri):
            return None
        return self._families.setdefault(code, TokenFamily(owner))

    def _renew(self, refresh_token: str) -> TokenFamily | None:
        known = (f for f in self._families.values() if f.refresh == refresh_token)
        return next(known, None)

    def _revoke(self, family: TokenFamily) -> None:
        family.access.clear()
        family.refresh = ""

    def _new(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._made}"


def challenge_of(verifier: str) -> str:
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")


class OAuthServiceClient(GuardedClient):
    """The way to the service: no name is looked up, and nothing leaves this process."""

    def __init__(self, oauth_service: OAuthService) -> None:
        self._oauth_service = oauth_service

    @asynccontextmanager
    async def open(self, url: str) -> AsyncIterator[ReceiverConnection]:
        yield OAuthServiceConnection(self._oauth_service)


class OAuthServiceConnection(ReceiverConnection):
    def __init__(self, oauth_service: OAuthService) -> None:
        self._oauth_service = oauth_service

    async def exchange(self, body: bytes, headers: Mapping[str, str], most: int) -> HttpAnswer:
        status, text = await self._oauth_service.answer(body)
        return HttpAnswer(status, {}, text)
