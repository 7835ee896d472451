"""Signatures of webhooks by the rules of Standard Webhooks (standardwebhooks.com).

`webhook-signature` holds one or more `v1,<base64>` with blanks between them: the HMAC-SHA256 of
`<webhook-id>.<webhook-timestamp>.<body>`, one for each secret of a sender that changes its own.
A secret is any text of 16 bytes or more, or `whsec_` and the base64 of that many.
"""

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.clock import Clock
from outlast.core.instant import Span, seconds
from outlast.core.json_text import JsonRefused, parse_json
from outlast.errors import InvalidDefinition, InvalidSignature

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
VERSION = "v1"
PREFIX = "whsec_"
SHORTEST = 16
LONGEST_TIMESTAMP = 12
TOLERANCE = 300.0
"""Seconds between the clocks of a sender and a receiver, and the age that a webhook may have."""

Secrets = str | Sequence[str]


def sign(secret: Secrets, body: bytes, at: int, message_id: str) -> dict[str, str]:
    """Return the headers for a body that is posted at an instant, in seconds."""
    signed = (f"{VERSION},{digest(key, message_id, str(at), body)}" for key in keys_of(secret))
    return {ID: message_id, TIMESTAMP: str(at), SIGNATURE: " ".join(signed)}


def verify(
    secret: Secrets,
    headers: Mapping[str, str],
    body: bytes | str,
    tolerance: Span = TOLERANCE,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Return the content of a webhook, if it was signed with the secret or one of several.

    `body` is the body as it was received, not as a framework parsed it. A timestamp that is more
    than `tolerance` seconds from now is refused, so that a recorded request cannot be sent again
    later. Raises InvalidSignature; answer that with 401.
    """
    raw = body.encode() if isinstance(body, str) else body
    check_signature(secret, headers, raw, seconds(tolerance), (clock or Clock()).now() // 1000)
    return decoded(raw)


def check_signature(
    secret: Secrets, headers: Mapping[str, str], body: bytes, tolerance: float, now: int
) -> None:
    """Raise InvalidSignature unless a body was signed within so many seconds of `now`."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = header(given, ID), header(given, TIMESTAMP)
    # The timestamp is a part of what is signed: an old post cannot be given a new one.
    check_age(timestamp, tolerance, now)
    offered = header(given, SIGNATURE).encode(errors="replace").split()
    wanted = [
        f"{VERSION},{digest(key, message_id, timestamp, body)}".encode() for key in keys_of(secret)
    ]
    # All are compared, so that the duration does not tell which one nearly fits.
    fits = [hmac.compare_digest(w, o) for w in wanted for o in offered]
    if not any(fits):
        raise InvalidSignature(
            "no signature fits: compare the secret on both sides, and verify the body as it came"
        )


def header(given: Mapping[str, str], name: str) -> str:
    if value := given.get(name):
        return value
    raise InvalidSignature(f"the header {name} is missing: this post is not a webhook of Outlast")


def check_age(timestamp: str, tolerance: float, now: int) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= LONGEST_TIMESTAMP):
        raise InvalidSignature(f"the header {TIMESTAMP} is not a number of seconds")
    age = now - int(timestamp)
    if abs(age) > tolerance:
        when = f"{age} s old" if age > 0 else f"{-age} s in the future"
        raise InvalidSignature(
            f"the webhook is {when}, and {tolerance:g} s is the most: are both clocks right?"
        )


def decoded(body: bytes) -> dict[str, Any]:
    try:
        value = parse_json(body.decode())
    except (JsonRefused, UnicodeDecodeError):
        value = None
    if not isinstance(value, dict):
        raise InvalidSignature("the body is signed, but it is not a JSON object")
    return value


def digest(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode(errors="surrogatepass") + body
    return b64encode(hmac.digest(key, signed, "sha256")).decode()


def secrets_of(secret: Secrets) -> tuple[str, ...]:
    """Return one or several secrets as a tuple, if all of them can be used."""
    if not isinstance(secret, str | Sequence):
        raise InvalidDefinition("a secret has to be a text, or a sequence of texts")
    secrets = ((secret,) if secret else ()) if isinstance(secret, str) else tuple(secret)
    for each in secrets:
        key_of(each)
    return secrets


def keys_of(secret: Secrets) -> list[bytes]:
    if keys := [key_of(each) for each in secrets_of(secret)]:
        return keys
    raise InvalidDefinition("a webhook needs a secret to be signed with")


def key_of(secret: str) -> bytes:
    """Return the bytes of a secret; errors never show them."""
    try:
        encoded = secret.removeprefix(PREFIX)
        key = b64decode(encoded, validate=True) if encoded != secret else secret.encode()
    except (NotBase64, ValueError):
        raise InvalidDefinition(f"a secret that begins with {PREFIX} goes on in base64") from None
    if len(key) < SHORTEST:
        raise InvalidDefinition(f"a webhook's secret has at least {SHORTEST} bytes")
    return key
