"""The command line: one file per command, and here their list.

A command reads its options and asks the app, the client or the store; what commands share (options,
output, errors, signals) is in `terminal/`. No other room imports this one.
"""

import gc
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Annotated

import typer

from outlast.cli.command import budgets, deployments, keys, queues, runs, schedules, webhooks
from outlast.cli.command.anchor import anchor
from outlast.cli.command.answer import answer
from outlast.cli.command.cancel import cancel
from outlast.cli.command.chat import chat
from outlast.cli.command.check import check
from outlast.cli.command.compact import compact
from outlast.cli.command.demo import demo
from outlast.cli.command.dev import dev
from outlast.cli.command.drain import drain
from outlast.cli.command.end import end
from outlast.cli.command.explain import explain
from outlast.cli.command.lanes import lanes
from outlast.cli.command.logs import logs
from outlast.cli.command.milestones import milestones
from outlast.cli.command.prompt import prompt
from outlast.cli.command.providers import providers
from outlast.cli.command.requests import requests
from outlast.cli.command.retry import retry
from outlast.cli.command.rewind import rewind
from outlast.cli.command.run import run
from outlast.cli.command.send import send
from outlast.cli.command.serve import serve
from outlast.cli.command.sessions import sessions
from outlast.cli.command.show import show
from outlast.cli.command.skills import skills
from outlast.cli.command.usage import usage
from outlast.cli.command.verify import verify
from outlast.cli.command.worker import worker
from outlast.cli.command.workers import workers
from outlast.cli.terminal.output import out
from outlast.core.name import is_storable

COMMANDS = (
    *(demo, dev, chat, run, serve, worker),
    *(sessions, show, explain, logs, prompt, milestones, skills),
    *(send, answer, requests, cancel, retry, end, compact, rewind, anchor),
    *(workers, lanes, drain, providers, usage, verify, check),
)
GROUPS: dict[str, tuple[str, Mapping[str, Callable[..., None]]]] = {
    "budgets": ("What may be used, and what of it is spent.", budgets.COMMANDS),
    "keys": ("Who may call the server.", keys.COMMANDS),
    "queues": ("Whose turns wait for a place, and how many have one.", queues.COMMANDS),
    "deployments": ("The named versions of the code.", deployments.COMMANDS),
    "runs": ("Runs of workflows.", runs.COMMANDS),
    "schedules": ("What starts by itself, and when.", schedules.COMMANDS),
    "webhooks": ("Where sessions post their events.", webhooks.COMMANDS),
}
"""Commands of two words: what the first is about, and the second ones."""
DEFAULTS: Mapping[str, Callable[..., None]] = {
    "deployments": deployments.list_by_default,
    "runs": runs.list_by_default,
}
"""What a first word does by itself."""


def make_app() -> typer.Typer:
    """Return the commands; help in boxes and colours is for terminals only."""
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    app = typer.Typer(
        name="outlast",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if is_terminal else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for command in COMMANDS:
        app.command(short_help=first_sentence(command))(command)
    for name, (about, commands) in GROUPS.items():
        default = DEFAULTS.get(name)
        group = typer.Typer(help=about, no_args_is_help=default is None)
        if default:
            group.callback(invoke_without_command=True)(default)
        for second, each in commands.items():
            group.command(second, short_help=first_sentence(each))(each)
        app.add_typer(group, name=name)
    return app


def first_sentence(command: Callable[..., None]) -> str:
    """Return what a list of commands says of one; a pipe would be given it cut short."""
    paragraph = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def print_version(wanted: bool) -> None:
    if wanted:
        out(f"outlast {version('outlast')}")
        raise typer.Exit


def options(
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=print_version, help="Print the version."),
    ] = False,
) -> None:
    """Durable execution for AI agents.

    Example: outlast sessions --status waiting
    """


def main() -> None:
    """Run the command line; the entry point of the executable."""
    # What was imported stays: to look through it once more, at the exit, takes longer than
    # most commands do.
    gc.freeze()
    for stream in (sys.stdout, sys.stderr):
        # The reader of a pipe waits for lines, not for a full buffer.
        stream.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]
    for argument in sys.argv[1:]:
        if not argument.isascii() and not is_storable(argument):
            print(f"{argument!r} is no text in UTF-8: say it in that encoding", file=sys.stderr)
            sys.exit(2)
    make_app()()
