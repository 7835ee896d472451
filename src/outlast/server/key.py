"""Keys to the server: `outlast_<id>_<secret>`, of which the store has the id and a digest.

The secret has 192 bits of chance, so a plain digest of it gives nothing away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest

from outlast.clock import Clock
from outlast.core.name import check_id
from outlast.errors import InvalidInput
from outlast.server.principal import SCOPES, Principal
from outlast.store import KeyInfo, Store

PREFIX = "outlast_"
LONGEST = 200


def mint(clock: Clock, *, tenant: str, name: str, scopes: Iterable[str]) -> tuple[str, KeyInfo]:
    """Return a new key: its text, to be shown once, and what is kept of it."""
    key_id, secret = clock.new_id("key"), clock.token()
    info = KeyInfo(
        key_id=key_id,
        tenant=check_id("tenant", tenant),
        name=check_id("name", name) if name else "",
        scopes=checked(scopes),
        digest=digest(secret),
        created_at=clock.now(),
    )
    return f"{PREFIX}{key_id.partition('_')[2]}_{secret}", info


def checked(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return scopes without repeats, in the order in which they are documented."""
    given = set(scopes)
    if unknown := given - set(SCOPES):
        raise InvalidInput(
            f"there is no scope {', '.join(sorted(unknown))}; there is {', '.join(SCOPES)}"
        )
    if not given:
        raise InvalidInput(f"a key needs a scope: {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in given)


def digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def parse(text: str) -> tuple[str, str] | None:
    """Return the id and the secret in a key's text, or None if it cannot be one."""
    if not text.startswith(PREFIX) or len(text) > LONGEST or not text.isascii():
        return None
    part, _, secret = text.removeprefix(PREFIX).partition("_")
    return (f"key_{part}", secret) if part.isalnum() and secret else None


async def find_principal(store: Store, text: str) -> Principal | None:
    """Return whose key this is, if it is one and was not revoked."""
    parsed = parse(text)
    info = await store.document.key(parsed[0]) if parsed else None
    if parsed is None or info is None:
        return None
    is_right = compare_digest(digest(parsed[1]), info.digest)
    if not is_right or info.revoked_at:
        return None
    return Principal(info.tenant, info.name, frozenset(info.scopes), info.key_id)


def living(keys: Sequence[KeyInfo]) -> list[KeyInfo]:
    return [key for key in keys if not key.revoked_at]
