"""`outlast schedules`: what starts by itself, and when.

The store knows each schedule's line and when it is due; only to start one, and to tell which are
no longer in the code, the app is needed.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from outlast.app import Outlast
from outlast.cli.terminal.loading import load_app
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    StoreUrl,
    note_idleness,
    one_place,
    open_place,
)
from outlast.cli.terminal.output import json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.core.instant import date_of, date_or_none
from outlast.integration.schedule import state
from outlast.integration.schedule.cron import CronTimes
from outlast.integration.schedule.schedules import find, unknown
from outlast.integration.schedule.status import ScheduleStatus, as_armed

HEADERS = ("SCHEDULE", "STATUS", "CRON", "ZONE", "NEXT", "LAST", "OUTCOME", "SESSION")

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name.")]
MaybeName = Annotated[
    str | None, typer.Argument(metavar="SCHEDULE", help="The schedule's name; all by default.")
]
AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app")]
MaybeApp = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:APP",
        help="An app: tells what is gone from its code, or new.",
        callback=one_place,
    ),
]


@command
async def list_schedules(
    app: MaybeApp = None, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """List schedules: when they are next due, and what they last did.

    Instants are in UTC. LAST is the last one that came, and OUTCOME whether it fired, was skipped
    or was missed. With an app its own store is asked, and STATUS also tells what is `new`,
    `changed` or `gone` in its code.

    Example: outlast schedules list shop:app
    """
    if app:
        async with opened(app) as its:
            found: Sequence[ScheduleStatus] = await its.schedules.list()
    else:
        async with open_place(store) as place:
            found = [as_armed(row) for row in await state.list_schedules(place.store)]
    if as_json:
        json_out([asdict(each) for each in found])
    elif found:
        table(HEADERS, [row(each) for each in found])
    else:
        out("no schedules")


@command
async def next_instants(
    name: MaybeName = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many of each.")] = 5,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show when schedules are due next, in their own time zone and in UTC.

    Example: outlast schedules next digest --count 10
    """
    async with open_place(store) as place:
        stored = place.store
        rows = [await find(stored, name)] if name else await state.list_schedules(stored)
    found = [
        (each.name, timetable, list(islice(timetable.instants(each.next_at), count)))
        for each in rows
        if each.next_at is not None
        for timetable in [each.times]
    ]
    if as_json:
        json_out([{"name": each, "instants": [*map(date_of, dues)]} for each, _, dues in found])
        return
    for each, timetable, instants in found:
        for instant in instants:
            out(f"{each}  {local(timetable, instant)}  {moment(instant)}")
    if not found:
        out("no schedules")


@command
async def pause_schedule(
    name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """Let a schedule fire no more until it is resumed. Its sessions go on.

    Example: outlast schedules pause digest
    """
    async with open_place(store) as place:
        await place.schedules.pause(name)
    say(f"paused {name}", as_json=as_json, name=name, paused=True)


@command
async def resume_schedule(
    name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """Let a schedule go on with its next instant. What passed meanwhile is not made up for.

    Example: outlast schedules resume digest
    """
    async with open_place(store) as place:
        await place.schedules.resume(name)
        next_at = (await find(place.store, name)).next_at
    due = f"; it is due at {moment(next_at)}" if next_at is not None else ""
    say(
        f"resumed {name}{due}",
        as_json=as_json,
        name=name,
        paused=False,
        next_at=date_or_none(next_at),
    )


@command
async def trigger_schedule(
    app: AppName,
    name: Name,
    dispatch_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The same id again starts nothing: safe to repeat."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a session of a schedule now, besides its instants, even if it is paused.

    Example: outlast schedules trigger shop:app digest
    """
    async with opened(app) as its:
        session = await its.schedules.trigger(name, dispatch_id=dispatch_id)
        await note_idleness(its.store, as_json=as_json)
    again = session.receipt is not None and session.receipt.duplicate
    told = f"{session.id} was started before; nothing was started" if again else ""
    told = told or f"started {session.id}"
    say(told, as_json=as_json, name=name, session_id=session.id, duplicate=again)


@command
async def forget_schedule(
    name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """Forget a schedule that is gone from the code. One that is not is armed anew by its workers.

    Example: outlast schedules forget digest
    """
    async with open_place(store) as place:
        if not await state.forget_schedule(place.store, name):
            raise unknown(name)
    say(f"forgot {name}", as_json=as_json, name=name, forgotten=True)


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[Outlast]:
    """Open the user's app to ask and to start; no work is done here."""
    app = load_app(name)
    app.settings = None
    async with app:
        yield app


def say(text: str, *, as_json: bool, **facts: Any) -> None:
    if as_json:
        json_out(facts)
    else:
        out(text)


def row(standing: ScheduleStatus) -> tuple[str, ...]:
    return (
        standing.name,
        standing.status,
        standing.cron,
        standing.timezone,
        moment(standing.next_at) if standing.next_at and standing.status != "paused" else "-",
        moment(standing.last_at) if standing.last_at else "-",
        standing.last or "-",
        standing.session_id or "-",
    )


def local(timetable: CronTimes, instant: int) -> str:
    return f"{timetable.local(instant):%a %Y-%m-%d %H:%M %Z}"


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_schedules,
    "next": next_instants,
    "pause": pause_schedule,
    "resume": resume_schedule,
    "trigger": trigger_schedule,
    "forget": forget_schedule,
}
