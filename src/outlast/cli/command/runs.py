"""`outlast runs`: which runs of workflows there are, what one has done, and how it is steered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import typer
from msgspec.structs import asdict

from outlast.cli.command.run import input_of, show_started
from outlast.cli.command.show import heading, show_request
from outlast.cli.terminal.event_line import value_text
from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, AsRaw, Principal, StoreUrl
from outlast.cli.terminal.output import fields, flat, json_out, moment, one_line, out, table
from outlast.cli.terminal.run import command
from outlast.cli.terminal.run_backend import (
    RunId,
    ServerUrl,
    Token,
    by_whom,
    check_local,
    note_no_workers,
    open_runs,
    step_label,
)
from outlast.core.tag import tag_text, tags_of
from outlast.session.run import ENDED, RunInfo, RunResult, RunStatus
from outlast.session.run_history import RunStep
from outlast.session.run_list import RUN_STATUSES, RunSummary
from outlast.session.waiting import in_words

Workflow = Annotated[str | None, typer.Option(help="Only those of this workflow.")]
StatusOf = Annotated[
    str | None, typer.Option("--status", help=f"Only those that are: {', '.join(RUN_STATUSES)}.")
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Only those that were started with this tag; may be repeated.",
        show_default=False,
    ),
]
Tenant = Annotated[str | None, typer.Option(help="Only those of this tenant.")]
RunCursor = Annotated[
    str | None,
    typer.Option("--cursor", metavar="RUN", help="Go on behind this run, the last of a page."),
]
StepCursor = Annotated[
    str, typer.Option("--cursor", help="Go on behind this step, the last of a page.")
]
Limit = Annotated[int, typer.Option(min=1, max=500, help="How many at most.")]
DispatchId = Annotated[
    str | None, typer.Option(metavar="ID", help="The same id again does nothing: safe to repeat.")
]


@command
async def list_runs(
    workflow: Workflow = None,
    status: StatusOf = None,
    tag: Tags = None,
    tenant: Tenant = None,
    cursor: RunCursor = None,
    limit: Limit = 50,
    store: StoreUrl = DEFAULT_STORE,
    url: ServerUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first. Where there may be more, the last line says how to go on.

    Example: outlast runs list --workflow report --status errored
    """
    if status is not None and status not in RUN_STATUSES:
        raise typer.BadParameter(
            f"{status!r} is none of: {', '.join(RUN_STATUSES)}", param_hint="'--status'"
        )
    check_local(url, tenant=tenant)
    options: dict[str, Any] = {} if url is not None else {"tenant": tenant}
    async with open_runs(store, url, token) as place:
        found: Sequence[RunSummary] = await place.runs(
            workflow,
            status=cast("RunStatus | None", status),
            tags=tags_of(tag),
            before=cursor,
            limit=limit,
            **options,
        )
    if as_json:
        json_out([asdict(each) for each in found])
    elif found:
        show_list(found)
        if len(found) == limit:
            out(f"for more: --cursor {found[-1].run_id}", "dim")
    else:
        out("no runs")


