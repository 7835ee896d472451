"""Open requests with numbers that stay theirs, and what became of those that are gone.

Owns the list behind the screen of requests. Drawing it is `request_screen.py`'s affair, what one
request takes of a line `request_layout.py`'s.
"""

from msgspec import Struct

from outlast.app import Outlast
from outlast.cli.terminal.event_line import failure_text, value_text
from outlast.cli.terminal.output import one_line
from outlast.cli.terminal.prompt import ParsedAnswer
from outlast.core import record as r
from outlast.core.event import Cursor, Event
from outlast.errors import InvalidAnswer, UnknownSession
from outlast.log.reader import EntriesBefore, EventReader
from outlast.session import Request, request_of

MOST_NOTES = 6
MOST_READ = 2000
"""How many records back the log is searched for the answer's principal."""


class SentAnswer(Struct, frozen=True):
    """An answer of ours that is on its way."""

    request: Request
    said: str
    reader: EventReader


class RequestList:
    """Numbers the open requests. A number is never reused, so the wrong one is never approved."""

    def __init__(self, app: Outlast, *, tenant: str | None, agent: str | None, limit: int) -> None:
        self.open: dict[int, Request] = {}
        self.notes: dict[int, str] = {}
        self.has_worker = True
        self._app = app
        self._tenant = tenant
        self._agent = agent
        self._limit = limit
        self._last = 0
        self._sent: dict[int, SentAnswer] = {}

    async def refresh(self) -> None:
        """Look what is open now, and what became of what was."""
        found = await self._app.requests(tenant=self._tenant, agent=self._agent, limit=self._limit)
        self.has_worker = bool(await self._app.workers.list())
        there = {request.request_id for request in found}
        for number, request in list(self.open.items()):
            if request.request_id not in there:
                await self._is_gone(number, request)
        known = {request.request_id for request in self.open.values()}
        for request in found:
            if request.request_id not in known:
                self._last += 1
                self.open[self._last] = request
        for number, sent in list(self._sent.items()):
            await self._follow(number, sent)

    def find(self, name: str) -> tuple[int, Request] | None:
        """Return the open request with a number, or the one whose id begins like this."""
        if name.isdecimal():
            number = int(name)
            return (number, self.open[number]) if number in self.open else None
        found = [each for each in self.open.items() if each[1].request_id.startswith(name)]
        return found[0] if name.startswith("req_") and len(found) == 1 else None

    async def answer(self, number: int, answer: ParsedAnswer, principal: str) -> None:
        """Answer a request as it was shown; what is wrong with that is raised."""
        request = self.open[number]
        now = await self._app.store.listing.request(request.request_id)
        if now is not None and request_of(now) != request:
            raise InvalidAnswer(
                f"what {request.request_id} asks is not what was shown here: leave and look again",
                request=request.request_id,
            )
        session = await self._app.session(request.session_id)
        receipt = await session.answer(
            request.request_id,
            answer.option,
            text=answer.text,
            args=answer.args,
            principal=principal,
        )
        said = answer.option or one_line(answer.text or "")
        said += " with other arguments" if answer.args is not None else ""
        store, after = self._app.store, Cursor(receipt.offset)
        reader = EventReader(store, request.session_id, after, internals=False)
        self._sent[number] = SentAnswer(request, said, reader)
        self.open.pop(number, None)
        self.note(number, f"{said}: sent as {receipt.delivery_id}")

    def note(self, number: int, text: str) -> None:
        """Keep the last thing that there is to say about a number."""
        self.notes.pop(number, None)
        self.notes[number] = text
        while len(self.notes) > MOST_NOTES:
            self.notes.pop(next(iter(self.notes)))

    async def _is_gone(self, number: int, request: Request) -> None:
        del self.open[number]
        self.note(number, await who_answered(self._app, request))

    async def _follow(self, number: int, sent: SentAnswer) -> None:
        """Say what became of an answer, up to what its call came to."""
        try:
            events = await sent.reader.next_page()
        except UnknownSession:
            del self._sent[number]
            self.note(number, f"{sent.said}: the session was erased")
            return
        for event in events:
            text = outcome(event, sent.request)
            if text:
                self.note(number, f"{sent.said}: {text}")
            if text and event.type != "request.resolved":
                self._sent.pop(number, None)


def outcome(event: Event, request: Request) -> str:
    """Return what an event says of a request's call, if anything."""
    if event.type == "request.resolved":
        return "taken" if event.data["request_id"] == request.request_id else ""
    if event.call_id != request.call_id:
        return ""
    match event.type:
        case "tool.completed":
            told = event.data.get("message") or value_text(event.data.get("value"))
            return one_line(f"{request.tool}: {told}")
        case "tool.failed":
            return one_line(f"{request.tool} failed: {failure_text(event.data['error'])}")
        case "tool.denied" | "tool.interrupted":
            return f"{request.tool} was {event.type.removeprefix('tool.')}"
    return ""


async def who_answered(app: Outlast, request: Request) -> str:
    """Say how a request was closed that was not closed here."""
    info = await app.store.listing.session(request.session_id)
    if info is None:
        return "the session was erased"
    count = 0
    async for entry in EntriesBefore(app.store.log, request.session_id, info.end + 1):
        count += 1
        match entry.record:
            case r.DeliveryQueued(kind="reply", request_id=request.request_id):
                said = entry.record.option or one_line(entry.record.text) or "answered"
                return f"{said} by {entry.record.principal or 'somebody else'}"
            case r.RequestExpired(request_id=request.request_id):
                return "expired: nobody answered in time"
            case r.RequestResolved(request_id=request.request_id, how=how) if how != "answered":
                return f"closed: {how}"
        if count >= MOST_READ:
            break
    return "closed"
