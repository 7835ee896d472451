"""`outlast check`: what a deployment of new code would meet in a store."""

from collections.abc import Sequence
from typing import Annotated

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.loading import load_app
from outlast.cli.terminal.option import AsJson, open_place
from outlast.cli.terminal.output import json_out, out
from outlast.cli.terminal.run import command
from outlast.session.code_check import CodeFinding, check_code


@command
async def check(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The new code: shop:app")],
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="What to compare it with; by default the app's store."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Compare new code with what is open in a store, before it is deployed.

    Names agents and tools that are gone, arguments that no longer fit, questions that the code
    does not ask any more, and state and output types that have changed, each with what mends it.
    Changes nothing. Exits with 1 if there is anything that is certain: names and questions that the
    code puts together while it runs cannot be checked.

    Example: outlast check shop:app --store postgresql://db/outlast
    """
    own = load_app(app)
    if store:
        async with open_place(store) as place:
            found = await check_code(place.store, own.agents, own.workflows)
    else:
        own.settings = None
        async with own:
            found = await own.check()
    if as_json:
        json_out({"findings": [asdict(each) for each in found]})
    else:
        show(found)
    return 1 if any(each.certain for each in found) else 0


def show(found: Sequence[CodeFinding]) -> None:
    for each in found:
        if each.certain:
            out(f"{each.text}: {each.remedy}", "yellow")
        else:
            out(f"cannot tell: {each.text}: if it does not, {each.remedy}")
        if each.sessions:
            more = each.count - len(each.sessions)
            out("  " + ", ".join(each.sessions) + (f" and {more} more" if more else ""))
    if not found:
        out("nothing that is open needs anything that this code does not have")