def list_by_default(
    context: typer.Context,
    workflow: Workflow = None,
    status: StatusOf = None,
    tag: Tags = None,
    tenant: Tenant = None,
    cursor: RunCursor = None,
    limit: Limit = 50,
    store: StoreUrl = DEFAULT_STORE,
    url: ServerUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Runs of workflows; without a command, their list, newest first.

    Example: outlast runs --workflow report --status errored
    """
    if context.invoked_subcommand is None:
        list_runs(
            workflow=workflow,
            status=status,
            tag=tag,
            tenant=tenant,
            cursor=cursor,
            limit=limit,
            store=store,
            url=url,
            token=token,
            as_json=as_json,
        )


@command
async def show_run(
    run: RunId,
    store: StoreUrl = DEFAULT_STORE,
    url: ServerUrl = None,
    token: Token = None,
    as_json: AsJson = False,
    raw: AsRaw = False,
    cursor: StepCursor = "",
    limit: Limit = 500,
) -> None:
    """Show a run: what it was given, how it stands, what it came to, and its steps.

    Example: outlast runs show run_01J9ZK…
    """
    async with open_runs(store, url, token) as place:
        handle = await place.get_run(run)
        info, steps = await handle.meta(), await handle.steps(after=cursor, limit=limit)
        now = await handle.wait(timeout=0)
    if as_json:
        more = {"requests": now.requests, "waiting_for": now.waiting_for}
        json_out({**asdict(info), **more, "steps": [asdict(step) for step in steps]})
        return
    show_all(info, steps, now)
    if len(steps) == limit:
        out(f"for more steps: --cursor {steps[-1].cursor}")


@command
async def cancel_run(
    run: RunId,
    reason: Annotated[str, typer.Option(help="Why; it stands in the log.")] = "",
    principal: Principal = None,
    store: StoreUrl = DEFAULT_STORE,
    url: ServerUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Stop a run. What it has done is undone as its body said; its log stays.

    Example: outlast runs cancel run_01J9ZK… --reason "no longer needed"
    """
    check_local(url, principal=principal)
    async with open_runs(store, url, token) as place:
        handle = await place.get_run(run)
        await handle.cancel(reason, **by_whom(handle, principal))
        await note_no_workers(place, as_json=as_json)
    say(f"asked {run} to stop", as_json=as_json, run_id=run, asked=True)


@command
async def retry_run(
    run: RunId,
    dispatch_id: DispatchId = None,
    principal: Principal = None,
    store: StoreUrl = DEFAULT_STORE,
    url: ServerUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Start a new run that tries one again which errored or was cancelled.

    What had succeeded is not done again.

    Example: outlast runs retry run_01J9ZK…
    """
    check_local(url, principal=principal)
    async with open_runs(store, url, token) as place:
        handle = await place.get_run(run)
        again = await handle.retry(dispatch_id=dispatch_id, **by_whom(handle, principal))
        await note_no_workers(place, as_json=as_json)
    show_started(again, as_json=as_json)


@command
async def send_event(
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.")],
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="What it carries: JSON, @FILE, or -.", show_default=False
        ),
    ] = None,
    dispatch_id: DispatchId = None,
    principal: Principal = None,
    store: StoreUrl = DEFAULT_STORE,
    url: ServerUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Send an event to a run; it is kept until the body waits for one of its name.

    Example: outlast runs send-event run_01J9ZK… paid --payload '{"cents": 500}'
    """
    check_local(url, principal=principal)
    value = input_of(payload, "--payload")
    async with open_runs(store, url, token) as place:
        handle = await place.get_run(run)
        by = by_whom(handle, principal)
        await handle.send_event(name, value, dispatch_id=dispatch_id, **by)
        await note_no_workers(place, as_json=as_json)
    say(f"sent {name} to {run}", as_json=as_json, run_id=run, event=name, sent=True)


def say(text: str, *, as_json: bool, **facts: Any) -> None:
    if as_json:
        json_out(facts)
    else:
        out(text)


def show_list(found: Sequence[RunSummary]) -> None:
    """Print a table, with whose the runs are where they are of several tenants."""
    several = len({each.tenant for each in found}) > 1
    headers = ("RUN", *(("TENANT",) if several else ()), "WORKFLOW", "STATUS", "STARTED", "CHANGED")
    table(headers, [row(each, with_tenant=several) for each in found])


def row(run: RunSummary, *, with_tenant: bool) -> tuple[str, ...]:
    whose = (run.tenant,) if with_tenant else ()
    when = (moment(run.created_at), moment(run.updated_at))
    return run.run_id, *whose, run.workflow, run.status, *when


def show_all(info: RunInfo, steps: Sequence[RunStep], now: RunResult[Any]) -> None:
    waiting = now.waiting_for if info.status not in ENDED else None
    pairs = [
        ("run", info.run_id),
        ("workflow", info.workflow),
        ("status", info.status),
        ("tags", flat(", ".join(tag_text(*tag) for tag in info.tags.items()))),
        ("retry of", info.retry_of),
        ("waits for", flat(in_words(waiting)) if waiting else ""),
        ("started", moment(info.created_at)),
        ("began", moment(info.started_at) if info.started_at else ""),
        ("ended", moment(info.ended_at) if info.ended_at else ""),
        ("input", value_text(info.input) if info.input is not None else ""),
        ("output", value_text(info.output) if info.output is not None else ""),
        ("error", f"{info.error.code}: {info.error.message}" if info.error else ""),
    ]
    fields([(name, value) for name, value in pairs if value])
    if now.requests:
        heading("open requests")
        for request in now.requests:
            show_request(request)
    if steps:
        heading("steps")
        table(("STEP", "STATUS", "ATTEMPT", "ENDED", "RESULT"), [step_row(each) for each in steps])


def step_row(step: RunStep) -> tuple[str, ...]:
    result = "" if step.value is None else one_line(value_text(step.value), 60)
    if step.error:
        result = one_line(f"{step.error.code}: {step.error.message}", 60)
    ended = moment(step.ended_at) if step.ended_at else "-"
    return step_label(step.name), step.status, str(step.attempt), ended, result


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_runs,
    "show": show_run,
    "cancel": cancel_run,
    "retry": retry_run,
    "send-event": send_event,
}
