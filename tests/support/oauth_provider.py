"""A real OAuth 2.1 provider: a process of its own on loopback, strict about every rule.

Codes are good once, for the client, address and verifier that they were asked with; one that is
shown twice costs what it was exchanged for. Refresh tokens are replaced at each use, and an old
one costs the whole family. Somebody has to say yes or no on a page. `/control` lets a test say
how it shall go, and see what was given out.

By itself (`python oauth_provider.py`) it says its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "outlast-app", "a client's secret, & no = less"
PUBLIC = "public-app"
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing here is called over TLS, and to read all certificates of this world takes its time."""


class Wrong(Exception):
    """What a token request is told."""

    def __init__(self, error: str, status: int = 400) -> None:
        super().__init__(error)
        self.error = error
        self.status = status


@dataclass
class Asked:
    """What somebody was sent here with."""

    client: str
    redirect_uri: str
    challenge: str
    scope: str
    state: str
    family: str = ""
    is_used: bool = False


@dataclass
class Provider:
    """All that the provider knows."""

    issuer: str = ""
    tickets: dict[str, Asked] = field(default_factory=dict)
    codes: dict[str, Asked] = field(default_factory=dict)
    access: dict[str, str] = field(default_factory=dict)
    """Living access tokens, and the family that each is of."""
    refresh: dict[str, tuple[str, str, bool]] = field(default_factory=dict)
    """Refresh tokens: family, scope, and whether it was used."""
    given: list[str] = field(default_factory=list)
    """All that was ever secret: tokens and codes that were given out, verifiers that were shown."""
    calls: dict[str, int] = field(default_factory=dict)
    expires_in: int = 3600
    rotates: bool = True
    error: str = ""
    """What the next token request is told, as an error or a status."""
    kills: int = 0
    """A process that dies when the next token request has been granted, before it is told."""
    holds: bool = False
    """Whether who asks for a token is granted it, and kept waiting for it."""
    turn: asyncio.Condition = field(default_factory=asyncio.Condition)
    waiting: int = 0

    def token(self, kind: str) -> str:
        made = f"{kind}_{secrets.token_urlsafe(24)}"
        self.given.append(made)
        return made

    def drop(self, family: str) -> None:
        self.access = {token: f for token, f in self.access.items() if f != family}
        self.refresh = {token: r for token, r in self.refresh.items() if r[0] != family}

    def grant(self, family: str, scope: str) -> dict[str, Any]:
        access, refresh = self.token("access"), self.token("refresh")
        self.access[access] = family
        self.refresh[refresh] = (family, scope, False)
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.expires_in,
            "refresh_token": refresh,
            "scope": scope,
        }

    def exchange(self, form: Mapping[str, str], client: str) -> dict[str, Any]:
        asked = self.codes.get(form.get("code", ""))
        if asked is None:
            raise Wrong("invalid_grant")
        if asked.is_used:
            self.drop(asked.family)
            raise Wrong("invalid_grant")
        self.given.append(form.get("code_verifier", ""))
        digest = hashlib.sha256(self.given[-1].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        known = (asked.client, asked.redirect_uri, asked.challenge)
        if known != (client, form.get("redirect_uri"), challenge):
            raise Wrong("invalid_grant")
        asked.is_used, asked.family = True, secrets.token_hex(4)
        return self.grant(asked.family, asked.scope)

    def renew(self, form: Mapping[str, str]) -> dict[str, Any]:
        given = form.get("refresh_token", "")
        family, scope, is_used = self.refresh.get(given, ("", "", False))
        if not family:
            raise Wrong("invalid_grant")
        if is_used and self.rotates:
            self.drop(family)
            raise Wrong("invalid_grant")
        self.refresh[given] = (family, scope, True)
        granted = self.grant(family, scope)
        if not self.rotates:
            del self.refresh[granted.pop("refresh_token")]
        return granted


P = Provider()


async def authorize(request: Request) -> Response:
    """Show the page on which somebody says yes or no."""
    count("authorize")
    given = request.query_params
    if given.get("client_id") not in (CLIENT, PUBLIC) or "redirect_uri" not in given:
        return HTMLResponse("who are you?", 400)
    rules = {"response_type": "code", "code_challenge_method": "S256"}
    is_whole = all(given.get(name) == value for name, value in rules.items())
    if not is_whole or len(given.get("code_challenge", "")) != 43 or not given.get("state"):
        return HTMLResponse("this is no request of OAuth 2.1", 400)
    ticket = secrets.token_hex(8)
    P.tickets[ticket] = Asked(
        given["client_id"],
        given["redirect_uri"],
        given["code_challenge"],
        given.get("scope", ""),
        given["state"],
    )
    form = f'<form method="post"><input name="ticket" value="{ticket}"></form>'
    return HTMLResponse(f"May the app have {given.get('scope', '')}?{form}")


async def decide(request: Request) -> Response:
    """Send somebody back who has said yes or no."""
    form = dict(parse_qsl((await request.body()).decode()))
    asked = P.tickets.pop(form["ticket"])
    back = {"state": asked.state, "iss": P.issuer}
    if form.get("error"):
        back |= {"error": form["error"], "error_description": "because the user said so"}
    else:
        code = P.token("code")
        P.codes[code] = asked
        back |= {"code": code}
    return RedirectResponse(f"{asked.redirect_uri}?{urlencode(back)}", 303)


async def token(request: Request) -> Response:
    count("token")
    form = dict(parse_qsl((await request.body()).decode()))
    try:
        if (error := P.error) and not error.isdigit():
            P.error = ""
            raise Wrong(error)
        if error:
            P.error = ""
            return HTMLResponse("<p>busy</p>", int(error))
        client = authenticate(request, form)
        is_code = form.get("grant_type") == "authorization_code"
        granted = P.exchange(form, client) if is_code else P.renew(form)
    except Wrong as wrong:
        told = {"error": wrong.error, "error_description": f"no to {form.get('code')}"}
        return JSONResponse(told, wrong.status)
    if P.kills:
        os.kill(P.kills, signal.SIGKILL)
        P.kills = 0
        await asyncio.sleep(0.05)  # nobody is there to be told
    if P.holds:
        await be_held()
    return JSONResponse(granted, headers={"Cache-Control": "no-store"})


async def be_held() -> None:
    async with P.turn:
        P.waiting += 1
        P.turn.notify_all()
        await P.turn.wait_for(lambda: not P.holds)
        P.waiting -= 1


async def held(request: Request) -> Response:
    """Answer when somebody is held."""
    async with P.turn:
        await P.turn.wait_for(lambda: P.waiting > 0)
    return Response()


def authenticate(request: Request, form: Mapping[str, str]) -> str:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme == "Basic":
        client, _, secret = base64.b64decode(given).decode().partition(":")
    else:
        client, secret = form.get("client_id", ""), form.get("client_secret", "")
    if (client, secret) not in ((CLIENT, SECRET), (PUBLIC, "")):
        raise Wrong("invalid_client", 401)
    return client


async def revoke(request: Request) -> Response:
    count("revoke")
    form = dict(parse_qsl((await request.body()).decode()))
    authenticate(request, form)
    given = form.get("token", "")
    P.drop(P.access.get(given, "") or P.refresh.get(given, ("", "", False))[0])
    return Response(status_code=200)


async def user(request: Request) -> Response:
    """What tokens are good for."""
    count("user")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if given not in P.access:
        return JSONResponse({"message": "Bad credentials"}, 401)
    return JSONResponse({"login": "ada"})


async def control(request: Request) -> Response:
    """Say how it shall go; see how it went."""
    for name, value in (await request.json() if request.method == "POST" else {}).items():
        setattr(P, name, value)
    async with P.turn:
        P.turn.notify_all()
    return JSONResponse({"calls": P.calls, "given": P.given, "access": [*P.access]})


def count(what: str) -> None:
    P.calls[what] = P.calls.get(what, 0) + 1


ROUTES = [
    Route("/authorize", authorize),
    Route("/authorize", decide, methods=["POST"]),
    Route("/token", token, methods=["POST"]),
    Route("/revoke", revoke, methods=["POST"]),
    Route("/user", user),
    Route("/held", held),
    Route("/control", control, methods=["GET", "POST"]),
]


# The other side


class Remote:
    """The provider as tests see it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def settings(self, **other: Any) -> dict[str, Any]:
        """What a Connection needs to know."""
        return {
            "authorize_url": f"{self.url}/authorize",
            "token_url": f"{self.url}/token",
            "revoke_url": f"{self.url}/revoke",
            "issuer": self.url,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "allow_private": True,
            "timeout": 5.0,
            "tls": PLAIN,
            **other,
        }

    async def say(self, **how: Any) -> dict[str, Any]:
        """Say how it shall go, and return what is known."""
        async with httpx.AsyncClient(base_url=self.url, verify=PLAIN) as client:
            return dict((await client.post("/control", json=how)).json())

    async def calls(self, what: str) -> int:
        return int((await self.say())["calls"].get(what, 0))

    async def until_held(self) -> None:
        """Wait until somebody was granted a token and waits for it."""
        async with httpx.AsyncClient(base_url=self.url, verify=PLAIN, timeout=60) as client:
            await client.get("/held")

    async def user(self, access_token: str) -> int:
        """Use a token; return the status of the answer."""
        async with httpx.AsyncClient(base_url=self.url, verify=PLAIN) as client:
            headers = {"Authorization": f"Bearer {access_token}"}
            return (await client.get("/user", headers=headers)).status_code

    async def visit(self, address: str, error: str = "") -> str:
        """Do what somebody does at the address to sign in; return where they are sent."""
        async with httpx.AsyncClient(verify=PLAIN) as browser:
            page = await browser.get(address)
            found = re.search(r'name="ticket" value="(\w+)"', page.text)
            assert found, page.text
            said = {"ticket": found[1], "error": error}
            answer = await browser.post(f"{self.url}/authorize", data=said)
            return str(answer.headers["location"])


def brought(address: str) -> dict[str, str]:
    """What somebody brings back in the address that they are sent to."""
    return dict(parse_qsl(urlsplit(address).query))


@contextmanager
def provider_process() -> Iterator[Remote]:
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Remote(json.loads(process.stdout.readline())["port"])
        finally:
            process.stdin.close()
            process.wait(10)


async def serve() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    P.issuer = f"http://127.0.0.1:{port}"
    config = uvicorn.Config(Starlette(routes=ROUTES), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    print(json.dumps({"port": port}), flush=True)  # noqa: T201 - to whoever started it
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(serve())
