"""`outlast deployments`: the named versions of the code, and what is left on each."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from outlast.app import Outlast
from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import error_out, json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.store import DeploymentInfo

HEADERS = ("DEPLOYMENT", "CURRENT FOR", "WORKERS", "TURNS", "OLDEST", "SESSIONS", "RETIRE")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A deployment.")]


@command
async def list_deployments(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the deployments that workers have named, the current one first.

    TURNS are open and end there while it has workers, the first since OLDEST; SESSIONS stay there.
    When RETIRE says "safe", nothing is left: drain its workers.

    Example: outlast deployments
    """
    async with open_place(store) as app:
        found = await app.deployments.list()
    if as_json:
        json_out([{**asdict(each), "can_be_retired": each.can_be_retired} for each in found])
    elif found:
        table(HEADERS, [row(each) for each in found])
    else:
        out("no deployments: workers have no name for their code (outlast worker --deployment)")


def list_by_default(
    context: typer.Context, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """The named versions of the code, and what is left on each; without a command, the list."""
    if context.invoked_subcommand is None:
        list_deployments(store=store, as_json=as_json)


@command
async def promote_deployment(
    name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """Make a deployment the current one of its agents: new turns begin there. A rollback, say.

    Example: outlast deployments promote 2026-11-17.2
    """
    async with open_place(store) as app:
        await app.deployments.promote(name)
        await note_absence(app, name, as_json=as_json)
    if as_json:
        json_out({"deployment": name, "promoted": True})
    else:
        out(f"{name} is current")


@command
async def retire_deployment(
    name: Name,
    to: Annotated[str, typer.Option(metavar="NAME", help="Where to move what is left.")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Move what is pinned to a deployment to another one: its turns go on with other code.

    Example: outlast deployments retire 2026-11-17.2 --to 2026-11-17.3
    """
    async with open_place(store) as app:
        moved = await app.deployments.retire(name, to=to)
        await note_absence(app, to, as_json=as_json)
    if as_json:
        json_out({"deployment": name, "to": to, "moved": moved})
    else:
        out(f"moved {moved} from {name} to {to}")


async def note_absence(app: Outlast, name: str, *, as_json: bool) -> None:
    """Warn if a deployment that was chosen has no worker: what is given to it waits for one."""
    found = {each.name: each for each in await app.deployments.list()}
    if not as_json and name in found and not found[name].workers:
        error_out(f"note: no worker of {name} is running now; what is given to it waits for one")


def row(info: DeploymentInfo) -> tuple[str, ...]:
    return (
        info.name,
        ", ".join(info.current) or "-",
        str(info.workers),
        str(info.turns),
        moment(info.oldest_at) if info.oldest_at else "-",
        str(info.sessions),
        "safe" if info.can_be_retired else "not yet",
    )


COMMANDS: dict[str, Callable[..., Any]] = {
    "list": list_deployments,
    "promote": promote_deployment,
    "retire": retire_deployment,
}
