"""What is posted: an event as streams have it, and where it comes from."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.core.event import Event, encode
from outlast.log.reader import Outcome, read_outcome
from outlast.store import OutboxCursor, Store


def letter_id(cursor: OutboxCursor, event: Event) -> str:
    """Return what a receiver knows an event by, however often it comes."""
    return f"{cursor.session_id}-{event.offset}"


async def letter(store: Store, cursor: OutboxCursor, event: Event, *, wraps_output: bool) -> bytes:
    """Return the body for an event; with a turn's end comes the answer, which is elsewhere."""
    body: dict[str, Any] = {
        "id": letter_id(cursor, event),
        "session_id": cursor.session_id,
        "agent": cursor.agent,
        "tenant": cursor.tenant,
        "event": msgspec.Raw(encode(event)),
    }
    if event.type == "turn.completed":
        found = await read_outcome(
            store, cursor.session_id, event.offset + 1, lambda turn: turn == event.turn
        )
        body["output"] = output_of(found, wraps_output) if found else None
    return msgspec.json.encode(body)


def output_of(outcome: Outcome, wraps_output: bool) -> Any:
    """Return an answer's text, or its value where the agent's answers are typed."""
    if outcome.output is None:
        return outcome.text
    value = msgspec.json.decode(outcome.output)
    return value["value"] if wraps_output else value
