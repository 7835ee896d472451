"""`outlast serve`: a process that only serves HTTP; workers do the work."""

import asyncio

from outlast.app import Outlast
from outlast.cli.command.worker import Format, Level, LogFormat, LogLevel
from outlast.cli.terminal.loading import keep_what_is_loaded, load_app
from outlast.cli.terminal.log_format import set_up_logging
from outlast.cli.terminal.option import AsJson
from outlast.cli.terminal.output import json_out, out
from outlast.cli.terminal.run import command
from outlast.cli.terminal.service import (
    AllowedHosts,
    AppName,
    CorsOrigins,
    Host,
    Port,
    RequireKey,
    SettingsName,
    heed_signals,
    load_server,
    server_settings,
    url_of,
)


@command
async def serve(
    app: AppName,
    host: Host = None,
    port: Port = None,
    settings: SettingsName = None,
    require_key: RequireKey = False,
    allowed_host: AllowedHosts = None,
    cors_origin: CorsOrigins = None,
    log_format: Format = LogFormat.text,
    log_level: Level = LogLevel.info,
    as_json: AsJson = False,
) -> int:
    """Serve an app over HTTP, on 127.0.0.1:8000 unless told otherwise; workers do the work.

    On any other address it starts only if there is a key: `outlast keys create --app`. SIGTERM
    and Ctrl-C end streams at a place where their readers can go on, then the server.

    Example: outlast serve shop:app --port 8080
    """
    set_up_logging(log_format, log_level)
    server = load_server()
    chosen = server_settings(
        settings,
        host=host,
        port=port,
        require_key=require_key,
        allowed_hosts=allowed_host,
        cors_origins=cors_origin,
    )
    opened = load_app(app)
    opened.settings = None
    stop = asyncio.Event()
    heed_signals(stop)
    async with opened:
        await server.check_closed(opened, chosen, app)
        with server.open_socket(chosen) as to:
            say = ServerInfo(opened, url_of(to), as_json=as_json)
            await server.listen(opened, chosen, to, stop, say.ready)
    say.stopped()
    return 0


class ServerInfo:
    """The line that a server prints when it listens."""

    def __init__(self, app: Outlast, url: str, *, as_json: bool) -> None:
        self._app = app
        self._url = url
        self._as_json = as_json

    def ready(self) -> None:
        keep_what_is_loaded()
        agents = list(self._app.agents)
        if self._as_json:
            json_out({"state": "ready", "url": self._url, "agents": agents})
        else:
            names = ", ".join(agents) or "none"
            out(f"serving at {self._url}: {self._app.store!r}, agents {names}")

    def stopped(self) -> None:
        if self._as_json:
            json_out({"state": "stopped", "url": self._url})
        else:
            out("stopped")
