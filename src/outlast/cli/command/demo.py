"""`outlast demo`: an agent survives being killed, again and again, before your eyes."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outlast.cli.demo.kill import MOST_KILLS, chance
from outlast.cli.demo.process import WorkerFailed
from outlast.cli.demo.run import DemoStuck, run_demo
from outlast.cli.terminal.output import error_out, json_out
from outlast.cli.terminal.run import command
from outlast.clock import Clock

SEEDS = 10_000
PIPE_WIDTH = 100


@command
async def demo(
    kills: Annotated[
        int, typer.Option(min=0, max=MOST_KILLS, help="How many workers to kill.")
    ] = 6,
    seed: Annotated[
        int | None, typer.Option(help="Kill at the same instants again.", show_default="by chance")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="A new or empty directory for its files.", show_default="temporary"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
) -> int:
    """Watch an agent survive SIGKILL: half a minute, no key, no network.

    An agent settles a shop's claims: it refunds, rings, posts letters and asks for approval.
    The worker processes that carry it are killed in mid-sentence, in mid-tool and between,
    while a ledger outside the store notes what was really paid and done. Exits with 1 if a
    promise was broken.

    Example: outlast demo --kills 10 --seed 7
    """
    if seed is None:
        seed = int(chance(Clock().token()) * SEEDS)
    try:
        report = await run_demo(prepared(directory), seed, kills, DemoScreen(as_json=as_json))
    except (DemoStuck, WorkerFailed) as error:
        error_out(f"error: {error}", "bold red")
        return 1
    except asyncio.CancelledError:
        error_out("\nstopped; no worker is left behind")
        raise
    if as_json:
        json_out(report.to_json())
    else:
        report.show(DemoScreen())
    return 0 if report.is_good else 1


class DemoScreen(Console):
    """The console of the demo; with --json it prints progress only to a terminal."""

    def __init__(self, *, as_json: bool = False) -> None:
        is_watched = not as_json or sys.stderr.isatty()
        super().__init__(stderr=as_json, quiet=not is_watched, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = PIPE_WIDTH

    def on_broken_pipe(self) -> None:
        """Raise where it is printed, so that the workers are stopped before this process ends."""
        raise BrokenPipeError


def prepared(directory: Path | None) -> Path:
    """Return a directory with nothing in it."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="outlast-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise typer.BadParameter(f"{directory} is not empty: name a new one", param_hint="--dir")
    return directory
