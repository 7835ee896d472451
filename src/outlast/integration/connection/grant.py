"""Grants: an access token, perhaps with a refresh token, and how a provider's answer is read.

Nothing here shows a token when it is printed.
"""

import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from outlast.errors import ProviderRefused, Unreachable
from outlast.integration.connection.connection import Redacted

EARLY = 60_000
"""Milliseconds before its expiry at which a token is refreshed; a quarter of its life if less."""
LONGEST = 10 * 365 * 86_400
"""The longest life of a token that we believe, in seconds."""

_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Grant(Redacted, frozen=True):
    """`scopes` are those that were asked for or given; `by` is the request that asked for it.

    With an `expires_at` of 0 it is not known when it expires.
    """

    access_token: str = ""
    refresh_token: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: int = 0
    refresh_at: int = 0
    by: str = ""

    def serves(self, now: int, instead_of: str = "") -> bool:
        """Say whether the token should be used: one that can be refreshed is refreshed early."""
        until = self.refresh_at if self.refresh_token else self.expires_at
        return self.lives(now, instead_of) and (not until or now < until)

    def lives(self, now: int, instead_of: str = "") -> bool:
        """Say whether the token has not expired, and is not the one that was refused."""
        is_other = self.access_token not in ("", instead_of)
        return is_other and (not self.expires_at or now < self.expires_at)

    def covers(self, scopes: Iterable[str]) -> bool:
        return set(scopes) <= set(self.scopes)


class PendingSignIn(Redacted, frozen=True):
    """A sign-in that was begun: what its callback is checked with."""

    verifier: str
    redirect_uri: str
    scopes: tuple[str, ...]


class TokenResponse(Redacted, frozen=True):
    """A token endpoint's answer, as far as it matters."""

    access_token: str | None = None
    token_type: str | None = None
    refresh_token: str | None = None
    expires_in: int | float | None = None
    scope: str | list[str] | None = None
    error: str | None = None


def read_grant(status: int, body: bytes, before: Grant, now: int) -> Grant:
    """Return the grant in an answer; what the answer leaves out is as `before`."""
    answer = read_answer(status, body)
    if answer.error or status >= 400:
        raise refusal(answer.error)
    token = answer.access_token or ""
    if (answer.token_type or "bearer").lower() != "bearer" or not _PRINTABLE.fullmatch(token):
        raise Unreachable("the provider's answer has no usable token")
    life = int(max(0, min(answer.expires_in or 0, LONGEST)) * 1000)
    return replace(
        before,
        access_token=token,
        refresh_token=answer.refresh_token or before.refresh_token,
        scopes=tuple(dict.fromkeys((*before.scopes, *scopes_of(answer.scope)))),
        expires_at=now + life if life else 0,
        refresh_at=now + life - min(EARLY, life // 4) if life else 0,
    )


def read_answer(status: int, body: bytes) -> TokenResponse:
    if status >= 500 or status == 429:
        raise Unreachable(f"the provider answered with status {status}")
    try:
        return msgspec.json.decode(body, type=TokenResponse, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unreachable(f"the provider's answer, of status {status}, cannot be read") from None


def scopes_of(scope: str | list[str] | None) -> list[str]:
    """Return scopes as a list: most providers separate them by blanks, some by commas."""
    return scope.replace(",", " ").split() if isinstance(scope, str) else scope or []


def refusal(error: str | None) -> ProviderRefused:
    """Return the error for a provider's refusal, with its error code and nothing else of it."""
    reason = error if error and _CODE.fullmatch(error) else "unspecified"
    return ProviderRefused(f"the provider refused: {reason}", reason=reason)
