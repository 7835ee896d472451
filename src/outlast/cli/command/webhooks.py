"""`outlast webhooks`: whom sessions tell of their events, and what could not be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

import typer
from msgspec.structs import replace

from outlast.cli.terminal.output import json_out, moment, one_line, out, table
from outlast.cli.terminal.run import command
from outlast.cli.terminal.store_url import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.store import DeadLetter, OutboxCursor

OUTLETS = ("SESSION", "NAME", "RECEIVER", "TOLD TO", "STATE", "NEXT", "TRIES", "ERROR")
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
    """List whom sessions tell of their events, those of the newest session first.

    TOLD TO is the offset up to which all was told. RECEIVER is `-` where the app's code names it.

    Example: outlast webhooks list --failing
    """
    async with open_place(store) as app:
        found = await app.store.outlets(session, tenant=tenant, failing_only=failing, limit=limit)
    found = [replace(outlet, url=receiver(outlet)) for outlet in found]
    if as_json:
        json_out(found)
    elif found:
        table(OUTLETS, [outlet_row(outlet) for outlet in found])
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
        found = await app.store.dead_letters(tenant=tenant, session_id=session, limit=limit)
    if as_json:
        json_out(found)
    elif found:
        table(LETTERS, [letter_row(letter) for letter in found])
    else:
        out("no dead webhooks")


def receiver(outlet: OutboxCursor) -> str:
    """Return whose place it is; the rest of a URL may be a secret."""
    parts = urlsplit(outlet.url)
    return f"{parts.scheme}://{parts.netloc}" if outlet.url else ""


def outlet_row(outlet: OutboxCursor) -> tuple[str, ...]:
    return (
        outlet.session_id,
        outlet.name,
        receiver(outlet) or "-",
        str(outlet.cursor),
        state(outlet),
        moment(outlet.due_at) if outlet.due_at else "-",
        str(outlet.tries),
        one_line(outlet.error) or "-",
    )


def state(outlet: OutboxCursor) -> str:
    if outlet.tries:
        return "failing"
    return "due" if outlet.due_at is not None else "told"


def letter_row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        moment(letter.at),
        letter.session_id,
        letter.outlet,
        str(letter.offset),
        letter.type,
        one_line(letter.error),
    )


COMMANDS: dict[str, Callable[..., None]] = {"list": list_webhooks, "dead": dead_webhooks}
