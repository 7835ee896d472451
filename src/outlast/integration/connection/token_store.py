"""Grants and pending sign-ins as encrypted documents, each bound to its owner.

`encryption.py` encrypts; `token_refresh.py` says when a grant is refreshed.
"""

import msgspec
from msgspec import Struct

from outlast.core.name import storable_key
from outlast.integration.connection.connection import Connection
from outlast.integration.connection.encryption import SecretBox
from outlast.integration.connection.grant import Grant, PendingSignIn
from outlast.log_context import get_logger
from outlast.store import Document, Store

log = get_logger("outlast.integration.connection")

GRANT, PENDING = "grant", "pending sign-in"
"""The kinds of the documents."""

_encode = msgspec.json.Encoder().encode


class Account(Struct, frozen=True):
    """An account at a service: of a principal of a tenant, or of the tenant itself."""

    tenant: str
    connection: Connection
    principal: str = ""

    @property
    def name(self) -> str:
        """The name of its document within its tenant."""
        owner = f"user/{self.principal}" if self.connection.owner == "user" else "app"
        return storable_key(f"connection/{self.connection.name}/{owner}")


class StoredGrant(Struct, frozen=True):
    """The grant of an account, if there is one, and its version for compare-and-set."""

    grant: Grant | None = None
    version: int | None = None


class TokenStore:
    """The encrypted documents of a store."""

    def __init__(self, store: Store, box: SecretBox) -> None:
        self._store = store
        self._box = box

    async def grant(self, account: Account) -> StoredGrant:
        found = await self._store.document.get(GRANT, account.tenant, account.name)
        if found is None:
            return StoredGrant()
        plain = self._box.decrypt(found.data, grant_context(account, found.version))
        if plain is None:
            log.warning(
                "a token is encrypted with a key that this app does not have",
                extra={"connection": account.connection.name, "tenant": account.tenant},
            )
            return StoredGrant(None, found.version)
        grant = msgspec.json.decode(plain, type=Grant)
        return StoredGrant(grant if grant.access_token else None, found.version)

    async def put(self, account: Account, grant: Grant, expected: int | None) -> bool:
        """Replace the version `expected` by a grant; return whether that was still the version."""
        version = (expected or 0) + 1
        # Bound to the version as well: an older row that is put back in its place cannot be read.
        data = self._box.encrypt(_encode(grant), grant_context(account, version))
        kept = Document(
            kind=GRANT, tenant=account.tenant, name=account.name, version=version, data=data
        )
        return await self._store.document.put(kept, expected=expected)

    async def put_pending(
        self, tenant: str, request_id: str, pending: PendingSignIn, expires_at: int
    ) -> None:
        data = self._box.encrypt(_encode(pending), pending_context(tenant, request_id))
        kept = Document(
            kind=PENDING,
            tenant=tenant,
            name=request_id,
            version=1,
            data=data,
            expires_at=expires_at,
        )
        await self._store.document.put(kept, expected=None)

    async def pending(self, tenant: str, request_id: str) -> PendingSignIn | None:
        found = await self._store.document.get(PENDING, tenant, request_id)
        if found is None:
            return None
        plain = self._box.decrypt(found.data, pending_context(tenant, request_id))
        return msgspec.json.decode(plain, type=PendingSignIn) if plain is not None else None

    async def drop_pending(self, tenant: str, request_id: str) -> None:
        if found := await self._store.document.get(PENDING, tenant, request_id):
            await self._store.document.delete(found)


def grant_context(account: Account, version: int) -> bytes:
    connection = account.connection
    return _encode(
        ["grant", account.tenant, connection.owner, account.principal, connection.name, version]
    )


def pending_context(tenant: str, request_id: str) -> bytes:
    return _encode(["pending", tenant, request_id])
