"""Where the commands about runs look and write: a store, or a server somewhere else.

Owns what both have in common: a handle on a run, and how what it came to is printed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from outlast.app import Outlast
from outlast.cli.terminal.event_line import value_text
from outlast.cli.terminal.option import note_idleness, one_place, open_place, person
from outlast.cli.terminal.output import error_out, json_out, out
from outlast.cli.terminal.run import TIME_IS_UP
from outlast.client import Client, RemoteRun
from outlast.session.request import request_text
from outlast.session.run import ENDED, Run, RunResult
from outlast.session.waiting import in_words

RunPlace = Outlast | Client
AnyRun = Run[Any] | RemoteRun[Any]

ServerUrl = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="A server, in place of a store.", callback=one_place),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="KEY",
        envvar="OUTLAST_TOKEN",
        help="A key of the server, for --url.",
        show_default=False,
    ),
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id: run_…")]

ANONYMOUS = re.compile(r"step:(?:=([^=/]*)=([0-9a-f]{6})[0-9a-f]*)?")


@asynccontextmanager
async def open_runs(store: str, url: str | None, token: str | None) -> AsyncIterator[RunPlace]:
    """Open a store that exists, or a client of a server; no work is done here."""
    if url is None:
        async with open_place(store) as app:
            yield app
        return
    async with Client(url, token) as client:
        yield client


def check_local(url: str | None, **given: object) -> None:
    """Refuse options that are a store's alone beside a server: its key says these."""
    for name, value in given.items():
        if url is not None and value is not None:
            raise typer.BadParameter(
                "with --url the key says so: leave it away", param_hint=f"'--{name}'"
            )


def by_whom(run: AnyRun, principal: str | None) -> dict[str, Any]:
    """Return who does something with a run, where a server does not know it by itself."""
    return {} if isinstance(run, RemoteRun) else {"principal": person(principal)}


async def note_no_workers(place: RunPlace, *, as_json: bool) -> None:
    """Warn if no worker is there to take a run up; a server's are its own."""
    if isinstance(place, Outlast):
        await note_idleness(place.store, as_json=as_json)


def step_label(name: str) -> str:
    """Return what a step is known by, as people read it: title#1, or fetch(d9e1c8)#1."""
    return ANONYMOUS.sub(lambda found: f"{found[1]}({found[2]})" if found[1] else "", name)


def show_outcome(
    run_id: str, found: RunResult[Any], *, as_json: bool, is_late: bool = False
) -> int:
    """Print what a run has come to; return 1 if it came to nothing, 3 if the time was up."""
    if as_json:
        json_out({"run_id": run_id, **plain_outcome(found)})
    elif found.status == "completed":
        out(value_text(found.output))
    elif found.requests:
        for request in found.requests:
            out(f"waits for {request.request_id}: {request_text(request)}")
    elif found.status in ("errored", "cancelled"):
        error = f": {found.error.code}: {found.error.message}" if found.error else ""
        error_out(f"{found.status}{error}")
    else:
        waits = f", and waits for {in_words(found.waiting_for)}" if found.waiting_for else ""
        error_out(f"{'the time is up: ' if is_late else ''}{run_id} is {found.status}{waits}")
    if found.status in ("errored", "cancelled"):
        return 1
    return TIME_IS_UP if is_late and found.status not in ENDED else 0


def plain_outcome(found: RunResult[Any]) -> dict[str, Any]:
    return {
        "status": found.status,
        "output": found.output,
        "error": found.error,
        "requests": found.requests,
        "waiting_for": found.waiting_for,
    }
