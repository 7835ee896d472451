"""A session on a server, held like one that is here: send, answer, read, wait.

Owns the routes of one session, and the bookmark by which a reader goes on later. Has the methods of
`outlast.session.Session` and keeps no copy of what the server knows. Streams are read in
`stream.py`; answers become types in `decode.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Generic, TypedDict, cast, overload

from typing_extensions import TypeVar

from outlast.agents.runtime.json_value import to_json
from outlast.agents.state.slice_type import type_of
from outlast.agents.state.snapshot import Snapshot
from outlast.client.connection import ServerConnection, segment
from outlast.client.decode import (
    RUNNING,
    WireHistory,
    WireMilestones,
    WireReceipt,
    WireResult,
    decode,
)
from outlast.client.encode import (
    change_out,
    check_answered,
    deadline_out,
    dispatch_out,
    message_out,
    retry_failed_out,
    some,
)
from outlast.client.info import RemoteInfo, WireSession
from outlast.client.retry import FailedTry, RetryBudget
from outlast.client.stream import read_page, read_to_rest
from outlast.core.event import Event, cursor_of
from outlast.core.instant import Span, milliseconds
from outlast.core.lane import PROVIDER
from outlast.core.message import Message, Said
from outlast.core.name import MAIN, MAX_ID, check_id
from outlast.core.record import StateChangeRequested
from outlast.core.slice import Slices
from outlast.core.usage import TreeUsage
from outlast.errors import (
    InvalidInput,
    OutlastError,
    ServerUnavailable,
    SessionOver,
    UnknownSession,
)
from outlast.log.milestone import Milestone
from outlast.session import Receipt, Request, Result, Session, WaitingFor, is_at_rest
from outlast.session.answer import OF_AN_ANSWER
from outlast.session.merged_events import ChildSession, EventsOf, MergedEvents, child_of
from outlast.session.mutation import SessionChanges, SliceChanges
from outlast.session.request import id_of
from outlast.session.state import SliceQuery
from outlast.session.waiting import OutageNotices, code_of
from outlast.store import AdmissionReceipt as StoreReceipt

Out = TypeVar("Out", default=Any)
T = TypeVar("T")

LOOKS_AGAIN = 10
"""How often an answer is tried again whose session the server does not know yet."""

LOOKS_WITHIN = 1.0
"""Seconds between two of these tries, at most."""

WAITS = 20.0
"""Seconds that the server is asked to wait for a result before it says that there is none."""

NOT_AT_ONCE = 1.0
"""Seconds before a server is asked again that did not wait as long as it was asked to."""

LATE = 5.0
"""Seconds that an answer may come later than it was asked for, where there is a timeout."""

NO_OUTAGE = "none"
"""Asks the server to answer as soon as a wait for a provider begins."""


class Bookmark(TypedDict):
    """Plain data, to be kept as JSON. `after` is the cursor of the last event read."""

    session_id: str
    continuation_token: str | None
    after: str


def check_bookmark(given: Any) -> Bookmark:
    """Return a bookmark if it has the shape of one."""
    if not isinstance(given, dict) or set(given) != set(Bookmark.__annotations__):
        raise InvalidInput(
            "a bookmark is a dict with session_id, continuation_token and after: "
            "keep `session.bookmark` as it is"
        )
    session_id, index = given["session_id"], given["after"]
    if not isinstance(session_id, str) or not 0 < len(session_id) <= MAX_ID:
        raise InvalidInput("a bookmark's session_id is the id of a session")
    if not isinstance(given["continuation_token"], str | None):
        raise InvalidInput("a bookmark's continuation_token is a text, or None")
    if not isinstance(index, str):
        raise InvalidInput("a bookmark's after is the text of a cursor")
    try:
        cursor_of(index)
    except InvalidInput as error:
        raise InvalidInput(f"a bookmark's after is none: {error.message}") from None
    return cast(Bookmark, dict(given))


class RemoteSession(Generic[Out]):
    """A handle on one session of a server. Awaiting it makes sure that the session exists."""

    def __init__(
        self,
        connection: ServerConnection,
        session_id: str,
        *,
        output_type: Any = None,
        token: str | None = None,
        cursor: str | None = None,
    ) -> None:
        """Where a `cursor` is given, events are read on from there."""
        self.id: str = check_id("session_id", session_id)
        self.receipt: RemoteReceipt[Out] | None = None
        self._connection = connection
        self._path = f"/sessions/{segment(session_id)}"
        self._output_type = output_type
        self._notices = OutageNotices(self.id)
        self._token = token
        self._cursor = cursor or "0"
        self._is_resumed = cursor is not None

    def __await__(self) -> Generator[Any, None, RemoteSession[Out]]:
        return self._known().__await__()

    async def _known(self) -> RemoteSession[Out]:
        await self.info()
        return self

    @property
    def bookmark(self) -> Bookmark:
        """The place after the last event that was read: keep it as JSON, for `Client.resume`."""
        return Bookmark(session_id=self.id, continuation_token=self._token, after=self._cursor)

    async def info(self) -> RemoteInfo:
        """Return the session as it is listed, what it waits for and what it has cost."""
        found = decode(await self._connection.call("GET", self._path), WireSession)
        while found.next_lane is not None:
            query = {"lanes_after": found.next_lane}
            raw = await self._connection.call("GET", self._path, query=query)
            found = found.joined(decode(raw, WireSession))
        info = found.whole()
        self._token = info.token or self._token
        return info

    async def usage(self) -> TreeUsage:
        """Return what the session has used so far, and the total with all that it has started."""
        return (await self.info()).usage

    async def continuation_token(self) -> str:
        """Return the session's newest continuation token; None without the scope `send`."""
        return (await self.info()).token

    # In

    async def send(
        self,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        lane: str = MAIN,
        deadline: datetime | timedelta | None = None,
    ) -> RemoteReceipt[Out]:
        """Put a message into the session's queue; the message is durable when this returns.

        The same `dispatch_id` again returns the first receipt; with `retry_failed` the message's
        turn is tried again if it has failed, and the receipt is that of the retry. At the
        `deadline` the message's turn fails.
        """
        body = retry_failed_out(retry_failed, dispatch_id) | some(
            message=message_out(message),
            lane=check_id("lane", lane),
            dispatch_id=self._dispatch(dispatch_id),
            deadline=deadline_out(deadline, self._connection.clock, dispatch_id),
        )
        return await self._deliver(body, is_ours=dispatch_id is None)

    async def answer(
        self,
        request: Request | str,
        option: str | None = None,
        *,
        text: str | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch_id: str | None = None,
    ) -> RemoteReceipt[Out]:
        """Answer an open request (the request or its id) with an option, a text, or both."""
        request_id = id_of(request)
        check_answered(request_id, option, text)
        to_json(args, OF_AN_ANSWER)  # so that what is refused has a name
        response = some(request_id=request_id, option=option, text=text, args=args)
        body = {"answers": [response], "dispatch_id": self._dispatch(dispatch_id)}
        clock, retry_timeout = self._connection.clock, self._connection.retry_timeout
        trouble = RetryBudget(clock, retry_timeout, longest=LOOKS_WITHIN)
        for _ in range(LOOKS_AGAIN):
            try:
                return await self._answer(body, is_ours=dispatch_id is None)
            except UnknownSession as error:
                missed = FailedTry(error)
            await trouble.bear(missed)
        return await self._answer(body, is_ours=dispatch_id is None)

    async def _answer(self, body: Mapping[str, Any], *, is_ours: bool) -> RemoteReceipt[Out]:
        try:
            return await self._deliver(body, is_ours=is_ours)
        except OutlastError as error:
            error.details.pop("accepted", None)  # of several answers, which there are not
            raise

    def _dispatch(self, dispatch_id: str | None) -> str:
        return dispatch_out(dispatch_id, self._connection.clock)

    async def _deliver(self, body: Mapping[str, Any], *, is_ours: bool) -> RemoteReceipt[Out]:
        raw = await self._connection.call("POST", f"{self._path}/deliveries", body=body)
        return RemoteReceipt(self, decode(raw, WireReceipt), is_ours=is_ours)

    async def cancel(self, reason: str = "", *, turn: str | None = None, lane: str = MAIN) -> None:
        """Stop the open turn of a lane. The session and its queue stay.

        If you name a `turn`, only that one is stopped, in its own lane. Without a `turn` the client
        does not try again after a first try that may have worked: the next turn could have begun
        since.
        """
        body = some(reason=reason, turn=turn, lane=check_id("lane", lane))
        await self._connection.call(
            "POST", f"{self._path}/cancel", body=body, is_safe=turn is not None
        )

    async def end(self, reason: str = "") -> None:
        """End the session for good."""
        await self._connection.call(
            "POST", f"{self._path}/end", body={"reason": reason}, done=(SessionOver,)
        )

    async def retry(self, *, lane: str = MAIN) -> RemoteReceipt[Out]:
        """Try a lane's failed turn again from where it failed; no message is sent again."""
        raw = await self._connection.call(
            # Without an id of ours a second try could retry a turn that has failed since.
            "POST",
            f"{self._path}/retry",
            body={"lane": check_id("lane", lane)},
            is_safe=False,
        )
        return RemoteReceipt(self, decode(raw, WireReceipt), is_ours=True)

    async def compact(
        self, *, lane: str = MAIN, dispatch_id: str | None = None
    ) -> RemoteReceipt[Out]:
        """Shorten what the model is sent of a lane from here on. The log stays whole."""
        return await self._change_context("compact", {"lane": check_id("lane", lane)}, dispatch_id)

    async def rewind(self, to: str, *, dispatch_id: str | None = None) -> RemoteReceipt[Out]:
        """Show the model the session as it was after the turn `to`. The log stays whole."""
        return await self._change_context("rewind", {"to": check_id("turn", to)}, dispatch_id)

    async def _anchor(
        self, channel: str, thread: str, dispatch_id: str | None
    ) -> RemoteReceipt[Out]:
        body = {"channel": check_id("channel", channel), "thread": check_id("thread", thread)}
        return await self._change_context("anchor", body, dispatch_id)

    async def _change_context(
        self, op: str, body: Mapping[str, Any], dispatch_id: str | None
    ) -> RemoteReceipt[Out]:
        body = {**body, "dispatch_id": self._dispatch(dispatch_id)}
        raw = await self._connection.call("POST", f"{self._path}/{op}", body=body)
        return RemoteReceipt(self, decode(raw, WireReceipt), is_ours=dispatch_id is None)

    # State

    def query(self, kind: type[T]) -> SliceQuery[T]:
        """Return the session's values of a type, read again at each call."""
        return SliceQuery(type_of(kind), self._slices)

    async def _slices(self) -> Slices:
        return (await self.snapshot()).slices

    @overload
    def mutate(self, kind: type[T]) -> SliceChanges[T]: ...

    @overload
    def mutate(self, kind: None = None) -> SessionChanges: ...

    def mutate(self, kind: type[T] | None = None) -> SliceChanges[T] | SessionChanges:
        """Return the way to change the session's values of a type, or of all types.

        The server has to know the slices and events by the same names.
        """
        if kind is None:
            return SessionChanges(self._change)
        return SliceChanges(type_of(kind), self._change)

    async def _change(
        self, change: StateChangeRequested, dispatch_id: str | None
    ) -> RemoteReceipt[Out]:
        body = change_out(change) | {"dispatch_id": self._dispatch(dispatch_id)}
        raw = await self._connection.call("POST", f"{self._path}/state", body=body)
        return RemoteReceipt(self, decode(raw, WireReceipt), is_ours=dispatch_id is None)

    async def snapshot(self) -> Snapshot:
        """Return all values of the session's state, and its id, tags, parent and children."""
        return Snapshot.from_json(await self._connection.call("GET", f"{self._path}/state"))

    # Out

    async def events(
        self,
        after: int | str | None = None,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield all events after a cursor, then new ones as they are committed.

        It ends when nothing is queued, ready or running; with `follow=False` at the present end.
        Without a cursor it begins at the first event, or after the bookmark of a resumed session. A
        lost connection is taken up again. With `children` the events of all sessions that this one
        starts on its server come between its own; `session_id` says whose they are.
        """
        start = (self._cursor if self._is_resumed else "0") if after is None else after
        read = self._read_all if children else self._read
        async with aclosing(read(start, follow, internals)) as events:
            async for event in events:
                if event.session_id == self.id:
                    self._cursor = event.cursor or str(event.offset)
                yield event

    def _read_all(
        self, after: int | str, follow: bool, internals: bool
    ) -> AsyncGenerator[Event, None]:
        def events_of(session_id: str, after: int | str) -> AsyncGenerator[Event, None]:
            other = RemoteSession[Any](self._connection, session_id)
            return other._read(after, follow, internals)

        return MergedEvents(ServerSource(events_of), follow=follow).read(self.id, after)

    def _read(self, after: int | str, follow: bool, internals: bool) -> AsyncGenerator[Event, None]:
        path, start = f"{self._path}/stream", cursor_of(after)
        query = {
            "follow": "until_rest" if follow else "false",
            "internals": "true" if internals else None,
        }
        if follow:
            return read_to_rest(self._connection, self.id, path, query, start, self._rest)
        return read_page(self._connection, self.id, path, query, start)

    async def _rest(self) -> int | None:
        info = await self.info()
        return info.end if is_at_rest(info) else None

    async def wait(self, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until nothing is queued, ready or running; return the result of the last turn.

        After the `timeout` the status is `running`, and `waiting_for` says what the session waits
        for. Without a `timeout` this waits for as long as it takes, also for a provider that is
        away; a warning in this process's log says so.
        """
        return await self._result(None, timeout)

    async def result_of(self, delivery_id: str, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until one delivery is settled, or its turn needs a human.

        The `timeout` is as for `wait`.
        """
        return await self._result(check_id("delivery_id", delivery_id), timeout)

    async def _result(self, delivery_id: str | None, timeout: Span | None) -> Result[Out]:
        clock = self._connection.clock
        until = None if timeout is None else clock.monotonic() + milliseconds(timeout) / 1000
        known = NO_OUTAGE
        while True:
            began = clock.monotonic()
            left = WAITS if until is None else min(WAITS, max(0.0, until - began))
            query = {"wait": f"{left:.3f}", "delivery_id": delivery_id, "outage": known}
            asking = self._connection.call("GET", f"{self._path}/result", query=query, waits=left)
            raw = await (asking if until is None else self._in_time(asking, left))
            found = decode(raw, WireResult).value(self._output_type)
            outages = outages_of(found)
            self._notices.tell(outages)
            if found.status != RUNNING or (until is not None and clock.monotonic() >= until):
                return found
            before, known = known, code_of(outages) or NO_OUTAGE
            if known == before and clock.monotonic() - began < left / 2:
                # It was asked to wait, and has not: it is not asked again at once, for ever.
                await asyncio.sleep(clock.jitter(NOT_AT_ONCE))

    async def _in_time(self, asking: Awaitable[bytes], seconds: float) -> bytes:
        """Return an answer that the server was to give after so long; it may be a little late."""
        limit = asyncio.timeout(seconds + LATE)
        try:
            async with limit:
                return await asking
        except TimeoutError:
            if not limit.expired():
                raise
            raise ServerUnavailable(
                f"the server did not say within {seconds + LATE:g} s how the session stands"
            ) from None

    async def history(self, lane: str = MAIN) -> list[Message]:
        """Return the conversation so far, as the model sees it."""
        messages: list[Message] = []
        query: dict[str, Any] | None = {"lane": lane}
        while query is not None:
            raw = await self._connection.call("GET", f"{self._path}/history", query=query)
            page = decode(raw, WireHistory)
            messages += page.messages
            more = page.next_cursor
            query = {"lane": lane, "cursor": more} if more is not None else None
        return messages

    async def milestones(self) -> list[Milestone]:
        """Return the milestones that the session has reached, in all lanes, oldest first."""
        found: list[Milestone] = []
        query: dict[str, Any] | None = {}
        while query is not None:
            raw = await self._connection.call("GET", f"{self._path}/milestones", query=query)
            page = decode(raw, WireMilestones)
            found += page.milestones
            query = {"cursor": page.next_cursor} if page.next_cursor is not None else None
        return found

    async def requests(self) -> tuple[Request, ...]:
        """Return the questions that are open."""
        return (await self.info()).requests


class RemoteReceipt(Receipt[Out]):
    """Proof that a message was accepted, and the way to its answer."""

    session: RemoteSession[Out]  # type: ignore[assignment] # asked for a result only

    def __init__(self, session: RemoteSession[Out], given: WireReceipt, *, is_ours: bool) -> None:
        """With `is_ours` the dispatch's id was made here: a duplicate is our own second try."""
        receipt = StoreReceipt(
            session_id=given.session_id,
            lane=given.lane,
            delivery_id=given.delivery_id,
            offset=given.offset,
            position=given.position,
            # Our own second try finds what the first has done: for the caller there was one.
            duplicate=given.duplicate and not is_ours,
        )
        super().__init__(cast("Session[Out]", session), receipt)


def outages_of(result: Result[Any]) -> tuple[WaitingFor, ...]:
    """Return the provider that a result says is waited for."""
    wait = result.waiting_for
    return (wait,) if wait and wait.kind == PROVIDER else ()


class ServerSource:
    """The sessions of one server, as a source of merged events.

    Sessions that they have started at remote agents are behind other servers, whose keys a client
    does not have: they are not read.
    """

    is_remote = False
    place = ""

    def __init__(self, events_of: EventsOf) -> None:
        self._events_of = events_of

    def events(self, session_id: str, after: int | str) -> AsyncIterator[Event]:
        return self._events_of(session_id, after)

    async def child(self, _: str, event: Event) -> ChildSession | None:
        return ChildSession(found, self) if (found := child_of(event)) else None
