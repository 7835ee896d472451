"""The topic `document`: small documents with compare-and-set, beside the logs of sessions.

Keys to the server, sealed tokens, holds and schedules are documents. The store knows nothing of
what `data` means; typed access lives with its users: `server/key.py`,
`integration/connection/token_store.py`, `integration/connection/single_flight.py`,
`integration/schedule/state.py`.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Document(Struct, frozen=True, gc=False, kw_only=True):
    """A small document. `kind`, `tenant` and `name` are its key; no tenant: it is the fleet's.

    `version` is chosen by the writer. `due_at` is when its owner next acts on it, if it does;
    after `expires_at` it is as if it did not exist, and 0 is never.
    """

    kind: str
    tenant: str
    name: str
    version: int
    data: bytes
    due_at: int | None = None
    expires_at: int = 0


class DocumentStore(Protocol):
    """The documents of all kinds."""

    async def get(self, kind: str, tenant: str, name: str) -> Document | None:
        """Return a document, or None."""
        ...

    async def find(self, kind: str, name: str) -> Document | None:
        """Return the document of this name, whichever tenant's it is: for names that are ids."""
        ...

    async def scan(
        self, kind: str, *, tenant: str | None = None, prefix: str = ""
    ) -> Sequence[Document]:
        """List the documents of a kind whose names begin with `prefix`, by name."""
        ...

    async def put(
        self, document: Document, *, expected: int | None, lifetime: int | None = None
    ) -> bool:
        """Write a document if there is none, or in the place of the version `expected`.

        Returns whether it was written. With a `lifetime` it expires that many milliseconds from
        now by the store's own clock, whatever its `expires_at`.
        """
        ...

    async def delete(self, document: Document) -> bool:
        """Delete a document if it still has this version and data; return whether it had."""
        ...
