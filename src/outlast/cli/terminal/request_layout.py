"""Open requests on a screen of a certain size: each is drawn whole or only named.

Knows no terminal and no store. A line that is too long is folded at the width, not at blanks, so
that every character of a call is somewhere, and nothing of it is lost where a line ends.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct
from rich.cells import get_character_cell_size

from outlast.cli.terminal.output import moment
from outlast.cli.terminal.prompt import option_text
from outlast.core.visible import unambiguous_name
from outlast.session import Request
from outlast.session.request import request_lines

INDENT = "     "
NARROWEST = 20
"""Columns that a screen needs to have."""


class ScreenSize(Struct, frozen=True):
    """How many columns and lines there are."""

    width: int
    height: int


class StyledLine(Struct, frozen=True):
    """One line of a screen."""

    text: str
    style: str = ""


class RequestListing(Struct, frozen=True):
    """Lines of a screen, and the numbers of those requests that are whole among them."""

    lines: list[StyledLine]
    whole: set[int]


class RequestBlocks:
    """Requests as lines, kept while they are open: each key that is typed draws them anew."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Request, list[StyledLine]]] = {}

    def find(self, number: int, request: Request, width: int) -> list[StyledLine]:
        known = self._known.get(number)
        if known is None or known[0] != width or known[1] is not request:
            known = self._known[number] = (width, request, block(number, request, width))
        return known[2]

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others."""
        for number in self._known.keys() - set(numbers):
            del self._known[number]


def listing(
    requests: Mapping[int, Request], size: ScreenSize, blocks: RequestBlocks
) -> RequestListing:
    """Return as many requests as fit, in their order; what does not fit whole is named only."""
    blocks.keep(requests)
    found = RequestListing([], set())
    waiting = len(requests)
    for number, request in requests.items():
        waiting -= 1
        lines = blocks.find(number, request, size.width)
        room = size.height - len(found.lines) - min(waiting, 1)  # one line is for the others
        if len(lines) > room:
            lines = named(number, request, size.width, len(lines))
        else:
            found.whole.add(number)
        if len(lines) > room:
            found.lines.append(StyledLine(f"{INDENT}and {waiting + 1} more", "dim"))
            break
        found.lines.extend(lines)
    return found


def pages(
    number: int, request: Request, size: ScreenSize, blocks: RequestBlocks
) -> list[list[StyledLine]]:
    """Return one request whole, on as many pages as it needs."""
    lines, height = blocks.find(number, request, size.width), max(1, size.height)
    return [lines[start : start + height] for start in range(0, len(lines), height)]


def block(number: int, request: Request, width: int) -> list[StyledLine]:
    """Return a request whole: who asks what, with which call, and how it can be answered."""
    first, *more = request_lines(request)
    asked = [f"{number:>3}  {unambiguous_name(request.agent)} asks: {first}"]
    asked += [INDENT + line for line in more]
    told = [f"{INDENT}{request.request_id} in {request.session_id}{until(request)}"]
    if request.kind != "approval":
        told.append(INDENT + " | ".join(choices(request)))
    return [
        *(StyledLine(line, "yellow") for text in asked for line in folded(text, width)),
        *(StyledLine(line, "dim") for text in told for line in folded(text, width)),
    ]


def named(number: int, request: Request, width: int, lines: int) -> list[StyledLine]:
    """Return only which request it is; of the call nothing is shown."""
    text = (
        f"{number:>3}  {request.request_id}: {lines} lines, too long for this list: show {number}"
    )
    return [StyledLine(line, "yellow") for line in folded(text, width)]


def choices(request: Request) -> list[str]:
    known = [option_text(option) for option in request.options]
    return [*known, "words"] if request.allow_freeform else known


def until(request: Request) -> str:
    return f", until {moment(request.expires_at)}" if request.expires_at else ""


def folded(text: str, width: int) -> Iterator[str]:
    """Yield a text in lines of a width; those after the first are set in."""
    line, used = "", 0
    for char in text:
        cells = get_character_cell_size(char)
        if used + cells > width:
            yield line
            line, used = INDENT, len(INDENT)
        line += char
        used += cells
    yield line
