"""A session's slices: typed state, folded from the log.

Owns how a record changes them, and how a change is written down so that it costs what has changed.
Knows nothing of types: a value is JSON text with the version of its schema. Reducers and
migrations are users' code, run by the worker (`agents/state`): records hold what they came to, so
that this fold is the same everywhere.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from outlast.core.record import Entry, SliceValue, StateChanged, StateRolledBack

StateRecord = StateChanged | StateRolledBack
STATE_RECORDS = (StateChanged, StateRolledBack)
"""The records that change slices."""


class KeptSlice(Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """The values of one slice, oldest first. A `log` is only added to."""

    values: tuple[SliceValue, ...] = ()
    log: bool = False


Slices = Mapping[str, KeptSlice]

EMPTY: Slices = {}
NO_VALUES = KeptSlice()

RESERVED = "outlast:"
"""Begins the names of slices that are no user's: no snapshot has them."""

GRANTED = f"{RESERVED}granted"
"""The slice of what was approved for the whole session: the digests of calls."""


def values_of(slices: Slices, name: str) -> tuple[SliceValue, ...]:
    """Return the values of a slice, oldest first."""
    return slices.get(name, NO_VALUES).values


def change(slices: Slices, record: StateRecord) -> Slices:
    """Return the slices after one more change."""
    if isinstance(record, StateRolledBack):
        kept = record.slices.items()
        return {**slices, **{name: KeptSlice(each, name in record.logs) for name, each in kept}}
    before = values_of(slices, record.slice)
    added = tuple(SliceValue(text, record.version) for text in record.values)
    match record.op:
        case "append":
            values = (*before, *added)
        case "splice":
            values = (*before[: record.at], *added, *before[record.at + record.drop :])
        case _:
            values = added
    return {**slices, record.slice: KeptSlice(values, record.log)}


def change_all(slices: Slices, entries: Iterable[Entry]) -> Slices:
    for entry in entries:
        if isinstance(entry.record, STATE_RECORDS):
            slices = change(slices, entry.record)
    return slices


def grant(digest: str) -> StateChanged:
    """Have a tool and its exact arguments approved in every lane of the session."""
    return StateChanged(slice=GRANTED, op="append", values=(f'"{digest}"',))


def is_granted(slices: Slices, digest: str) -> bool:
    return any(value.text == f'"{digest}"' for value in values_of(slices, GRANTED))


def rolled_back(slices: Slices, to: Slices, *, reset: bool = False) -> StateRolledBack:
    """Return the record after which all state is as it was in `to`; logs go on as they are.

    A log that has nothing yet is taken from `to`, which is of another session then: logs only grow.
    """
    names = (*slices, *(name for name in to if name not in slices))
    changed = {
        name: wanted
        for name in names
        if not name.startswith(RESERVED)
        and (wanted := values_of(to, name)) != (before := values_of(slices, name))
        and not (before and (is_log(slices, name) or is_log(to, name)))
    }
    logs = tuple(name for name in changed if is_log(to, name))
    return StateRolledBack(slices=changed, reset=reset, logs=logs)


def is_log(slices: Slices, name: str) -> bool:
    return slices.get(name, NO_VALUES).log


# How a change is written down


class Splice(Struct, frozen=True, gc=False):
    """From `at` on, `drop` values are replaced by others."""

    at: int
    drop: int
    values: tuple[str, ...] = ()


def splices(before: Sequence[str], after: Sequence[str]) -> list[Splice]:
    """Return what makes one list of values of another, with few values to be written.

    Each is applied to what those before it have made.
    """
    found = [*_around_the_middle(before, after)]
    # Both are made: which is smaller depends on what the user's function did to the list.
    moved = [*_dropped_and_added(before, after)]
    return moved if _size(moved) < _size(found) else found


def _size(splices: Iterable[Splice]) -> int:
    return sum(32 + sum(map(len, splice.values)) for splice in splices)


def _around_the_middle(before: Sequence[str], after: Sequence[str]) -> Iterator[Splice]:
    """Keep what both begin and end with: right where values stay in their places."""
    most = min(len(before), len(after))
    start = next((n for n in range(most) if before[n] != after[n]), most)
    most -= start
    end = next((n for n in range(most) if before[-1 - n] != after[-1 - n]), most)
    dropped, added = before[start : len(before) - end], after[start : len(after) - end]
    if dropped or added:
        yield Splice(start, len(dropped), tuple(added))


def _dropped_and_added(before: Sequence[str], after: Sequence[str]) -> Iterator[Splice]:
    """Drop some values and add others at the end: right where the newest goes to the end."""
    kept = 0
    for text in before:
        if kept < len(after) and text == after[kept]:
            kept += 1
        else:
            yield Splice(kept, 1)
    if kept < len(after):
        yield Splice(kept, 0, tuple(after[kept:]))
