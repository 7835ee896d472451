"""A session's events over HTTP, from a cursor on; reconnects when the connection breaks.

Owns the difference between a stream that ended and one that was cut: the end of a body alone is not
believed. How long failures are borne is in `retry.py`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from outlast.client.connection import Query, ServerConnection
from outlast.client.decode import event_of
from outlast.client.retry import FailedTry, RetryBudget
from outlast.core.event import Cursor, Event, cursor_of
from outlast.errors import InvalidServerAnswer, ServerUnavailable

LASTED = 5.0
"""A stream that was open for so many seconds before it was cut counts as one that succeeded."""

MOST_KNOWN = 10_000
"""Events of one stream that were given before; a server that sends more never comes to an end."""

Rest = Callable[[], Awaitable[int | None]]
"""Asks the server for the log's end, if its session is at rest."""


async def read_page(
    connection: ServerConnection, session_id: str, path: str, query: Query, after: Cursor
) -> AsyncGenerator[Event, None]:
    """Give every event after a cursor once, up to the end of the stream."""
    clock = connection.clock
    trouble = RetryBudget(clock, connection.stream_timeout)
    cursor = after
    while True:
        opened: float | None = None
        asked = {**query, "after": str(cursor)}
        try:
            async with connection.stream(path, asked) as lines:
                opened = clock.monotonic()
                known = 0
                async for line in lines:
                    trouble.over()
                    event = event_of(line, session_id) if line else None
                    # What was given is not given again, whatever the server repeats.
                    if event is not None and event.offset > cursor.offset:
                        cursor = cursor_of(event.cursor or event.offset)
                        yield event
                    elif event is not None and (known := known + 1) > MOST_KNOWN:
                        raise InvalidServerAnswer("a session's stream repeats its events for ever")
            return
        except FailedTry as caught:
            missed = caught
        if not missed.is_passing:
            raise missed.error
        # A stream that is cut once an hour by a proxy is no trouble that adds up.
        if opened is not None and clock.monotonic() - opened > LASTED:
            trouble.over()
        await trouble.bear(missed)


async def read_to_rest(
    connection: ServerConnection,
    session_id: str,
    path: str,
    query: Query,
    after: Cursor,
    rest: Rest,
) -> AsyncGenerator[Event, None]:
    """Give every event after a cursor once, until all was given and the session is at rest.

    The end of a stream alone is not believed: a proxy that speaks HTTP/1.0 to its server makes
    one of a server that died.
    """
    clock = connection.clock
    trouble = RetryBudget(clock, connection.stream_timeout)
    cursor, is_resting = after, False
    while True:
        before, began = cursor, clock.monotonic()
        async with aclosing(read_page(connection, session_id, path, query, cursor)) as events:
            async for event in events:
                cursor = cursor_of(event.cursor or event.offset)
                yield event
        # It was at rest before this look, and the look has brought nothing.
        if is_resting and cursor == before:
            return  # the log ends with records that are hidden from this reader
        end = await rest()
        if end is not None and end <= cursor.offset:
            return
        is_resting = end is not None
        if cursor.offset > before.offset or clock.monotonic() - began > LASTED:
            trouble.over()
        elif not is_resting:
            error = ServerUnavailable("a session's stream ends at once, and the session goes on")
            await trouble.bear(FailedTry(error))
