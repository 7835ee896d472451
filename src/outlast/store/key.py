"""Keys to the server: never the secret itself, only a digest of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class KeyInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A key to the server: whose it is, what it opens, and a digest of its secret."""

    key_id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    digest: str
    created_at: int
    revoked_at: int = 0


class Keys(Protocol):
    """The keys that were ever given out."""

    async def add_key(self, key: KeyInfo) -> None:
        """Keep a key."""
        ...

    async def key(self, key_id: str) -> KeyInfo | None:
        """Return a key, revoked or not."""
        ...

    async def keys(self, tenant: str | None = None) -> Sequence[KeyInfo]:
        """List keys, oldest first, the revoked ones too."""
        ...

    async def revoke_key(self, key_id: str, at: int) -> bool:
        """Revoke a key for good, and say whether there is one; its first revocation stands."""
        ...
