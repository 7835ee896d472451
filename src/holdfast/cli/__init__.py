"""The command line: one file per command, and here their list."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from holdfast.cli.answer import answer
from holdfast.cli.cancel import cancel
from holdfast.cli.chat import chat
from holdfast.cli.demo import demo
from holdfast.cli.drain import drain
from holdfast.cli.explain import explain
from holdfast.cli.lanes import lanes
from holdfast.cli.logs import logs
from holdfast.cli.output import out
from holdfast.cli.retry import retry
from holdfast.cli.send import send
from holdfast.cli.sessions import sessions
from holdfast.cli.show import show
from holdfast.cli.verify import verify
from holdfast.cli.worker import worker
from holdfast.cli.workers import workers

COMMANDS = (
    *(demo, chat, worker),
    *(sessions, show, explain, logs),
    *(send, answer, cancel, retry),
    *(workers, lanes, drain, verify),
)


def make_app() -> typer.Typer:
    """Return the commands; help in boxes and colours is for terminals only."""
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    app = typer.Typer(
        name="holdfast",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if is_terminal else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for command in COMMANDS:
        app.command()(command)
    return app


def print_version(wanted: bool) -> None:
    if wanted:
        out(f"holdfast {version('holdfast')}")
        raise typer.Exit


def options(
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=print_version, help="Print the version."),
    ] = False,
) -> None:
    """Durable execution for AI agents.

    Example: holdfast sessions --status waiting
    """


def main() -> None:
    """Run the command line; the entry point of the executable."""
    for stream in (sys.stdout, sys.stderr):
        # Whoever reads a pipe waits for lines, not for a buffer to be full.
        stream.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]
    make_app()()
