"""Typed pieces of a session's state, folded from `state.changed`, shared by its lanes.

Values stay JSON text: only the code that asks for a slice knows its type (`agents/runtime`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.core.record import Entry, StateChanged

Slices = Mapping[str, tuple[str, ...]]
"""The values of each slice, oldest first. A `put` leaves one, an `append` adds one."""

EMPTY: Slices = {}

GRANTED = "outlast:granted"
"""The slice of what was approved for the whole session: the digests of calls."""


def change(slices: Slices, record: StateChanged) -> Slices:
    """Return the slices after one more change."""
    before = slices.get(record.slice, ())
    values = (*before, record.value) if record.op == "append" else (record.value,)
    return {**slices, record.slice: values}


def change_all(slices: Slices, entries: Iterable[Entry]) -> Slices:
    for entry in entries:
        if isinstance(entry.record, StateChanged):
            slices = change(slices, entry.record)
    return slices


def grant(digest: str) -> StateChanged:
    """Have a tool and its exact arguments approved in every lane of the session."""
    return StateChanged(slice=GRANTED, op="append", value=f'"{digest}"')


def is_granted(slices: Slices, digest: str) -> bool:
    return f'"{digest}"' in slices.get(GRANTED, ())
