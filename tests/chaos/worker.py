"""A worker process: `python -m chaos.worker URL LEDGER LEASE` works until its input ends."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.agent import porter
from chaos.clock import SetClock
from chaos.flow import errands
from chaos.ledger import Ledger
from chaos.watched import WatchedStore
from outlast import Agent, Outlast, WorkerSettings, Workflow
from outlast.errors import StoreFull, StoreUnavailable
from outlast.stores.url import open_store

READY = "at work"
PAUSE = 0.2
DEATH_SIGNAL = 1
"""What Linux calls PR_SET_PDEATHSIG."""


class Losses(logging.Handler):
    """Puts into the ledger what no worker should ever have to say."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.ERROR)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._ledger.mark("lost", key=f"{record.getMessage()}: {error!r}")


Make = Callable[[Ledger, str], Agent[Any, Any]]
"""Makes the agent that a worker serves, for a ledger and the URL of its store."""
MakeFlows = Callable[[Ledger, str], list[Workflow[Any, Any]]]


def no_flows(ledger: Ledger, url: str) -> list[Workflow[Any, Any]]:
    return []


async def open_app(
    url: str, ledger: Ledger, settings: WorkerSettings, make: Make, flows: MakeFlows
) -> Outlast:
    """Begin to work; a database that is away or full comes back."""
    while True:
        clock = SetClock(ledger.path)
        store = WatchedStore(open_store(url, clock), ledger)
        served: list[Agent[Any, Any] | Workflow[Any, Any]] = [make(ledger, url)]
        served += flows(ledger, url)
        app = Outlast(served, store=store, worker=settings, clock=clock)
        try:
            await app.open()
        except (StoreUnavailable, StoreFull):
            await asyncio.sleep(PAUSE)
        else:
            return app


async def work(
    url: str, ledger: Ledger, settings: WorkerSettings, make: Make, flows: MakeFlows
) -> None:
    app = await open_app(url, ledger, settings, make, flows)
    try:
        print(READY, flush=True)  # noqa: T201 - the director waits for it
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    finally:
        await app.close()


def die_with_director() -> None:
    """Be killed when the director is gone: one that stands still would not see its input end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def serve_as_worker(arguments: list[str], make: Make, flows: MakeFlows = no_flows) -> None:
    """Work until the input ends."""
    die_with_director()
    url, path, lease = arguments
    ledger = Ledger(Path(path))
    logging.basicConfig(format="%(asctime)s %(process)d %(name)s %(message)s")
    logging.getLogger("outlast").addHandler(Losses(ledger))
    settings = WorkerSettings(lease=float(lease)) if float(lease) else WorkerSettings()
    asyncio.run(work(url, ledger, settings, make, flows))


MakeVersion = Callable[[str, Ledger], list[Agent[Any, Any]]]
"""Makes the agents of a version of the code, for a ledger."""


async def work_as(url: str, ledger: Ledger, settings: WorkerSettings, make: MakeVersion) -> None:
    agents = make(settings.deployment, ledger)
    async with Outlast(agents, store=url, worker=settings):
        print(READY, flush=True)  # noqa: T201 - the director waits for it
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def serve_deployment(arguments: list[str], make: MakeVersion) -> None:
    """Work as the deployment that is named last, until the input ends."""
    die_with_director()
    url, path, lease, version = arguments
    ledger = Ledger(Path(path))
    logging.basicConfig(format="%(asctime)s %(process)d %(name)s %(message)s")
    logging.getLogger("outlast").addHandler(Losses(ledger))
    settings = WorkerSettings(deployment=version, poll=0.2, rest=0.2, lease=float(lease) or 30.0)
    asyncio.run(work_as(url, ledger, settings, make))


if __name__ == "__main__":
    serve_as_worker(sys.argv[1:], porter, errands)
