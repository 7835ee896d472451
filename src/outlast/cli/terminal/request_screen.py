"""The live list of open requests on a terminal, and the line that answers them."""

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
from outlast.cli.terminal.output import clean, console, moment
from outlast.cli.terminal.prompt import ParsedAnswer, edit_arguments, parse_answer
from outlast.cli.terminal.request_list import RequestList, asks
from outlast.cli.terminal.run import INTERRUPTED
from outlast.errors import OutlastError
from outlast.session import Request

POLL = 1.0
PACE = 0.1
"""Seconds between two looks at the store, however much is heard."""
AROUND = 12
"""Lines of the screen that are not requests; each of those has two or more."""
HELP = "approve N | deny N [REASON] | edit N [JSON] | N ANSWER | q"


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
            self._live.update(Group(*self._rows()), refresh=True)

    def _rows(self) -> Iterator[Text]:
        most = max(1, (self._console.height - AROUND) // 2)
        yield line(f"{len(self._list.open)} open, answering as {self._by or 'nobody'}", "bold")
        for number, request in list(self._list.open.items())[:most]:
            yield line(f"{number:>3}  {request.agent} asks: {asks(request)}", "yellow")
            yield line(f"     {request.request_id} in {request.session_id}{until(request)}", "dim")
            if request.kind != "approval":
                yield line(f"     {choices(request)}", "dim")
        if len(self._list.open) > most:
            yield line(f"     and {len(self._list.open) - most} more", "dim")
        for number, text in self._list.notes.items():
            yield line(f"{number:>3}  {text}", "green")
        if not self._list.has_worker:
            yield line("no worker is running on this store; answers wait until one is", "dim")
        yield line(self._problem or HELP, "red" if self._problem else "dim")
        yield line(f"> {self._keyboard.typed}▏")

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
                self._problem = await self._answer(text) if text else ""
            except OutlastError as error:
                self._problem = error.message
        await self._look()
        self._draw()

    async def _answer(self, text: str) -> str:
        target, said = split(text)
        found = self._list.find(target)
        if found is None:
            return f"there is no open request {target or text}: {HELP}"
        number, request = found
        if said and "edit".startswith(said) and request.kind == "approval":
            answer = await self._edit(request)
        else:
            answer = parse_answer(request, said)
        if answer.problem:
            return f"{number}: {answer.problem}"
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


def line(text: str, style: str = "") -> Text:
    return Text(clean(text), style=style, overflow="fold")


def until(request: Request) -> str:
    return f", until {moment(request.expires_at)}" if request.expires_at else ""


def choices(request: Request) -> str:
    known = [option.id for option in request.options]
    return " | ".join([*known, "words"] if request.allow_freeform else known)


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
