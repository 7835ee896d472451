"""`outlast drain`: have a worker hand back its lanes and stop."""

import asyncio
from typing import Annotated

import typer

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, out
from outlast.cli.terminal.run import command
from outlast.store import Store

LOOK_EVERY = 0.2


@command
async def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's name: wrk_…")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has left.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Ask a worker to stop, wherever it runs.

    It claims nothing more, lets what runs end for its grace period, hands its lanes back and
    leaves. It hears of it at once on this host, elsewhere when it next renews its lease.

    Example: outlast drain wrk_01J9ZK --wait
    """
    async with open_place(store) as app:
        await app.workers.drain(worker)
        if wait:
            await until_gone(app.store, worker)
    if as_json:
        json_out({"worker": worker, "requested": "drain", "left": wait})
    else:
        out(f"{worker} has left" if wait else f"asked {worker} to drain")


async def until_gone(store: Store, worker: str) -> None:
    while any(info.worker == worker for info in await store.work.workers()):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY)
