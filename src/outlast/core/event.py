"""Records as readers see them.

Owns the form of an event: a record without its internal fields, with its text whole and its JSON
values as values. Owns cursors, which say how far a reader has come.
Refuses to know where records come from: `log/reader.py` reads them.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from outlast.core import record as r
from outlast.core.codec import CHECKSUM_DIGITS
from outlast.core.instant import date_of, rfc3339
from outlast.core.json_text import value_or_text
from outlast.core.message import ToolCall
from outlast.core.name import attempt_name, turn_and_step
from outlast.core.view import whole_parts
from outlast.errors import InvalidCursor

JSON_FIELDS = ("value", "args", "changed", "progress", "data", "input", "payload")
INSTANTS = frozenset(
    {
        "again_at",
        "deadline_at",
        "due_at",
        "expires_at",
        "next_at",
        "not_before",
        "retry_at",
        "since",
        "starts_at",
    }
)
"""Fields of records that are milliseconds since the epoch, and datetimes in an event's data."""
HIDDEN_FIELDS = ("token", "revoked", "outbox", "deltas_from", "streamed", "traceparent")
MOST_DIGITS = 16
CURSOR_TEXT = rf"^[0-9]{{1,{MOST_DIGITS}}}(-[0-9a-f]{{{CHECKSUM_DIGITS}}})?$"
LONGEST_SHOWN = 50
_cursor = re.compile(CURSOR_TEXT)


class Cursor(NamedTuple):
    """A reader's place in a log: an offset, and the checksum of the row that it stands on.

    The checksum shows a reader that records it has read are gone, as after a restored backup,
    however far the log has grown since. As text it is `17-5f2e9c01`. An offset alone is a cursor
    too, and shows only whether the log is long enough.
    """

    offset: int
    checksum: str = ""

    def __str__(self) -> str:
        return f"{self.offset}-{self.checksum}" if self.checksum else str(self.offset)


BEGINNING = Cursor(0)


def cursor_of(given: Any) -> Cursor:
    """Return a cursor from its text, or from an offset; refuse what can be neither."""
    if isinstance(given, str) and _cursor.fullmatch(given):
        offset, _, checksum = given.partition("-")
        return Cursor(int(offset), checksum)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 10**MOST_DIGITS:
        return Cursor(given)
    raise InvalidCursor(
        "a cursor has to be the `cursor` of an event, its offset, or 0 for all events,"
        f" not {shown(given)}"
    )


def shown(given: Any) -> str:
    """Return what was given for a cursor, on one line and not all of it if it is long."""
    if isinstance(given, int) and abs(given) >= 10**MOST_DIGITS:
        return "so large a number"
    text = ascii(given)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


class Event(Struct, frozen=True, gc=False, kw_only=True):
    """One thing that happened in a session. `events(after=event.cursor)` continues after it.

    `session_id` is the event's session. With `events(children=True)`, `path` has the ids from the
    session that is read down to the event's own.
    """

    offset: int
    cursor: str = ""
    type: str
    at: datetime
    lane: str
    data: Mapping[str, Any]
    version: int
    turn: str = ""
    step: int = 0
    call_id: str = ""
    attempt_id: str = ""
    delivery_id: str = ""
    session_id: str = ""
    path: tuple[str, ...] = ()


Deltas = dict[tuple[str, int], dict[int, str]]
"""The text streamed so far, by call and attempt, then by part."""


def present(
    entry: r.Entry, deltas: Mapping[int, str], args: Mapping[str, str], before: str = ""
) -> Event:
    """Return an entry as an event; `deltas` and `args` are the texts that it refers to.

    `before` is what earlier attempts at an answer had said, from where it goes on.
    """
    record = entry.record
    data = plain_data(record)
    # Every reader gets the whole answer here, also one that saw none of the deltas.
    if isinstance(record, r.MessageCompleted) and (record.streamed or before):
        data["parts"] = msgspec.to_builtins(whole_parts(record, deltas, before))
    if isinstance(record, r.ToolRequested):
        data["args"] = value_or_text(args.get(record.call_id, "{}"))
    call_id = data.pop("call_id", "")
    attempt = data.pop("attempt", 0)
    turn, step = data.pop("turn", ""), data.pop("step", 0)
    if call_id:
        turn, step = turn_and_step(call_id)
    return Event(
        offset=entry.offset,
        cursor=str(Cursor(entry.offset, entry.checksum)),
        type=type_of(record),
        at=date_of(entry.at),
        lane=entry.lane,
        data=data,
        version=entry.version,
        turn=turn,
        step=step,
        call_id=call_id,
        attempt_id=attempt_name(call_id, attempt) if attempt else "",
        delivery_id=data.pop("delivery_id", ""),
    )


LEFT_OUT_IF_EMPTY = ("turn", "step", "call_id", "attempt_id", "delivery_id")


def encode(event: Event) -> bytes:
    """Return an event as JSON text without a line break, as streams and webhooks have it."""
    fields: dict[str, Any] = {
        "offset": event.offset,
        "type": event.type,
        "at": rfc3339(event.at),
        "lane": event.lane,
        "data": wire_data(event.data),
        "version": event.version,
        "cursor": event.cursor,
    }
    for name in LEFT_OUT_IF_EMPTY:
        if value := getattr(event, name):
            fields[name] = value
    return msgspec.json.encode(fields)


def wire_data(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event's data with its instants as RFC 3339 has them."""
    if found := INSTANTS & data.keys():
        return {**data, **{name: rfc3339(data[name]) for name in found}}
    return data


ALWAYS_TOLD = frozenset(
    {
        r.TurnCompleted,
        r.TurnFailed,
        r.TurnCancelled,
        r.RequestOpened,
        r.AuthorizationRequired,
        r.SessionCompleted,
        r.SessionFailed,
        r.SessionEnded,
    }
)
"""Records at which the session's outbox cursors are looked at, whatever the lane knows of them.

A session may be anchored by another of its lanes, of which this one's owner does not hear.
"""


def has_to_tell(records: Sequence[r.AnyRecord], known: frozenset[str]) -> bool:
    """Say whether there may be something to tell, where types of records are `known` to be told."""
    if not ALWAYS_TOLD.isdisjoint(map(type, records)):
        return True
    return bool(known) and any(type_of(record) in known for record in records)


def type_of(record: r.AnyRecord) -> str:
    return str(type(record).__struct_config__.tag)


def plain_data(record: r.AnyRecord) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(record)
    data.pop("type", None)
    # Tokens are secrets; the others are of use to the fold alone.
    for name in HIDDEN_FIELDS:
        data.pop(name, None)
    for name in JSON_FIELDS:
        if isinstance(data.get(name), str) and data[name]:
            data[name] = value_or_text(data[name])
    for name in INSTANTS & data.keys():
        data[name] = date_of(data[name])
    # Spans are seconds in all that is public, and milliseconds in records.
    if isinstance(data.get("spent"), int):
        data["spent"] /= 1000
    return data


def requested_args(record: r.MessageCompleted) -> dict[str, str]:
    return {part.call_id: part.args for part in record.parts if isinstance(part, ToolCall)}
