"""The live list of open requests on a terminal, and the line that answers them.

Only what was drawn whole can be answered: in the list, or page by page after `show N`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress

from rich.console import Group
from rich.live import Live
from rich.text import Text

from outlast.app import Outlast
from outlast.cli.terminal.keyboard import Keyboard
from outlast.cli.terminal.output import console
from outlast.cli.terminal.prompt import ParsedAnswer, edit_arguments, parse_answer
from outlast.cli.terminal.request_layout import (
    NARROWEST,
    RequestBlocks,
    ScreenSize,
    StyledLine,
    folded,
    listing,
    pages,
)
from outlast.cli.terminal.request_list import RequestList
from outlast.cli.terminal.run import INTERRUPTED
from outlast.core.visible import visible_line
from outlast.errors import OutlastError
from outlast.session import Request

POLL = 1.0
PACE = 0.1
"""Seconds between two looks at the store, however much is heard."""
HELP = "approve N | deny N [REASON] | edit N [JSON] | N ANSWER | show N | q"
HELP_OF_PAGES = "Enter: the next page | b: the page before | approve N, deny N, … as in the list"
LOWEST = 6
"""A screen of fewer lines has no room for a head, a request, help and what is typed."""
MOST_FOOT = 8
"""Lines of the screen below the requests, of which the list needs the rest."""


class PagedRequest:
    """A request that is read page by page, and which of its pages were drawn."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.page = 0
        self._pages: list[list[StyledLine]] = []
        self._drawn: set[int] = set()

    def turn_to(self, found: list[list[StyledLine]]) -> bool:
        """Draw the page that it is at; return whether all of them have been drawn."""
        if found != self._pages:  # the screen has another size now: they are other pages
            self._pages, self._drawn = found, set()
        self.page = min(self.page, len(found) - 1)
        self._drawn.add(self.page)
        return len(self._drawn) == len(found)

    def moved(self, by: int) -> PagedRequest | None:
        """Return this at another page, or nothing behind the last one."""
        self.page = max(0, self.page + by)
        return self if self.page < len(self._pages) else None


