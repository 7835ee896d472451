"""Rows of the log: their marks, the unpacking of a row with its blobs, and blobs on their way in.

A blob is a value too large for its row (functions/blob.sql). How records are packed is not known
here: see `core/codec.py`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from outlast.core.codec import (
    HAS_BLOBS,
    Packed,
    Packer,
    blob_names,
    checksum_of,
    size_of_row,
    size_of_value,
    version_of,
)
from outlast.core.record import Entry
from outlast.errors import StoreCorrupt
from outlast.stores.postgres.writer import GroupBuffer

# The marks of a row, by which a reader skips rows without reading them.
ARRIVAL = 1
CHANGES_SLICES = 2
STARTS_OR_ENDS = 4

LoadBlobs = Callable[[str, Sequence[str]], Awaitable[Mapping[str, bytes]]]


class BlobMissing(StoreCorrupt):
    """A blob is not there: the store is damaged, unless its session was just erased."""


class LogRow(NamedTuple):
    """A row of the log: one commit, or one arrival."""

    first_offset: int
    lane: str
    at: int
    data: bytes


class Unpacker:
    """Opens rows. Blobs are fetched all at once, before anything is unpacked."""

    def __init__(self, packer: Packer, load_blobs: LoadBlobs, load_heads: LoadBlobs) -> None:
        self._packer = packer
        self._load_blobs = load_blobs
        self._load_heads = load_heads

    async def entries(
        self, tenant: str, rows: Sequence[LogRow], after: int = 0, *, large: bool = True
    ) -> list[Entry]:
        """Return the records of rows in their places, those after an offset."""
        blobs = await self._fetch(tenant, rows) if large else None
        return [entry for row in rows for entry in self._unpack(row, blobs) if entry.offset > after]

    async def _fetch(self, tenant: str, rows: Sequence[LogRow]) -> Mapping[str, bytes]:
        names = {name for row in rows for name in self._blob_names(row)}
        # One question for all of them, and in one order.
        return await self._load_blobs(tenant, sorted(names)) if names else {}

    async def sizes(self, tenant: str, rows: Sequence[LogRow]) -> list[int]:
        """Return how large each row is when it is unpacked, blobs included."""
        names = [self._blob_names(row) for row in rows]
        wanted = sorted(set().union(*names))
        heads = await self._load_heads(tenant, wanted) if wanted else {}
        sizes = {name: size_of_value(head) for name, head in heads.items()}
        return [
            size_of_row(row.data) + sum(sizes.get(name, 0) for name in own)
            for row, own in zip(rows, names, strict=True)
        ]

    def _blob_names(self, row: LogRow) -> set[str]:
        has_some = version_of(row.data) and row.data[1] & HAS_BLOBS
        return blob_names(row.data, self._packer) if has_some else set()

    def _unpack(self, row: LogRow, blobs: Mapping[str, bytes] | None) -> Iterator[Entry]:
        """Yield the records of a row; large values are empty where no `blobs` were fetched."""

        def load(name: str) -> bytes:
            if blobs is None:
                return b""
            if name not in blobs:
                raise BlobMissing(f"the blob {name} is missing; restore the database from a backup")
            return self._packer.expand(blobs[name])

        version, checksum = version_of(row.data), checksum_of(row.at, row.data)
        records = self._packer.unpack(row.data, load)
        for offset, record in enumerate(records, row.first_offset):
            yield Entry(offset, row.at, row.lane, record, version, checksum)


class BlobPart(Struct):
    """A blob by the hash of its content, and its part of the group's bytes."""

    hash: str
    start: int
    size: int


def add_blobs(packed: Packed, packer: Packer, buffer: GroupBuffer) -> list[BlobPart]:
    """Add the blobs of an item to a group's bytes."""
    return [
        BlobPart(name, *buffer.add(packer.squeeze(value))) for name, value in packed.blobs.items()
    ]
