"""A connection as users define it: a service that users sign in to by OAuth 2.1.

Owns what may be said of a service, and keeps its secrets out of errors and log lines. The sign-in
is in `oauth_flow.py`; `connections.py` gives tools their tokens.
"""

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from outlast.core.instant import Span
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.net.address import check_url

Owner = Literal["user", "app"]
ClientAuth = Literal["basic", "post"]

A_DAY = timedelta(days=1)
OURS = frozenset(
    "client_id code_challenge code_challenge_method redirect_uri response_type scope state".split()
)
"""Parameters of the sign-in address that `authorize_params` may not set."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Redacted(Struct, frozen=True, gc=False, omit_defaults=True):
    """Prints its name and no more: in an error, a log line, or a traceback with its locals."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Connection(Redacted, frozen=True):
    """A service that users sign in to, so that tools can act in their name.

    Attributes:
        name: Part of the redirect URI: `{public_url}/v1/connections/{name}/callback`.
        authorize_url: Where users sign in.
        token_url: Where the provider gives tokens.
        client_id: This app's id at the provider.
        client_secret: Without one the app is a public client.
        scopes: Requested at every sign-in.
        owner: "user": each principal has a token of their own. "app": all sessions of a tenant
            share one.
        client_auth: How the app authenticates itself: "basic" in a header, "post" in the body.
        authorize_params: More parameters for the sign-in address.
        revoke_url: Where tokens are revoked.
        issuer: The provider's `iss`; answers with another one are refused.
        sign_in_timeout: How long a user has to sign in; then the sign-in has failed.
        allow_private: Allow a provider in a private network, or without TLS.
        timeout: Time for each request to the provider.
        tls: Verifies a provider whose certificate public authorities do not know.
    """

    name: str
    authorize_url: str
    token_url: str
    client_id: str
    client_secret: str = ""
    scopes: Sequence[str] = ()
    owner: Owner = "user"
    client_auth: ClientAuth = "basic"
    authorize_params: Mapping[str, str] = {}
    revoke_url: str = ""
    issuer: str = ""
    sign_in_timeout: Span = A_DAY
    allow_private: bool = False
    timeout: Span = 10.0
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidDefinition(
                "a connection's name has small letters, digits, _ and -, at most 64: it is part"
                " of the address that the provider sends people back to"
            )
        if problem := next(problems(self), None):
            raise InvalidDefinition(f"connection {self.name}: {problem}", connection=self.name)

    def __repr__(self) -> str:
        return f"Connection({self.name!r}, owner={self.owner!r})"


class ConnectionSettings(Redacted, frozen=True):
    """The connections of an app, and the key that encrypts their tokens.

    Attributes:
        connections: The services.
        secret_key: 32 or more random characters. Of several keys the first encrypts, and all
            decrypt.
    """

    connections: Sequence[Connection]
    secret_key: str | Sequence[str]


def problems(it: Connection) -> Iterator[str]:
    """Yield what is wrong with a connection."""
    if it.owner not in ("user", "app"):
        yield 'owner is "user" or "app"'
    if it.client_auth not in ("basic", "post"):
        yield 'client_auth is "basic" or "post"'
    if not it.client_id:
        yield "it needs the client_id that the provider gave to this app"
    if isinstance(it.scopes, str) or not all(scope.strip() == scope for scope in it.scopes):
        yield "scopes are a list of texts, one for each scope"
    if taken := sorted(OURS & it.authorize_params.keys()):
        yield f"authorize_params cannot have {', '.join(taken)}"
    if not is_span(it.sign_in_timeout):
        given = it.sign_in_timeout
        yield f"sign_in_timeout is a time over 0, as in timedelta(minutes=30), not {given!r}"
    if not is_span(it.timeout):
        yield f"timeout is a time over 0, as in timedelta(seconds=10), not {it.timeout!r}"
    # A browser opens the first, in a network of its own; we call the others.
    yield from problems_of("authorize_url", it.authorize_url, it, is_private=True)
    yield from problems_of("token_url", it.token_url, it, is_private=it.allow_private)
    if it.revoke_url:
        yield from problems_of("revoke_url", it.revoke_url, it, is_private=it.allow_private)


def is_span(given: Any) -> bool:
    """Say whether this is a length of time over 0: a timedelta or a number of seconds."""
    if isinstance(given, timedelta):
        return given > timedelta(0)
    return isinstance(given, int | float) and not isinstance(given, bool) and given > 0


def problems_of(what: str, url: str, it: Connection, *, is_private: bool) -> Iterator[str]:
    try:
        check_url(url, allow_private=is_private)
    except InvalidInput as error:
        yield f"{what}: {error.message}"
        return
    if urlsplit(url).scheme != "https" and not it.allow_private:
        yield f"{what} has to begin with https://; `allow_private=True` allows others"