class RequestScreen:
    """Draws, and does what a line says."""

    def __init__(
        self, app: Outlast, *, tenant: str | None, agent: str | None, principal: str, limit: int
    ) -> None:
        self._app = app
        self._by = principal
        self._list = RequestList(app, tenant=tenant, agent=agent, limit=limit)
        self._problem = ""
        self._is_editing = False
        self._opened: PagedRequest | None = None
        self._blocks = RequestBlocks()
        self._whole: set[str] = set()  # ids of requests that were on the screen whole
        self._news = asyncio.Event()
        self._lock = asyncio.Lock()
        self._console = console()
        self._live = Live(console=self._console, auto_refresh=False, redirect_stderr=False)
        self._keyboard = Keyboard(self._typed)
        self._line = asyncio.Event()

    @property
    def is_editing(self) -> bool:
        return self._is_editing

    async def run(self) -> int:
        """Show the list until the user leaves."""
        stop = self._app.store.work.listen(lambda *_: self._news.set())
        await self._look()
        with self._keyboard, self._live:
            looking = asyncio.create_task(self._look_repeatedly())
            try:
                await self._obey(looking)
            finally:
                stop()
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
        return 0

    # Display

    async def _look_repeatedly(self) -> None:
        while True:
            self._news.clear()
            await self._look()
            self._draw()
            await asyncio.sleep(PACE)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._news.wait()

    async def _look(self) -> None:
        async with self._lock:
            try:
                await self._list.refresh()
            except OutlastError as error:
                self._problem = error.message

    def _draw(self) -> None:
        if not self._is_editing:
            self._live.update(Group(*map(as_text, self._rows())), refresh=True)

    def _rows(self) -> list[StyledLine]:
        """Return what is drawn, never more than the screen holds, and note what is whole in it."""
        if self._console.width < NARROWEST or self._console.height < LOWEST:
            return [StyledLine("too small", "red")]  # nothing could be shown whole
        foot = list(self._foot())
        # One line less than there are: what is on the last one may scroll.
        size = ScreenSize(self._console.width, self._console.height - len(foot) - 2)
        if self._opened and self._opened.number not in self._list.open:
            self._opened = None
        return [*(self._page(self._opened, size) if self._opened else self._all(size)), *foot]

    def _all(self, size: ScreenSize) -> list[StyledLine]:
        head = f"{len(self._list.open)} open, answering as {visible_line(self._by) or 'nobody'}"
        found = listing(self._list.open, size, self._blocks)
        self._whole.update(self._list.open[number].request_id for number in found.whole)
        return [StyledLine(head[: size.width], "bold"), *found.lines]

    def _page(self, opened: PagedRequest, size: ScreenSize) -> list[StyledLine]:
        request = self._list.open[opened.number]
        found = pages(opened.number, request, size, self._blocks)
        if opened.turn_to(found):
            self._whole.add(request.request_id)
        head = f"request {opened.number}, page {opened.page + 1} of {len(found)}"
        return [StyledLine(head, "bold"), *found[opened.page]]

    def _foot(self) -> Iterator[StyledLine]:
        """Yield what stands below the requests: news, a problem or help, and what is typed."""
        width = self._console.width
        help_text = HELP_OF_PAGES if self._opened else HELP
        said = StyledLine(self._problem or help_text, "red" if self._problem else "dim")
        below = [said, StyledLine(f"> {self._keyboard.typed}▏")]
        if not self._list.has_worker:
            hint = "no worker is running on this store; answers wait until one is"
            below.insert(0, StyledLine(hint, "dim"))
        if not self._opened:
            news = (f"{number:>3}  {text}" for number, text in self._list.notes.items())
            below = [*(StyledLine(text, "green") for text in news), *below]
        lines = [
            StyledLine(part, each.style)
            for each in below
            for part in folded(visible_line(each.text), width)
        ]
        return iter(lines[-min(MOST_FOOT, max(1, self._console.height // 2)) :])

    # Input

    def _typed(self) -> None:
        self._draw()
        self._line.set()

    async def _obey(self, looking: asyncio.Task[None]) -> None:
        while not self._keyboard.is_over:
            self._line.clear()
            while self._keyboard.lines:
                text = self._keyboard.lines.popleft()
                if text in ("q", "quit"):
                    return
                await self._do(text)
            if looking.done():
                looking.result()
            await self._line.wait()

    async def _do(self, text: str) -> None:
        """Carry out a typed line, and show what is wrong with it."""
        self._problem = ""
        async with self._lock:
            try:
                if self._opened and text in ("", "b"):
                    self._opened = self._opened.moved(-1 if text else 1)
                elif text:
                    self._problem = await self._answer(text)
            except OutlastError as error:
                self._problem = error.message
        await self._look()
        self._draw()

    async def _answer(self, text: str) -> str:
        word, _, rest = text.partition(" ")
        target, said = (rest.strip(), "") if word == "show" else split(text)
        found = self._list.find(target)
        if found is None:
            return f"there is no open request {target or text}: {HELP}"
        number, request = found
        if word == "show":
            self._opened = PagedRequest(number)
            return ""
        if said and "edit".startswith(said) and request.kind == "approval":
            answer = await self._edit(request)
        else:
            answer = parse_answer(request, said)
        if answer.problem:
            return f"{number}: {answer.problem}"
        if answer.option != "deny" and request.request_id not in self._whole:
            return f"{number} was not on the screen whole: `show {number}` first"
        await self._list.answer(number, answer, self._by)
        return ""

    async def _edit(self, request: Request) -> ParsedAnswer:
        """Leave the terminal to an editor for a while."""
        self._is_editing = True
        self._live.stop()
        self._keyboard.stop()
        try:
            found = await edit_arguments(request.args)
        finally:
            self._keyboard.start()
            self._live.start()
            self._is_editing = False
        return (
            ParsedAnswer(problem=found)
            if isinstance(found, str)
            else ParsedAnswer("approve", args=found)
        )


def split(text: str) -> tuple[str, str]:
    """Return which request a line is about and what it says to it: `deny 2 no`, or `2 no`."""
    first, _, rest = text.partition(" ")
    if first.isdecimal() or first.startswith("req_"):
        return first, rest.strip()
    target, _, more = rest.strip().partition(" ")
    return target, f"{first} {more}".strip()


def as_text(line: StyledLine) -> Text:
    return Text(line.text, style=line.style, no_wrap=True, overflow="crop")


async def until_left(screen: RequestScreen) -> int:
    """Show the screen; Ctrl-C leaves it, unless it is the editor's."""
    task = asyncio.create_task(screen.run())

    def interrupt() -> None:
        if not screen.is_editing:
            task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        return INTERRUPTED
    finally:
        loop.remove_signal_handler(signal.SIGINT)
