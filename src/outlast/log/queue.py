"""Reads and writes the settings of queues: documents that can be changed while all runs.

Owns their kind and their encoding. What the settings mean is in `core/queue.py`; those who wait
are told of a change by `session/queue.py`.
"""

import msgspec

from outlast.core.queue import QueueSettings
from outlast.store import Document, Store

KIND = "queue"
"""The kind of the documents that hold settings. They are the fleet's, not a tenant's."""

_decode = msgspec.json.Decoder(QueueSettings).decode


async def find_queue(store: Store, name: str) -> tuple[QueueSettings | None, int]:
    """Return the settings of a queue, and the version of its document; None and 0 for none."""
    found = await store.document.get(KIND, "", name)
    return (_decode(found.data), found.version) if found else (None, 0)


async def list_queues(store: Store) -> dict[str, QueueSettings]:
    """Return the settings of all queues by name."""
    return {found.name: _decode(found.data) for found in await store.document.scan(KIND)}


async def put_queue(store: Store, name: str, settings: QueueSettings, version: int) -> bool:
    """Write settings in the place of those of this version, 0 for none, if they still are that."""
    document = document_of(name, settings, version + 1)
    return await store.document.put(document, expected=version or None)


async def remove_queue(store: Store, name: str, settings: QueueSettings, version: int) -> bool:
    """Remove the settings of this version, if they still are that."""
    return await store.document.delete(document_of(name, settings, version))


def document_of(name: str, settings: QueueSettings, version: int) -> Document:
    data = msgspec.json.encode(settings)
    return Document(kind=KIND, tenant="", name=name, version=version, data=data)
