"""`outlast providers`: the models that do not answer, and who waits for them."""

from typing import Annotated

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.session.provider import ProviderOutage

HEADERS = ("AGENT", "MODEL", "STATE", "SINCE", "NEXT TRY", "WAITING", "ERROR")


@command
async def providers(
    agent: Annotated[str | None, typer.Option(help="Only that of this agent.")] = None,
    try_now: Annotated[
        bool, typer.Option("--try-now", help="Have the first session in each line ask now.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List the providers that do not answer, those that are away for longest first.

    Sessions wait for them in line; WAITING counts those. While STATE is open, new calls wait too,
    and the first in line asks from time to time; recovering: it answers, and they go on in growing
    groups. A rejected key or an unknown model has to be mended: put it right where the workers
    run, then --try-now.

    Example: outlast providers --try-now
    """
    async with open_place(store) as app:
        tried = await app.providers.try_now(agent=agent) if try_now else 0
        found = await app.providers.list(agent=agent)
    if as_json:
        json_out([asdict(each) for each in found])
        return
    if found:
        table(HEADERS, [row(each) for each in found])
    else:
        out("all providers answer, as far as they were asked")
    if tried:
        out(f"asked {tried} to be tried now")


def row(outage: ProviderOutage) -> tuple[str, ...]:
    where = f" at {outage.address}" if outage.address else ""
    where += f" in {outage.deployment}" if outage.deployment else ""
    return (
        outage.agent,
        outage.model + where,
        f"{outage.state}, has to be mended" if outage.blocked else outage.state,
        moment(outage.since),
        moment(outage.next_try_at),
        str(outage.waiting),
        f"{outage.error.code}: {outage.error.message}",
    )
