"""Reads and writes the breakers of providers: documents that all workers share.

Owns their kind, their encoding and how long they are kept. When one changes is the engine's
(`engine/provider_breaker.py`), how it changes `core/breaker.py`'s.
"""

import msgspec
from msgspec.structs import replace

from outlast.core.breaker import Breaker, Provider
from outlast.core.policy import HOUR, MINUTE
from outlast.store import Document, Store

KIND = "provider"
"""The kind of the documents that hold breakers. They are the fleet's, not a tenant's."""
KEPT_OPEN, KEPT_FAILING = 7 * 24 * HOUR, 10 * MINUTE
"""For so many milliseconds after its last change a breaker is kept: one whose sessions are gone, or
whose provider answers other workers, must not be listed for ever."""

_decode = msgspec.json.Decoder(Breaker).decode


async def find_breaker(store: Store, provider: Provider) -> tuple[Breaker | None, int]:
    """Return the breaker of a provider that does not answer, and the version of its document."""
    found = await store.document.get(KIND, "", provider.name)
    return (_decode(found.data), found.version) if found else (None, 0)


async def list_breakers(store: Store) -> list[Breaker]:
    """Return the breakers of all providers that do not answer, oldest first."""
    found = [_decode(document.data) for document in await store.document.scan(KIND)]
    return sorted(found, key=lambda breaker: breaker.since)


async def put_breaker(store: Store, breaker: Breaker, version: int) -> bool:
    """Write a breaker in the place of the one of this version, 0 for none, if it still is that."""
    document = document_of(breaker, version + 1)
    # Kept longer than it is paused, however long a provider wants to be left alone.
    pause = max(0, breaker.next_at - store.clock.earliest())
    kept = pause + (KEPT_OPEN if breaker.is_open else KEPT_FAILING)
    return await store.document.put(document, expected=version or None, lifetime=kept)


async def end_pause(store: Store, provider: Provider, *, if_blocked: bool = False) -> None:
    """Have the first in the line of a provider ask it now, if that is left alone for a while.

    Or only if that is for something that time alone does not mend: it may have changed meanwhile.
    """
    while True:
        now, (known, version) = store.clock.earliest(), await find_breaker(store, provider)
        if known is None or not known.is_paused(now) or (if_blocked and not known.blocked):
            return
        # By its version: a failure that came meanwhile has set another pause, and is looked at
        # again.
        if await put_breaker(store, replace(known, next_at=now), version):
            await store.limit.resize(provider.name, known.group)
            return


def document_of(breaker: Breaker, version: int) -> Document:
    return Document(
        kind=KIND,
        tenant="",
        name=breaker.provider.name,
        version=version,
        data=msgspec.json.encode(breaker),
    )
