"""Output of the commands: Rich on a terminal, plain text in a pipe, JSON with --json.

Text from models, tools and users never reaches a terminal with its control characters.
"""

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.core.instant import date_of

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

STATUS_STYLES = {
    "running": "green",
    "queued": "cyan",
    "waiting": "yellow",
    "sleeping": "blue",
    "failed": "red",
    "completed": "dim",
    "ended": "dim",
}


def is_terminal() -> bool:
    return sys.stdout.isatty()


def clean(text: str) -> str:
    """Return a text with its control characters made visible; lines and tabs stay."""
    return CONTROLS.sub(lambda found: repr(found.group())[1:-1], text)


def one_line(text: str, most: int = 100) -> str:
    """Return a text on one line, cut where it gets long."""
    flat = clean(" ".join(text.split()))
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def out(text: str, style: str = "") -> None:
    """Print a line."""
    if is_terminal():
        console().print(Text(clean(text), style=style), soft_wrap=True)
    else:
        print(text)


def write(text: str, style: str = "") -> None:
    """Print a piece of a line at once."""
    if is_terminal():
        console().print(Text(clean(text), style=style), soft_wrap=True, end="")
    else:
        print(text, end="")
    sys.stdout.flush()


def error_out(text: str, style: str = "") -> None:
    """Print a line for people, not for the pipe."""
    if sys.stderr.isatty():
        console(stderr=True).print(Text(clean(text), style=style), soft_wrap=True)
    else:
        print(text, file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers, in columns."""
    if is_terminal():
        console().print(rich_table(headers, rows))
        return
    lines = [headers, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headers))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        grid.add_column(header, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(clean(cell), style=STATUS_STYLES.get(cell, "")) for cell in row))
    return grid


def fields(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair on a line; a value's further lines are set in."""
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        text = value.replace("\n", "\n" + " " * width)
        write(name.ljust(width), style="bold")
        out(text, style=STATUS_STYLES.get(value, ""))


def json_line(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def json_out(value: Any) -> None:
    """Print one JSON value: indented for people, on one line for programs."""
    text = json_line(value)
    print(msgspec.json.format(text, indent=2) if is_terminal() else text, flush=True)


def moment(at: datetime | int) -> str:
    """Return an instant as people read it, in UTC, as the Z says."""
    at = at if isinstance(at, datetime) else date_of(at)
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
