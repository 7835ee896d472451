"""One conversation: whose turn it is, what is shown, what is asked, and how it is left.

Owns the order of these at a terminal or a pipe. How events look is in `transcript.py`, how a
request is put in `prompt.py`, and lines are read in `line_reader.py`.
"""

import asyncio
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, get_args

from outlast.app import Outlast
from outlast.cli.terminal.follow import until_moved
from outlast.cli.terminal.line_reader import LineReader
from outlast.cli.terminal.output import error_out
from outlast.cli.terminal.prompt import parse_answer, question_lines
from outlast.cli.terminal.run import TIME_IS_UP
from outlast.cli.terminal.transcript import Transcript
from outlast.core.name import MAIN
from outlast.core.record import AnyRecord
from outlast.errors import Conflict, InvalidInput
from outlast.session import Request, Session
from outlast.session.handle import wait_or_outage
from outlast.session.waiting import code_of, sentence

INTERNAL = {kind.__struct_config__.tag for kind in get_args(AnyRecord) if kind.internal}
COMMANDS = "/cancel stops an answer, /quit leaves"
AT_WORK = "the session is still at work"
FOR_EVER = 1e9
A_COMMAND = re.compile(r"/[^\s/]*")


class SessionProgress:
    """Says that the session went on by itself."""


NEWS = SessionProgress()


