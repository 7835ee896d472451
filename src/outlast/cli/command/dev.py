"""`outlast dev`: worker and server in one process, begun anew when the code changes."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from outlast.app import Outlast
from outlast.cli.command.worker import Format, Level, LogFormat, LogLevel, NoResume
from outlast.cli.terminal.loading import keep_what_is_loaded, load_app
from outlast.cli.terminal.log_format import set_up_logging
from outlast.cli.terminal.output import out
from outlast.cli.terminal.run import command
from outlast.cli.terminal.service import (
    AppName,
    Host,
    Port,
    SettingsName,
    heed_signals,
    load_server,
    server_settings,
    url_of,
)
from outlast.cli.terminal.supervisor import Supervisor
from outlast.engine.settings import WorkerSettings

# A terminal sends Ctrl-C to the supervisor and to the process that it keeps: that one leaves it to
# the supervisor, from before its first slow import on, and is sent SIGTERM by it.
SUPERVISED = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from outlast.cli import main
main()
"""


@command
async def dev(
    app: AppName,
    host: Host = None,
    port: Port = None,
    settings: SettingsName = None,
    no_reload: Annotated[
        bool, typer.Option("--no-reload", help="Stay as it is when files change.")
    ] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    no_resume: NoResume = False,
    log_format: Format = LogFormat.text,
    log_level: Level = LogLevel.warning,
) -> int:
    """Work on an app's sessions and serve it over HTTP, in one process, for development.

    When a file of Python below this directory changes, it stops gracefully and begins anew;
    sessions go on where they were.

    Example: outlast dev shop:app
    """
    if not no_reload:
        again = [sys.executable, "-c", SUPERVISED, *sys.argv[1:], "--no-reload", "--supervised"]
        return await Supervisor(again, Path.cwd()).run()
    set_up_logging(log_format, log_level)
    server = load_server()
    chosen = server_settings(settings, host=host, port=port)
    opened = load_app(app)
    opened.settings = opened.settings or WorkerSettings()
    if no_resume:
        opened.settings = replace(opened.settings, resume=False)
    stop = asyncio.Event()
    heed_signals(stop, interrupts=not supervised)
    with server.open_socket(chosen) as to:
        url = url_of(to)
        opened.public_url = opened.public_url or url
        async with opened:
            await server.check_closed(opened, chosen, app)
            await server.listen(opened, chosen, to, stop, lambda: welcome(opened, url))
    return 0


def welcome(app: Outlast, url: str) -> None:
    keep_what_is_loaded()
    out(f"working and serving: {app.store!r}, agents {', '.join(app.agents) or 'none'}")
    if app.worker and app.worker.resumes:
        out(f"  {app.worker.resumes}")
    out(f"  sessions  {url}/v1/sessions")
    out(f"  requests  {url}/v1/requests")
    out(f"  OpenAPI   {url}/v1/openapi.json")
    out(f"  metrics   {url}/metrics")
