"""`outlast drain`: have a worker hand back its lanes and stop."""

import asyncio
from datetime import timedelta
from typing import Annotated

import typer

from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    StoreUrl,
    Timeout,
    open_place,
    span_of,
)
from outlast.cli.terminal.output import error_out, json_out, out
from outlast.cli.terminal.run import TIME_IS_UP, command
from outlast.store import Store

LOOK_EVERY = 0.2


@command
async def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's name: wrk_…")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has left.")] = False,
    timeout: Timeout = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Ask a worker to stop, wherever it runs.

    It claims nothing more, lets what runs end for its grace period, hands its lanes back and
    leaves. It hears of it at once on this host, elsewhere when it next renews its lease. With
    --wait and --timeout this ends with 3 if it has not left in time.

    Example: outlast drain wrk_01J9ZK… --wait
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("it is for --wait", param_hint="'--timeout'")
    longest, has_left = span_of(timeout), False
    async with open_place(store) as app:
        await app.workers.drain(worker)
        if wait:
            has_left = await left_in_time(app.store, worker, longest)
    if as_json:
        json_out({"worker": worker, "requested": "drain", "left": has_left})
    else:
        out(f"{worker} has left" if has_left else f"asked {worker} to drain")
    if wait and not has_left and not as_json:
        error_out("the time is up: it has not left yet")
    return TIME_IS_UP if wait and not has_left else 0


async def left_in_time(store: Store, worker: str, timeout: timedelta | None) -> bool:
    limit = asyncio.timeout(timeout.total_seconds() if timeout is not None else None)
    try:
        async with limit:
            await until_gone(store, worker)
    except TimeoutError:
        if not limit.expired():
            raise
        return False
    return True


async def until_gone(store: Store, worker: str) -> None:
    while any(info.worker == worker for info in await store.work.workers()):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY)
