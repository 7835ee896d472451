"""Snapshots of a session's state: what they hold, and their form as JSON.

A snapshot has all slices and what the session is known by. It has no history, and neither reducers
nor observers: those are code. Taking one is in `session/state.py`; going back to one is a record
(`core/slice.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from outlast.agents.state.slice_type import type_of
from outlast.agents.state.stored_value import Slice
from outlast.core.json_text import MAX_DEPTH, is_deep
from outlast.core.name import check_id
from outlast.core.record import SliceValue
from outlast.core.slice import RESERVED, KeptSlice, Slices, values_of
from outlast.errors import InvalidInput

T = TypeVar("T")

FORMAT = 1


class Snapshot(Struct, frozen=True, kw_only=True):
    """A session's state at one place in its log, to be kept anywhere and gone back to.

    `slices` are by their names, as they are stored. `created_at` is when the session was started,
    `taken_at` when this was taken, and `offset` the last record that it has seen. `children` are
    the sessions that this one has started.
    """

    session_id: str
    created_at: datetime
    taken_at: datetime
    offset: int
    tags: Mapping[str, str] = {}
    parent: str | None = None
    children: tuple[str, ...] = ()
    slices: Mapping[str, KeptSlice] = {}

    def query(self, kind: type[T]) -> Slice[T]:
        """Return its values of a type, even of one that was declared after it was taken."""
        kept_as = type_of(kind)
        return Slice(values_of(self.slices, kept_as.name), kept_as)

    def to_json(self) -> str:
        """Return it as JSON text, the values of its slices in it as they are."""
        return msgspec.json.encode(
            SnapshotDocument(
                format=FORMAT,
                session_id=self.session_id,
                created_at=self.created_at,
                taken_at=self.taken_at,
                offset=self.offset,
                tags=dict(self.tags),
                parent=self.parent,
                children=self.children,
                slices=documents_of(self.slices),
            )
        ).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """Return the snapshot that a JSON text holds. Raises InvalidInput if it holds none."""
        try:
            text = text.decode() if isinstance(text, bytes) else text
            found = msgspec.json.decode(text, type=SnapshotDocument)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"this is not a snapshot of a session: {error}") from error
        if is_deep(text):
            raise InvalidInput(f"a snapshot's values are nested at most {MAX_DEPTH} deep")
        if found.format != FORMAT:
            raise InvalidInput(
                f"this snapshot is of the format {found.format}, and {FORMAT} is known here: take"
                " it with this version, or read it with that one"
            )
        return cls(
            session_id=found.session_id,
            created_at=found.created_at,
            taken_at=found.taken_at,
            offset=found.offset,
            tags=found.tags,
            parent=found.parent,
            children=found.children,
            slices=kept_of(found.slices),
        )


class VersionedValue(Struct, frozen=True):
    """A value in a snapshot's JSON, with the version of its schema."""

    value: Raw
    version: int = 1


class SliceDocument(Struct, frozen=True, omit_defaults=True):
    """A slice in a snapshot's JSON."""

    values: tuple[VersionedValue, ...] = ()
    log: bool = False


class SnapshotDocument(Struct, frozen=True, kw_only=True):
    """A snapshot as it is written down."""

    format: int
    session_id: str
    created_at: datetime
    taken_at: datetime
    offset: int
    tags: dict[str, str] = {}
    parent: str | None = None
    children: tuple[str, ...] = ()
    slices: dict[str, SliceDocument] = {}


def documents_of(slices: Slices) -> dict[str, SliceDocument]:
    """Return slices as a snapshot's JSON has them."""
    return {
        name: SliceDocument(
            tuple(VersionedValue(Raw(each.text.encode()), each.version) for each in kept.values),
            kept.log,
        )
        for name, kept in slices.items()
    }


def kept_of(documents: Mapping[str, SliceDocument]) -> Mapping[str, KeptSlice]:
    """Return the slices of a snapshot's JSON."""
    return checked_slices(
        {
            name: KeptSlice(
                tuple(SliceValue(bytes(v.value).decode(), v.version) for v in found.values),
                found.log,
            )
            for name, found in documents.items()
        }
    )


def checked_slices(slices: Slices) -> Slices:
    """Return slices that come from outside, if their names are a user's.

    Outlast's own slices are refused: one of them holds what was approved in a session.
    """
    for name in slices:
        check_id("name of a slice", name)
        if name.startswith(RESERVED):
            raise InvalidInput(f"a snapshot has no slices that are Outlast's own: {name}")
    return slices


def checked_snapshot(snapshot: object) -> Snapshot:
    """Return a snapshot, if it is one."""
    if not isinstance(snapshot, Snapshot):
        raise InvalidInput(
            f"a session is rolled back to a Snapshot, not to {snapshot!r:.80}: take one by"
            " session.snapshot(), or read one by Snapshot.from_json(text)"
        )
    return snapshot


def own_slices(slices: Slices) -> dict[str, KeptSlice]:
    """Return the slices that are the user's, and have something: those that a snapshot has."""
    return {
        name: kept for name, kept in slices.items() if kept.values and not name.startswith(RESERVED)
    }
