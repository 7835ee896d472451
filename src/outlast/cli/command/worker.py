"""`outlast worker`: a process that does nothing but work."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from outlast.app import Outlast
from outlast.cli.terminal.loading import keep_what_is_loaded, load_app
from outlast.cli.terminal.log_format import set_up_logging
from outlast.cli.terminal.option import AsJson, one_of, span_of
from outlast.cli.terminal.output import json_out, out
from outlast.cli.terminal.run import command
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.errors import StoreError

KILLED_BY = 128
"""An exit code above this names the signal that ended the process."""


class LogFormat(StrEnum):
    text = "text"
    json = "json"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class PinName(StrEnum):
    turn = "turn"
    session = "session"
    none = "none"


Names = list[str] | None
Format = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        metavar="|".join(LogFormat),
        help="How log lines look.",
        parser=one_of(LogFormat),
    ),
]
Level = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        metavar="|".join(LogLevel),
        help="The least that is logged.",
        parser=one_of(LogLevel),
    ),
]

NoResume = Annotated[
    bool,
    typer.Option(
        "--no-resume",
        help="Leave what is unfinished: take only what something comes to from now on.",
    ),
]


@command
async def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many lanes at once.")
    ] = None,
    lanes: Annotated[
        Names,
        typer.Option(metavar="PATTERNS", help="Only lanes of these names: main,bulk-*"),
    ] = None,
    agents: Annotated[
        Names, typer.Option(metavar="NAMES", help="Only sessions of these agents: support,poet")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What to be called; made up where it is not given.")
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="How long to let calls end when draining: 30s, 5m."),
    ] = None,
    liveness_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to answer workers on other hosts."),
    ] = None,
    deployment: Annotated[
        str | None, typer.Option(metavar="NAME", help="What this version of the code is called.")
    ] = None,
    pin: Annotated[
        PinName | None,
        typer.Option(
            metavar="|".join(PinName),
            help="How long a session stays with the deployment that took it up.",
            parser=one_of(PinName),
        ),
    ] = None,
    no_resume: NoResume = False,
    log_format: Format = LogFormat.text,
    log_level: Level = LogLevel.info,
    as_json: AsJson = False,
) -> int:
    """Work on an app's sessions. Run as many as you like, on any host that reaches the store.

    SIGTERM, Ctrl-C and `outlast drain` from elsewhere drain it: it claims nothing more, running
    calls have --grace to end, and its lanes are handed back. A second signal stops it at once;
    other workers then take the lanes over.

    Example: outlast worker shop:app --concurrency 50 --agents support
    """
    set_up_logging(log_format, log_level)
    opened = load_app(app)
    opened.settings = settings(
        opened.settings or WorkerSettings(),
        concurrency=concurrency,
        lanes=listed(lanes),
        agents=listed(agents),
        name=name,
        grace=span_of(grace, "--grace"),
        liveness_address=liveness_address,
        resume=False if no_resume else None,
        deployment=deployment,
        pin=pin and pin.value,
    )
    shift = WorkerRun(opened, as_json=as_json)
    shift.heed_signals()
    if await shift.open():
        try:
            await shift.work()
        finally:
            await opened.close()
    shift.say("stopped", "stopped")
    return 0


def settings(given: WorkerSettings, **options: Any) -> WorkerSettings:
    """Return the app's own settings with the options that were given in their place."""
    return replace(given, **{name: value for name, value in options.items() if value is not None})


def listed(values: Names) -> tuple[str, ...] | None:
    """Return names that were given one by one, or several with commas between them."""
    parts = [part.strip() for value in values or () for part in value.split(",")]
    return tuple(part for part in parts if part) or None


class WorkerRun:
    """One worker's time at work, and what ends it."""

    def __init__(self, app: Outlast, *, as_json: bool) -> None:
        self._app = app
        self._as_json = as_json
        self._signalled = asyncio.Event()
        self._name = ""

    def heed_signals(self) -> None:
        """The first signal drains, a second stops at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)

    def _signal(self, number: signal.Signals) -> None:
        if self._signalled.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(KILLED_BY + number)
        self._signalled.set()

    async def open(self) -> bool:
        """Open the app; return False if a signal came first: the store may be away for long."""
        opening = asyncio.create_task(self._app.open())
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait([opening, signalled], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not opening.done():
            opening.cancel()
        await asyncio.wait([opening])
        if opening.cancelled():
            return False
        opening.result()
        return True

    async def work(self) -> None:
        """Work until a signal or `outlast drain` asks for the end, then drain."""
        worker = self._app.worker
        assert worker is not None
        self._name = worker.name
        keep_what_is_loaded()
        self._say_ready(worker)
        asked = asyncio.create_task(worker.until_draining())
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait([asked, signalled], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        self._say_draining(worker)
        worker.drain()
        with suppress(StoreError):  # only for others to see
            await self._app.store.work.drain(worker.name)
        await worker.until_stopped()
        asked.cancel()

    def _say_ready(self, worker: Worker) -> None:
        settings = self._app.settings
        assert settings is not None
        agents = list(settings.agents or self._app.agents)
        on = f" on lanes {', '.join(settings.lanes)}" if settings.lanes else ""
        self.say(
            "ready",
            f"worker {worker.name} is ready: {self._app.store!r}, agents"
            f" {', '.join(agents) or 'none'}{on},"
            f" {settings.concurrency} lanes at once"
            + (f", deployment {settings.deployment}" if settings.deployment else "")
            + (f"; it {worker.resumes}" if worker.resumes else "")
            + (f"; {worker.unserved}" if worker.unserved else ""),
            unserved=worker.unserved,
            unfinished=dict(worker.unfinished),
            store=repr(self._app.store),
            agents=agents,
            lanes=list(settings.lanes),
            concurrency=settings.concurrency,
            deployment=settings.deployment,
        )

    def _say_draining(self, worker: Worker) -> None:
        lanes = f"{worker.held} lane{'' if worker.held == 1 else 's'}"
        by = (
            "a second signal stops at once" if self._signalled.is_set() else "asked to from outside"
        )
        self.say("draining", f"draining {lanes}; {by}", held=worker.held)

    def say(self, what: str, text: str, **facts: object) -> None:
        if self._as_json:
            json_out({"worker": self._name, "state": what, **facts})
        else:
            out(text)
