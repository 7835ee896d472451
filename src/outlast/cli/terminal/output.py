"""Output of the commands: Rich on a terminal, plain text in a pipe, JSON with --json.

Text from models, tools and users comes out with everything in it visible: of a terminal always, of
a pipe unless `--raw` was given, and JSON has escapes for it, which mean the same value.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.core.instant import date_of
from outlast.core.visible import visible, visible_line

BLANKS = re.compile(r"[ \t\r\n]+")

WHOLE = 40
"""Up to this length, what stands in a cell of a table is never folded: each id is shorter."""

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


_is_raw: ContextVar[bool] = ContextVar("outlast_raw_output", default=False)


@contextmanager
def raw_output(wanted: bool) -> Iterator[None]:
    """Have pipes get texts as they are for a while; a terminal never does."""
    token = _is_raw.set(wanted)
    try:
        yield
    finally:
        _is_raw.reset(token)


def shown(text: str) -> str:
    """Return a text as it is printed: with everything in it visible, unless it is wanted raw."""
    return text if is_raw() else visible(text)


def is_raw() -> bool:
    return _is_raw.get() and not is_terminal()


def flat(text: str) -> str:
    """Return a text on one line; not for what somebody approves, where each blank counts."""
    joined = BLANKS.sub(" ", text).strip()
    return joined if is_raw() else visible_line(joined)


def one_line(text: str, most: int = 100) -> str:
    """Return a text on one line, cut where it gets long."""
    line = flat(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def out(text: str, style: str = "") -> None:
    """Print a line."""
    if is_terminal():
        console().print(Text(shown(text), style=style), soft_wrap=True)
    else:
        print(shown(text))


def write(text: str, style: str = "") -> None:
    """Print a piece of a line at once."""
    if is_terminal():
        console().print(Text(shown(text), style=style), soft_wrap=True, end="")
    else:
        print(shown(text), end="")
    sys.stdout.flush()


def error_out(text: str, style: str = "") -> None:
    """Print a line for people, not for the pipe."""
    if sys.stderr.isatty():
        console(stderr=True).print(Text(visible(text), style=style), soft_wrap=True)
    else:
        print(visible(text), file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers, in columns; a row stays one, whatever is in its cells."""
    lines = [headers, *([visible_line(cell) for cell in row] for row in rows)]
    if is_terminal():
        print_grid(headers, lines[1:])
        return
    widths = widths_of(lines)
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def widths_of(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]


def print_grid(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal: texts are folded into it, ids and numbers are not.

    An id in two lines could not be copied, so a terminal that is too narrow wraps the whole line.
    """
    grid = Table(box=None, pad_edge=False, header_style="bold")
    needed = 0
    for header, width in zip(headers, widths_of([headers, *rows]), strict=True):
        is_text = width > WHOLE
        grid.add_column(header, overflow="fold", no_wrap=not is_text)
        needed += (WHOLE if is_text else width) + 2
    for row in rows:
        grid.add_row(*(Text(cell, style=STATUS_STYLES.get(cell, "")) for cell in row))
    screen = console()
    screen.width = max(screen.width, needed)
    screen.print(grid)


def fields(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair on a line; a value's further lines are set in."""
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        text = value.replace("\n", "\n" + " " * width)
        write(name.ljust(width), style="bold")
        out(text, style=STATUS_STYLES.get(value, ""))


def json_line(value: Any) -> str:
    """Return a value as JSON on one line, with escapes for all that cannot be seen."""
    try:
        return visible_line(msgspec.json.encode(value, enc_hook=str).decode())
    except UnicodeEncodeError:  # half a character, which only an error's text may hold
        return json.dumps(msgspec.to_builtins(value, enc_hook=str))


def json_out(value: Any) -> None:
    """Print one JSON value: indented for people, on one line for programs."""
    text = json_line(value)
    print(msgspec.json.format(text, indent=2) if is_terminal() else text, flush=True)


def moment(at: datetime | int) -> str:
    """Return an instant as people read it, in UTC, as the Z says."""
    at = at if isinstance(at, datetime) else date_of(at)
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
