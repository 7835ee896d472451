"""`outlast usage`: what models were used for, and what that has cost."""

from datetime import date
from typing import Annotated, Any, cast, get_args

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, out, table
from outlast.cli.terminal.run import command
from outlast.core.record import UsageSum
from outlast.core.usage import dollars
from outlast.store import UsageKey, UsageLine

KEYS = get_args(UsageKey)
HEADERS = ("CALLS", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE", "COST")


def day_of(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no day such as 2026-01-31") from None


@command
async def usage(
    by: Annotated[str, typer.Option(help=f"One of: {', '.join(KEYS)}.")] = "agent",
    tenant: Annotated[str | None, typer.Option(help="Only that of this tenant.")] = None,
    session: Annotated[str | None, typer.Option(help="Only that of this session.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only that of this agent.")] = None,
    model: Annotated[str | None, typer.Option(help="Only that of this model.")] = None,
    principal: Annotated[
        str | None, typer.Option(help="Only what was used for this principal.")
    ] = None,
    since: Annotated[
        date | None,
        typer.Option(metavar="DAY", parser=day_of, help="The first day, in UTC: 2026-01-31."),
    ] = None,
    until: Annotated[
        date | None,
        typer.Option(metavar="DAY", parser=day_of, help="The last day, in UTC: 2026-01-31."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many lines at most.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Add up the usage of models and its cost, in the order of the keys.

    The last line adds up everything, also lines beyond the limit. Erased sessions are one line
    without a name. Usage of remote agents is included as their servers report it.

    Example: outlast usage --by day --agent support
    """
    if by not in KEYS:
        raise typer.BadParameter(f"{by!r} is none of: {', '.join(KEYS)}", param_hint="'--by'")
    wanted: dict[str, Any] = {
        "tenant": tenant,
        "session_id": session,
        "agent": agent,
        "model": model,
        "principal": principal,
        "since": since,
        "until": until,
    }
    async with open_place(store) as app:
        lines = await app.usage.by(cast("UsageKey", by), **wanted, limit=limit)
        total = await app.usage.total(**wanted)
    if as_json:
        json_out({"by": by, "lines": [plain(line) for line in lines], "total": plain(total)})
    elif lines:
        rows = [row(line.key or NAMELESS[by], line.total) for line in lines]
        table((by.upper(), *HEADERS), [*rows, row("total", total.total)])
    else:
        out("no usage")


NAMELESS = {
    "session": "(erased)",
    "model": "(remote)",
    "principal": "(nobody)",
    "agent": "-",
    "tenant": "-",
    "day": "-",
}


def row(name: str, used: UsageSum) -> tuple[str, ...]:
    counts = (
        used.model_calls,
        used.input_tokens,
        used.output_tokens,
        used.cache_read_tokens,
        used.cache_write_tokens,
    )
    return name, *(f"{count:,}" for count in counts), dollars(used)


def plain(line: UsageLine) -> dict[str, Any]:
    parts = {"own": line.own, "remote": line.remote, "total": line.total}
    return {"key": line.key, **{name: asdict(used) for name, used in parts.items()}}
