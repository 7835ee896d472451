"""What is kept sealed, and holds on names by which one at a time sees to something."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class StoredSecret(Struct, frozen=True, gc=False, kw_only=True):
    """Something sealed that only its owner can open; `expires_at` 0: it stays."""

    tenant: str
    name: str
    data: bytes
    version: int
    expires_at: int = 0


class SecretStore(Protocol):
    """Secrets by tenant and name, and who holds a name."""

    async def keep_secret(self, secret: StoredSecret, *, expected: int | None) -> bool:
        """Keep a secret if there is none yet, or in the place of the version `expected`.

        Says whether it was kept. One that has expired is as if it were not there.
        """
        ...

    async def secret(self, tenant: str, name: str) -> StoredSecret | None:
        """Return a secret as it was kept."""
        ...

    async def drop_secret(self, tenant: str, name: str) -> bool:
        """Forget a secret, and say whether there was one."""
        ...

    async def hold(self, name: str, holder: str, length: int) -> bool:
        """Take hold of a name for `length` milliseconds, unless another has it; say whether.

        Who has it already has it for that much longer.
        """
        ...

    async def let_go(self, name: str, holder: str) -> None:
        """Give up the hold of a name, if it is this holder's."""
        ...
