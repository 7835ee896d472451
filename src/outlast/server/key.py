"""Keys to the server: `outlast_<id>_<secret>`. The store has a document with a digest of each.

The secret has 192 random bits, so a plain digest of it gives nothing away.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.name import check_id
from outlast.errors import InvalidInput
from outlast.server.principal import SCOPES, Principal
from outlast.store import Document, Store

PREFIX = "outlast_"
LONGEST = 200
KIND = "key"


class KeyInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A key to the server: its tenant, its scopes, and a digest of its secret."""

    key_id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    digest: str
    created_at: int
    revoked_at: int = 0


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


async def add_key(store: Store, key: KeyInfo) -> None:
    """Keep a new key."""
    await store.document.put(to_document(key, 1), expected=None)


async def find_key(store: Store, key_id: str) -> KeyInfo | None:
    """Return a key, revoked or not. Its tenant is known only from what is found."""
    found = await store.document.find(KIND, key_id)
    return from_document(found) if found else None


async def list_keys(store: Store, tenant: str | None = None) -> list[KeyInfo]:
    """List keys, oldest first, the revoked ones too."""
    return [from_document(each) for each in await store.document.scan(KIND, tenant=tenant)]


async def revoke_key(store: Store, key_id: str, at: int) -> bool:
    """Revoke a key for good, and return whether there is one; its first revocation stands."""
    while found := await store.document.find(KIND, key_id):
        key = from_document(found)
        if key.revoked_at:
            return True
        revoked = to_document(replace(key, revoked_at=at), found.version + 1)
        if await store.document.put(revoked, expected=found.version):
            return True
    return False


def to_document(key: KeyInfo, version: int) -> Document:
    data = msgspec.json.encode(key)
    return Document(kind=KIND, tenant=key.tenant, name=key.key_id, version=version, data=data)


def from_document(document: Document) -> KeyInfo:
    return msgspec.json.decode(document.data, type=KeyInfo)


async def find_principal(store: Store, text: str) -> Principal | None:
    """Return the principal of a key, if it is one and was not revoked."""
    parsed = parse(text)
    info = await find_key(store, parsed[0]) if parsed else None
    if parsed is None or info is None:
        return None
    is_right = compare_digest(digest(parsed[1]), info.digest)
    if not is_right or info.revoked_at:
        return None
    return Principal(info.tenant, info.name, frozenset(info.scopes), info.key_id)


def living(keys: Sequence[KeyInfo]) -> list[KeyInfo]:
    return [key for key in keys if not key.revoked_at]
