"""`outlast chat`: a conversation with an agent, here and now."""

import asyncio
import signal
from typing import Annotated

import typer

from outlast.app import Outlast
from outlast.cli.command.worker import LogFormat, LogLevel
from outlast.cli.terminal.conversation import Conversation
from outlast.cli.terminal.loading import load_app
from outlast.cli.terminal.log_format import set_up_logging
from outlast.cli.terminal.option import AsJson, AsRaw, Principal, Timeout, person, span_of
from outlast.cli.terminal.run import INTERRUPTED, command
from outlast.core.tag import tags_of
from outlast.errors import InvalidInput, UnknownAgent


@command
async def chat(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app")],
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="AGENT", help="Whom to talk to; needed if the app has several agents."
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="SESSION", help="Go on with this session.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A tag that a new session is found by; may be repeated.",
            show_default=False,
        ),
    ] = None,
    timeout: Timeout = None,
    principal: Principal = None,
    as_json: AsJson = False,
    raw: AsRaw = False,
) -> int:
    """Talk to an agent. Continue a session that you left, or that crashed, with --session.

    /cancel or Ctrl-C stops the answer, /quit or Ctrl-D leaves. In a pipe each line is a message, or
    the answer to a request; --json prints every event on a line. A new session acts for
    --principal. If no answer comes within --timeout, this ends with 3 and says what the session
    waits for; the session goes on when you come back.

    Example: outlast chat shop:app support
    """
    longest = span_of(timeout)
    if tag and session is not None:
        raise typer.BadParameter("it is for a new session", param_hint="'--tag'")
    tags = tags_of(tag)
    opened = load_app(app)
    # A failed turn is shown anyway; log lines on top of it are for the app to set up.
    set_up_logging(LogFormat.text, LogLevel.error)
    # The session itself says which agent it is with.
    name = "" if session is not None and agent is None else agent_name(opened, agent)
    async with opened:
        talk = Conversation(
            opened, name, principal=person(principal), as_json=as_json, timeout=longest, tags=tags
        )
        if session is not None:
            await talk.resume(session, asked_for=agent)
        return await until_left(talk)


def agent_name(app: Outlast, name: str | None) -> str:
    if name is None and len(app.agents) == 1:
        return next(iter(app.agents))
    known = ", ".join(sorted(app.agents)) or "none"
    if name is None:
        raise InvalidInput(f"say which agent to talk to: {known}")
    if name not in app.agents:
        raise UnknownAgent(f"this app has no agent {name}; it has: {known}", agent=name)
    return name


async def until_left(talk: Conversation) -> int:
    """Hold the conversation; Ctrl-C goes to it, not to Python."""
    task = asyncio.create_task(talk.hold())

    def interrupt() -> None:
        if not talk.interrupt():
            task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        return INTERRUPTED
    finally:
        talk.end()
        loop.remove_signal_handler(signal.SIGINT)
