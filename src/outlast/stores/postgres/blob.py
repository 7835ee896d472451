"""Large values on their way: which they are, and where in the bytes of a group."""

from __future__ import annotations

from msgspec import Struct

from outlast.core.codec import Packed, Packer
from outlast.stores.postgres.writer import GroupBuffer


class BlobPart(Struct):
    """A value by the hash of its content, and which part of the group's bytes it is."""

    hash: str
    start: int
    size: int


def add_blobs(packed: Packed, packer: Packer, buffer: GroupBuffer) -> list[BlobPart]:
    """Lay the large values of an entry into a group's bytes."""
    return [
        BlobPart(name, *buffer.add(packer.squeeze(value))) for name, value in packed.blobs.items()
    ]
