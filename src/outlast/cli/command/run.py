"""`outlast run`: a run of a workflow, started here or on a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from outlast.app import Outlast
from outlast.cli.command.worker import LogFormat, LogLevel
from outlast.cli.terminal.event_line import event_line
from outlast.cli.terminal.loading import load_app
from outlast.cli.terminal.log_format import set_up_logging
from outlast.cli.terminal.option import AsJson, AsRaw, Principal, Timeout, person, span_of
from outlast.cli.terminal.output import error_out, json_line, json_out, out
from outlast.cli.terminal.run import command
from outlast.cli.terminal.run_backend import (
    AnyRun,
    RunPlace,
    ServerUrl,
    Token,
    check_local,
    note_no_workers,
    show_outcome,
)
from outlast.client import Client
from outlast.core.json_text import JsonRefused, parse_json
from outlast.core.tag import tags_of
from outlast.session.inbox import deadline_of


@command
async def run(
    place: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP", help="Where the app is: shop:app. With --url the workflow alone."
        ),
    ],
    workflow: Annotated[
        str | None, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="JSON",
            help="What it is given: JSON, @FILE, or - for the standard input.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print its events, then what it came to.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its output; print it.")] = False,
    timeout: Timeout = None,
    dispatch_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The same id again finds the same run: safe to repeat."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Begin after so long: 30s, 5m, 2h.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="It errors then: 2099-01-31T12:00:00Z.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A tag that it is found by; may be repeated.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="The queue that it stands in; or its workflow's own.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose it is.")] = None,
    principal: Principal = None,
    url: ServerUrl = None,
    token: Token = None,
    as_json: AsJson = False,
    raw: AsRaw = False,
) -> int:
    """Start a run of a workflow; it is there for good when this returns.

    With --wait or --follow this process works on it, too, until it has ended or needs a human. Both
    end with 1 if it errored or was cancelled, and with 3 if it goes on when --timeout is up. On
    Ctrl-C it goes on where workers are.

    Example: outlast run shop:app report --input @june.json --follow
    """
    app, name = places(place, workflow, url)
    stays = wait or follow
    if timeout is not None and not stays:
        raise typer.BadParameter("it is for --wait or --follow", param_hint="'--timeout'")
    check_local(url, tenant=tenant, principal=principal)
    value, longest = input_of(given), span_of(timeout)
    options: dict[str, Any] = {
        "dispatch_id": dispatch_id,
        "delay": span_of(delay, "--delay") or 0.0,
        "deadline": deadline_of(deadline),
        "tags": tags_of(tag),
        "queue": queue,
    }
    if url is None:
        options |= {"tenant": tenant or "default", "principal": person(principal)}
    async with opened(app, url, token, works=stays) as found:
        started: AnyRun = await found.run(name, value, **options)
        if not stays:
            await note_no_workers(found, as_json=as_json)
            show_started(started, as_json=as_json)
            return 0
        if not as_json:
            error_out(f"run {started.id}", "dim")
        try:
            async with asyncio.timeout(longest.total_seconds() if longest else None):
                if follow:
                    await show_events(started, as_json=as_json)
                result = await started.wait()
        except TimeoutError:
            result = await started.wait(timeout=0)
            return show_outcome(started.id, result, as_json=as_json, is_late=True)
        except asyncio.CancelledError:  # Ctrl-C
            error_out(f"{started.id} goes on; look at it with: outlast runs show {started.id}")
            raise
        return show_outcome(started.id, result, as_json=as_json)


def places(place: str, workflow: str | None, url: str | None) -> tuple[str, str]:
    """Return the app and the workflow; a server is named by --url, and has an app of its own."""
    if url is None and workflow is None:
        raise typer.BadParameter(
            "name an app and one of its workflows, as in: outlast run shop:app report"
        )
    if url is not None and workflow is not None:
        raise typer.BadParameter("a server has an app of its own: name the workflow alone")
    return (place, workflow) if workflow is not None else ("", place)


def input_of(text: str | None, option: str = "--input") -> Any:
    """Return the value that was given as JSON, in a file, or on the standard input."""
    hint = f"'{option}'"
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(
                f"{text[1:]} cannot be read: {error}", param_hint=hint
            ) from None
    try:
        return parse_json(text)
    except JsonRefused as error:
        raise typer.BadParameter(
            f"{error}; a text is written '\"june\"'", param_hint=hint
        ) from None


@asynccontextmanager
async def opened(
    app: str, url: str | None, token: str | None, *, works: bool
) -> AsyncIterator[RunPlace]:
    """Open the user's app, to work on the run or only to start it; or a client of a server."""
    if url is not None:
        async with Client(url, token) as client:
            yield client
        return
    own: Outlast = load_app(app)
    if works:
        set_up_logging(LogFormat.text, LogLevel.error)
    else:
        own.settings = None
    async with own:
        yield own


async def show_events(run: AnyRun, *, as_json: bool) -> None:
    async for event in run.events():
        if as_json:
            print(json_line(event), flush=True)
        else:
            out(event_line(event))


def show_started(run: AnyRun, *, as_json: bool) -> None:
    if as_json:
        json_out({"run_id": run.id, "duplicate": run.duplicate})
    elif run.duplicate:
        out(f"{run.id} was started before; nothing was started")
    else:
        out(f"started {run.id}")
