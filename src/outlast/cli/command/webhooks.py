"""`outlast webhooks`: where events are posted, and which could not be delivered."""

from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

import typer
from msgspec.structs import replace

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, moment, one_line, out, table
from outlast.cli.terminal.run import command
from outlast.store import DeadLetter, OutboxCursor

CURSORS = ("SESSION", "NAME", "RECEIVER", "TOLD TO", "STATE", "NEXT", "TRIES", "ERROR")
LETTERS = ("DEAD SINCE", "SESSION", "NAME", "OFFSET", "TYPE", "ERROR")

OfSession = Annotated[str | None, typer.Option("--session", help="Only those of this session.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only those of this tenant.")]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]


@command
async def list_webhooks(
    session: OfSession = None,
    tenant: OfTenant = None,
    failing: Annotated[bool, typer.Option("--failing", help="Only those that fail now.")] = False,
    limit: Limit = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List where sessions post their events, the newest session first.

    TOLD TO is the offset up to which events were posted. RECEIVER is `-` if the app's code names
    it.

    Example: outlast webhooks list --failing
    """
    async with open_place(store) as app:
        found = await app.store.outbox.cursors(
            session, tenant=tenant, failing_only=failing, limit=limit
        )
    found = [replace(cursor, url=receiver(cursor), secret="") for cursor in found]
    if as_json:
        json_out(found)
    elif found:
        table(CURSORS, [cursor_row(cursor) for cursor in found])
    else:
        out("no webhooks")


@command
async def dead_webhooks(
    session: OfSession = None,
    tenant: OfTenant = None,
    limit: Limit = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List events that no receiver took in time, the last one first.

    Example: outlast webhooks dead --tenant acme
    """
    async with open_place(store) as app:
        found = await app.store.outbox.dead_letters(tenant=tenant, session_id=session, limit=limit)
    if as_json:
        json_out(found)
    elif found:
        table(LETTERS, [letter_row(letter) for letter in found])
    else:
        out("no dead webhooks")


def receiver(cursor: OutboxCursor) -> str:
    """Return whose place it is; the rest of a URL may be a secret."""
    parts = urlsplit(cursor.url)
    return f"{parts.scheme}://{parts.netloc}" if cursor.url else ""


def cursor_row(cursor: OutboxCursor) -> tuple[str, ...]:
    return (
        cursor.session_id,
        cursor.name,
        receiver(cursor) or "-",
        str(cursor.position),
        state(cursor),
        moment(cursor.due_at) if cursor.due_at else "-",
        str(cursor.tries),
        one_line(cursor.error) or "-",
    )


def state(cursor: OutboxCursor) -> str:
    if cursor.tries:
        return "failing"
    return "due" if cursor.due_at is not None else "told"


def letter_row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        moment(letter.at),
        letter.session_id,
        letter.cursor_name,
        str(letter.offset),
        letter.type,
        one_line(letter.error),
    )


COMMANDS: dict[str, Callable[..., None]] = {"list": list_webhooks, "dead": dead_webhooks}
