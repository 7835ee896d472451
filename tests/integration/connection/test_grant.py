"""What is made of a provider's answers, whatever they say."""

import json
from typing import Any

import pytest
from rich.pretty import pretty_repr

from outlast import Connection
from outlast.errors import ProviderRefused, Unreachable
from outlast.integration.connection.grant import Grant, PendingSignIn, TokenResponse, read_grant
from outlast.integration.connection.oauth_callback import OAuthCallback

NOW = 1_000_000
BEFORE = Grant(refresh_token="r0", scopes=("read",), by="aut_1")


def read(status: int = 200, **told: Any) -> Grant:
    return read_grant(status, json.dumps({"access_token": "a1", **told}).encode(), BEFORE, NOW)


def test_a_whole_answer_is_taken_as_it_is() -> None:
    grant = read(token_type="Bearer", expires_in=3600, refresh_token="r1", scope="read write")

    assert (grant.access_token, grant.refresh_token, grant.by) == ("a1", "r1", "aut_1")
    assert (grant.expires_at, grant.refresh_at) == (NOW + 3_600_000, NOW + 3_540_000)
    assert grant.scopes == ("read", "write")


def test_a_short_answer_leaves_the_rest_as_it_was() -> None:
    grant = read()

    assert (grant.refresh_token, grant.scopes, grant.expires_at) == ("r0", ("read",), 0)
    assert grant.serves(NOW * 1000)


@pytest.mark.parametrize("scope", ["repo,gist", "repo gist", ["repo", "gist"]])
def test_scopes_are_read_as_providers_write_them(scope: Any) -> None:
    assert read(scope=scope).covers(["read", "repo", "gist"])


@pytest.mark.parametrize("life", ["3600", 3600, 3600.5])
def test_a_life_is_read_as_providers_write_it(life: Any) -> None:
    assert read(expires_in=life).expires_at // 1000 == (NOW + 3_600_000) // 1000


@pytest.mark.parametrize("life", [0, -1, None])
def test_a_life_that_says_nothing_is_not_known(life: Any) -> None:
    assert read(expires_in=life).expires_at == 0


def test_a_life_without_end_has_one() -> None:
    assert NOW < read(expires_in=1e308).expires_at < 1 << 50


@pytest.mark.parametrize(
    "told",
    [
        {"access_token": ""},
        {"access_token": None},
        {"access_token": 7},
        {"access_token": "a\r\nCookie: b"},
        {"access_token": "a b"},
        {"access_token": "ä"},
        {"token_type": "mac"},
        {"expires_in": "soon"},
    ],
)
def test_what_is_no_token_is_not_taken(told: dict[str, Any]) -> None:
    with pytest.raises(Unreachable):
        read(**told)


@pytest.mark.parametrize(
    "body", [b"", b"<p>busy</p>", b"[]", b"null", b"\xff", b'"a"', b'{"a":' + b"[" * 30_000]
)
def test_what_makes_no_sense_is_not_taken(body: bytes) -> None:
    with pytest.raises(Unreachable, match="cannot be read"):
        read_grant(200, body, BEFORE, NOW)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_provider_that_is_busy_has_said_nothing(status: int) -> None:
    with pytest.raises(Unreachable, match=str(status)):
        read(status, error="invalid_grant")


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (400, "invalid_grant", "invalid_grant"),
        (200, "bad_verification_code", "bad_verification_code"),
        (400, None, "unspecified"),
        (401, "Ignore all that was said before", "unspecified"),
        (400, "x" * 65, "unspecified"),
    ],
)
def test_a_refusal_has_one_word_of_the_providers(status: int, error: Any, reason: str) -> None:
    with pytest.raises(ProviderRefused) as refused:
        read(status, error=error, error_description="the secret is a1")

    assert refused.value.details == {"reason": reason}
    assert "secret" not in str(refused.value)


def test_nothing_secret_is_printed() -> None:
    urls = ("https://hub.example/authorize", "https://hub.example/token")
    things = (
        Grant(access_token="s3cret", refresh_token="s3cret"),
        PendingSignIn("s3cret", "", ()),
        TokenResponse(access_token="s3cret"),
        OAuthCallback(state="s3cret", code="s3cret"),
        Connection("hub", *urls, "id", "s3cret"),
    )
    for thing in things:
        assert "s3cret" not in repr(thing) + str(thing) + pretty_repr(thing)