class Conversation:
    """A chat between one agent and the user at the keyboard, or the lines of a pipe."""

    def __init__(
        self,
        app: Outlast,
        agent: str,
        *,
        principal: str,
        as_json: bool,
        timeout: timedelta | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._app = app
        self._agent = agent
        self._by = principal
        self._tags = tags
        self._session: Session[Any] | None = None
        self._cursor = 0
        self._shown = Transcript(as_json=as_json)
        self._lines = LineReader()
        self._leaving = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._is_busy = False
        self._is_stopping = False
        self._timeout = timeout
        self._is_late = False

    async def resume(self, session_id: str, asked_for: str | None) -> None:
        """Go on with a session: from the first message that has no answer, or from its end."""
        self._session = await self._app.session(session_id)
        info = await self._session.info()
        if asked_for not in (None, info.agent) or info.agent not in self._app.agents:
            raise InvalidInput(
                f"session {session_id} is with the agent {info.agent}", session=session_id
            )
        if info.over:
            raise InvalidInput(f"session {session_id} is {info.over}; start another")
        deliveries = await self._app.store.listing.deliveries(session_id)
        # Open by then, though our own worker may have settled it since.
        open_ones = (d for d in deliveries if d.state != "settled" or d.settled_offset > info.end)
        self._cursor = min((d.offset - 1 for d in open_ones), default=info.end)

    def interrupt(self) -> bool:
        """Stop the turn that runs; return False if there is none, or it is being stopped."""
        if not self._is_busy or self._is_stopping or self._interrupted.is_set():
            return False
        self._interrupted.set()
        return True

    def end(self) -> None:
        self._shown.end_line()

    async def hold(self) -> int:
        """Talk until there are no more lines; return 1 if the last turn failed, 3 if it is late."""
        self._lines.start()
        if self._session:
            error_out(f"session {self._session.id}", "dim")
            await self._listen()
        else:
            error_out(f"talking to {self._agent}; {COMMANDS}", "dim")
        while not (self._leaving.is_set() or self._shown.is_over):
            self._shown.prompt()
            said = await self._line_or_news()
            if said is None or said == "/quit":
                break
            if isinstance(said, str):
                await self._take(said)
            await self._listen()
        if self._is_late:
            return TIME_IS_UP
        return 1 if self._shown.has_failed else 0

    async def _take(self, line: str) -> None:
        """Say what a line says, or do what it commands."""
        if line == "/cancel":
            await self._cancel()
        elif not is_unknown_command(line):
            await self._say(line)

    async def _cancel(self) -> None:
        """Stop a turn that waits for a sign-in or for another person."""
        info = await self._session.info() if self._session else None
        lanes = [lane for lane in info.lanes if lane.lane == MAIN] if info else []
        if self._session and any(lane.turn or lane.queued for lane in lanes):
            await self._stop(self._session, "/cancel")
        else:
            error_out("nothing runs that could be cancelled", "dim")

    async def _say(self, text: str) -> None:
        if self._session is None:
            self._session = await self._app.start(
                self._agent, text, principal=self._by, tags=self._tags
            )
            receipt = self._session.receipt
            error_out(f"session {self._session.id}", "dim")
        else:
            receipt = await self._session.send(text, principal=self._by)
        assert receipt is not None
        self._shown.said_here(receipt.delivery_id)

    async def _line_or_news(self) -> str | SessionProgress | None:
        """Return the next line, None at the end, or NEWS if the session went on by itself."""
        if self._session is None:
            return await self._lines.next()
        line = asyncio.create_task(self._lines.next())
        moved = asyncio.create_task(
            until_moved(self._app.store, self._session.id, self._cursor), name="outlast news"
        )
        try:
            await asyncio.wait({line, moved}, return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                return line.result()
            moved.result()
            return NEWS
        finally:
            await stop_tasks(line, moved)

    # While the agent works

    async def _listen(self) -> None:
        """Show what happens until the session rests and has nothing more to ask."""
        while self._session and not self._leaving.is_set():
            await self._show_until_rest(self._session)
            requests = await self._session.requests()
            if self._leaving.is_set() or not requests:
                return
            await self._ask(self._session, requests[0])

    async def _show_until_rest(self, session: Session[Any]) -> None:
        self._is_busy, self._is_stopping = True, False
        showing = asyncio.create_task(self._show(session))
        stop = asyncio.create_task(self._stop_asked())
        children = asyncio.create_task(self._show_outages_of_children(session))
        late = asyncio.create_task(self._time_is_up())
        try:
            while not showing.done() and not self._leaving.is_set():
                await asyncio.wait({showing, stop, late}, return_when=asyncio.FIRST_COMPLETED)
                if late.done() and not showing.done():
                    await self._leave_late(session)
                elif stop.done():
                    await self._stop(session, stop.result())
                    stop = asyncio.create_task(self._stop_asked())
            if showing.done():
                showing.result()
        finally:
            self._is_busy = False
            await stop_tasks(showing, stop, children, late)

    async def _time_is_up(self) -> None:
        await asyncio.sleep(self._timeout.total_seconds() if self._timeout else FOR_EVER)

    async def _leave_late(self, session: Session[Any]) -> None:
        """Leave a session that has not answered in time, and say what it waits for."""
        self._is_late = True
        waiting = (await session.wait(timeout=0)).waiting_for
        self._shown.end_line()
        error_out("the time is up: " + (sentence(waiting, session.id) if waiting else AT_WORK))
        self._leave(session)

    async def _show_outages_of_children(self, session: Session[Any]) -> None:
        """Show that a child waits for its provider: the session's own events do not tell."""
        known = ""
        while (now := await wait_or_outage(session, None, None, known)).status == "running":
            outages = [now.waiting_for] if now.waiting_for and now.waiting_for.error else []
            if outages and outages[0].session_id != session.id:
                self._shown.line(f"({sentence(outages[0], session.id)})")
            known = code_of(outages)

    async def _show(self, session: Session[Any]) -> None:
        # With the internal ones: the cursor has to pass them, or they would look like news.
        async for event in session.events(self._cursor, internals=True):
            if event.type not in INTERNAL:
                self._shown.show(event)
            self._cursor = event.offset

    async def _stop_asked(self) -> str:
        """Return the command that was typed, or /cancel for Ctrl-C."""
        command = asyncio.create_task(self._lines.next_command())
        interrupted = asyncio.create_task(self._interrupted.wait())
        try:
            await asyncio.wait({command, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if command.done():
                return command.result()
            self._interrupted.clear()
            return "/cancel"
        finally:
            await stop_tasks(command, interrupted)

    async def _stop(self, session: Session[Any], command: str) -> None:
        if command == "/quit":
            self._leave(session)
            return
        self._is_stopping = True
        try:
            await session.cancel("cancelled in the chat", principal=self._by)
        except Conflict as error:
            self._shown.line(error.message)

    def _leave(self, session: Session[Any]) -> None:
        self._leaving.set()
        error_out(f"it goes on when you come back: --session {session.id}", "dim")

    # When the agent asks

    async def _ask(self, session: Session[Any], request: Request) -> None:
        for line in question_lines(request):
            self._shown.line(line, "yellow")
        while True:
            self._shown.prompt()
            said = await self._line_or_news()
            if isinstance(said, SessionProgress):
                return
            if said is None or said == "/quit":
                error_out(f"still open: {request.request_id}", "dim")
                self._leave(session)
                return
            if said == "/cancel":
                await self._stop(session, said)
                return
            if is_unknown_command(said):
                continue
            if await self._answer(session, request, said):
                return

    async def _answer(self, session: Session[Any], request: Request, line: str) -> bool:
        """Answer with what a line says; return False if it has to be asked again."""
        answer = parse_answer(request, line)
        try:
            if not answer.problem:
                await session.answer(
                    request.request_id,
                    answer.option,
                    text=answer.text,
                    args=answer.args,
                    principal=self._by,
                )
                return True
            problem = answer.problem
        except InvalidInput as error:
            problem = error.message
        except Conflict as error:  # another answer came first
            self._shown.line(error.message)
            return True
        self._shown.line(problem, "red")
        return False


def is_unknown_command(line: str) -> bool:
    """List the commands if a line looks like one; it is not sent then."""
    found = A_COMMAND.fullmatch(line) is not None
    if found:
        error_out(f"there is no {line}: {COMMANDS}")
    return found


async def stop_tasks(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
