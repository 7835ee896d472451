"""Reads and writes the breakers of providers: documents that all workers share.

Owns their kind and encoding. When one changes is the engine's (`engine/provider_breaker.py`), how
it changes `core/breaker.py`'s.
"""

import msgspec

from outlast.core.breaker import Breaker, Provider
from outlast.store import Document, Store

KIND = "provider"
"""The kind of the documents that hold breakers. They are the fleet's, not a tenant's."""

_decode = msgspec.json.Decoder(Breaker).decode


async def find_breaker(store: Store, provider: Provider) -> tuple[Breaker | None, int]:
    """Return the breaker of a provider that does not answer, and the version of its document."""
    found = await store.document.get(KIND, "", provider.name)
    return (_decode(found.data), found.version) if found else (None, 0)


async def list_breakers(store: Store) -> list[Breaker]:
    """Return the breakers of all providers that do not answer, oldest first."""
    found = [_decode(document.data) for document in await store.document.scan(KIND)]
    return sorted(found, key=lambda breaker: breaker.since)


def document_of(breaker: Breaker, version: int) -> Document:
    return Document(
        kind=KIND,
        tenant="",
        name=breaker.provider.name,
        version=version,
        data=msgspec.json.encode(breaker),
    )
