"""The handle on one session, and the receipts that it gives.

Owns what users can do with a session, in any process that reaches the store. Holds nothing of the
session: what goes in is an arrival (`inbox.py`), what comes out is read from the log
(`log/reader.py`) and from the lists of the store. Which session is meant is `router.py`'s affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, cast, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import TypeVar

from outlast.agents.agent import Agent
from outlast.agents.runtime.json_value import from_json
from outlast.agents.runtime.model_call import output_of
from outlast.agents.state.change_request import rollback_request
from outlast.agents.state.slice_type import type_of
from outlast.agents.state.snapshot import Snapshot
from outlast.agents.tool import Tool
from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.compaction import NO_MODEL
from outlast.core.decide import DEADLINE_EXCEEDED
from outlast.core.event import Event, cursor_of
from outlast.core.index import PEOPLE, RELAYED
from outlast.core.instant import Span, date_of, milliseconds
from outlast.core.message import Content, Message, Said, check_text, content_of
from outlast.core.name import MAIN, check_dispatch, check_id, check_who, is_id, lane_of
from outlast.core.record import Failure
from outlast.core.state_change import check_size
from outlast.core.usage import TreeUsage
from outlast.errors import (
    InvalidInput,
    NothingToRetry,
    TaskCannotWait,
    UnknownDelivery,
    UnknownLane,
    UnknownRequest,
    UnknownSession,
)
from outlast.log.explain import Explanation, explain, gather
from outlast.log.history import HistoryReader
from outlast.log.milestone import Milestone, read_milestones
from outlast.log.reader import EventReader, Outcome, Wakeups, read_outcome
from outlast.session.answer import check_answer, check_approver, checked_args
from outlast.session.inbox import ANYBODY, CONTEXT, STATE, Arrival, Inbox, instant_of
from outlast.session.merged_events import LocalSource, MergedEvents
from outlast.session.mutation import SessionChanges, SliceChanges
from outlast.session.observation import Observation, Observer
from outlast.session.request import Request, id_of, request_of
from outlast.session.result import Result, ResultStatus
from outlast.session.retry import check_retry_failed, retry_if_failed
from outlast.session.state import (
    SliceQuery,
    read_refusal,
    read_slices,
    take_snapshot,
    take_snapshot_at,
)
from outlast.session.waiting import (
    IdleWorkerCheck,
    OutageNotices,
    OutageWatch,
    WaitingFor,
    code_of,
    is_at_rest,
    needs_somebody,
    read_waiting,
)
from outlast.store import AdmissionReceipt as StoreReceipt
from outlast.store import DeliveryInfo, SessionInfo, Store

Out = TypeVar("Out", default=Any)
T = TypeVar("T")

PRINCIPAL = "name of who acts"


class AddressedMessage(Struct, frozen=True):
    """A message on its way to where a token leads.

    The `fingerprint` tells it from others of its dispatch; `scope` is within what dispatches are
    compared. A session that it starts gets the `tags`.
    """

    token: str
    content: Content
    fingerprint: str
    dispatch_id: str | None
    tenant: str
    principal: str
    scope: str = ANYBODY
    tags: Mapping[str, str] = {}


class Receipt(Generic[Out]):
    """Proof that a message was accepted, and the way to its answer."""

    def __init__(self, session: Session[Out], receipt: StoreReceipt) -> None:
        self.session = session
        self.session_id: str = receipt.session_id
        self.delivery_id: str = receipt.delivery_id
        self.lane: str = receipt.lane
        self.offset: int = receipt.offset
        self.position: int = receipt.position
        self.duplicate: bool = receipt.duplicate

    def __repr__(self) -> str:
        again = ", duplicate" if self.duplicate else ""
        return f"Receipt({self.delivery_id} for {self.session_id}, lane {self.lane}{again})"

    async def result(self, *, timeout: Span | None = None) -> Result[Out]:
        """Wait for the message's turn to end, or to need a human.

        After the `timeout` the result's status is `running`, and `waiting_for` says what it waits
        for.
        """
        return await self.session.result_of(self.delivery_id, timeout=timeout)


class Session(Generic[Out]):
    """A handle on one session. It holds no state; make as many as you like."""

    def __init__(
        self,
        session_id: str,
        store: Store,
        clock: Clock,
        agents: Mapping[str, Agent[Any, Any]],
        inbox: Inbox,
        receipt: StoreReceipt | None = None,
    ) -> None:
        self.id = session_id
        self._store = store
        self._clock = clock
        self._agents = agents
        self._inbox = inbox
        self._notices = OutageNotices(session_id)
        self.receipt: Receipt[Out] | None = Receipt(self, receipt) if receipt else None

    def __repr__(self) -> str:
        return f"Session({self.id})"

    async def info(self) -> SessionInfo:
        """Return the session as it is listed."""
        info = await self._store.listing.session(self.id)
        if info is None:
            raise UnknownSession(f"there is no session {self.id}", session=self.id)
        return info

    async def _info_with(self, lane: str) -> SessionInfo:
        """Return the session, if it has a lane: only a message opens another than `main`."""
        info = await self.info()
        if check_id("lane", lane) != MAIN and all(each.lane != lane for each in info.lanes):
            raise UnknownLane(f"the session has no lane {lane}", lane=lane)
        return info

    async def continuation_token(self) -> str:
        """Return the session's newest continuation token."""
        return (await self.info()).token

    # In

    async def send(
        self,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        lane: str = MAIN,
        principal: str = "",
        deadline: datetime | timedelta | None = None,
    ) -> Receipt[Out]:
        """Put a message into the session's queue; the message is durable when this returns.

        The same `dispatch_id` again returns the first receipt; with `retry_failed` the message's
        turn is tried again if it has failed, and the receipt is that of the retry. At the
        `deadline` the message's turn fails.
        """
        if retry_failed:
            check_retry_failed(dispatch_id)
        info = await self._info_for_message()
        queued = r.DeliveryQueued(
            delivery_id="",
            content=content_of(message),
            principal=check_who(PRINCIPAL, principal),
            deadline_at=instant_of(deadline, self._store.clock, dispatch_id),
        )
        receipt = await self._add(info, queued, lane, f"session:{self.id}", dispatch_id)
        if not retry_failed:
            return receipt
        retried = await retry_if_failed(self._store, self._inbox, receipt, principal)
        return Receipt(receipt.session, retried) if retried else receipt

    async def _info_for_message(self) -> SessionInfo:
        info = await self.info()
        if info.mode == "task" and not info.over:
            raise TaskCannotWait(
                "a task takes no follow-up: start a session in conversation mode", session=self.id
            )
        return info

    async def answer(
        self,
        request: Request | str,
        option: str | None = None,
        *,
        text: str | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch_id: str | None = None,
        principal: str = "",
    ) -> Receipt[Out]:
        """Answer an open request (the request or its id) with an option, a text, or both."""
        principal = check_who(PRINCIPAL, principal)
        request_id = id_of(request)
        found = await self._store.listing.request(request_id) if is_id(request_id) else None
        # In the same words for a request of another session: whether there is one is not this
        # caller's affair.
        if found is None or found.session_id != self.id or found.kind not in (*PEOPLE, RELAYED):
            raise UnknownRequest(f"this session never asked {request_id}", request=request_id)
        asked = msgspec.json.decode(found.data, type=r.RequestOpened)
        # First what the question alone says: for that no code of the agent is needed.
        check_answer(asked, option, text, args)
        info = await self.info()
        tool = self._tool_of(info, asked)
        # Checked here so that the caller is told at once. The lane's owner checks it again
        # (`LaneRunner._take_if_allowed`): it alone is sure to have the agent's current code.
        await check_approver(tool, asked, principal)
        reply = r.DeliveryQueued(
            delivery_id="",
            kind="reply",
            request_id=request_id,
            option=option or "",
            text=text or "",
            args=checked_args(tool, asked, args, option),
            principal=principal,
        )
        return await self._add(info, reply, found.lane, f"request:{request_id}", dispatch_id)

    def _tool_of(self, info: SessionInfo, asked: r.RequestOpened) -> Tool | None:
        agent = self._agents.get(asked.agent or info.agent)
        return agent.find_tool(asked.tool) if agent and asked.kind != "question" else None

    async def cancel(
        self, reason: str = "", *, turn: str | None = None, lane: str = MAIN, principal: str = ""
    ) -> None:
        """Stop the open turn of a lane, or its next message if no turn is open.

        Other queued messages stay. If you name a `turn`, only that one is stopped; if it is no
        longer open, nothing happens, so it is safe to repeat.
        """
        cancel = r.CancelRequested(
            delivery_id="",
            reason=check_text("a reason", reason),
            turn=check_who("turn", turn or ""),
            principal=check_who(PRINCIPAL, principal),
        )
        # A turn's name says its lane, so the two cannot contradict each other.
        lane = lane_of(turn) if turn else lane
        info = await self._info_with(lane)
        await self._add(info, cancel, lane, f"session:{self.id}", None)

    async def end(self, reason: str = "", *, principal: str = "") -> None:
        """End the session for good, also while its lanes are at work."""
        cancel = r.CancelRequested(
            delivery_id="",
            reason=check_text("a reason", reason),
            ends=True,
            principal=check_who(PRINCIPAL, principal),
        )
        await self._add(await self.info(), cancel, MAIN, f"session:{self.id}", None)

    async def retry(self, *, lane: str = MAIN, principal: str = "") -> Receipt[Out]:
        """Try a lane's failed turn again from where it failed; no message is sent again."""
        info = await self._info_with(lane)
        last = await read_outcome(self._store, self.id, info.end + 1, lambda t: lane_of(t) == lane)
        if last is None or last.how != "failed":
            raise NothingToRetry(f"the last turn of {lane} did not fail", session=self.id)
        retry = r.DeliveryQueued(
            delivery_id="", kind="retry", principal=check_who(PRINCIPAL, principal)
        )
        return await self._add(info, retry, lane, f"session:{self.id}", None)

    async def _add(
        self,
        info: SessionInfo,
        record: Arrival,
        lane: str,
        scope: str,
        dispatch_id: str | None,
        fingerprint: str = "",
    ) -> Receipt[Out]:
        receipt = await self._inbox.add(
            self.id,
            info.tenant,
            check_id("lane", lane),
            record,
            scope=scope,
            dispatch_id=check_dispatch(dispatch_id),
            fingerprint=fingerprint,
        )
        return Receipt(self._handle(receipt.session_id), receipt)

    def _handle(self, session_id: str) -> Session[Any]:
        """Return a handle on a session like this one: what is sent again may have gone there."""
        return Session(session_id, self._store, self._clock, self._agents, self._inbox)

    # Out

    async def events(
        self,
        after: int | str = 0,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> AsyncIterator[Event]:
        """Yield all events after a cursor, then new ones as they are committed.

        `after` is the `cursor` of the last event that you read. If that event is no longer in the
        log (a backup was restored), HistoryGone is raised. An offset is accepted too, and raises
        CursorAhead if the log is shorter.

        It ends when nothing is queued, ready or running; with `follow=False` at the present end.
        With `children` the events of all sessions that this one starts come between its own, also
        those of remote agents; `session_id` says whose they are. A remote server that is away is
        tried again for as long as events come here.
        """
        start = cursor_of(after)
        if children:
            events_of = partial(self._events_of, follow, internals)
            here = LocalSource(self._store, self._agents, events_of, follow=follow)
            async for event in MergedEvents(here, follow=follow).read(self.id, after):
                yield event
            return
        reader = EventReader(self._store, self.id, start, internals)
        with Wakeups(self._store, self.id) as wakeups:
            while True:
                # Before the look: what is written during it sets the wakeup again.
                wakeups.clear()
                info = await self.info()
                reader.check(info.end)
                # At rest is believed only by a look that found nothing new: what was just given may
                # have been answered by the caller.
                given = reader.cursor < info.end
                while reader.is_behind(info.end):
                    for event in await reader.next_page():
                        yield event
                if not follow or (is_at_rest(info) and not given):
                    return
                # A request may have been answered meanwhile: look again.
                if not is_at_rest(info):
                    await wakeups.wait()

    def _events_of(
        self, follow: bool, internals: bool, session_id: str, after: int | str
    ) -> AsyncIterator[Event]:
        return self._handle(session_id).events(after, follow=follow, internals=internals)

    async def wait(self, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until nothing is queued, ready or running; return the result of the last turn.

        After the `timeout` the status is `running`, and `waiting_for` says what the session waits
        for. Without a `timeout` this waits for as long as it takes, also for a provider that is
        away; a warning in this process's log says so.
        """
        return await self._result_within(None, timeout, logs=True)

    async def result_of(self, delivery_id: str, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until one delivery is settled, or its turn needs a human.

        The `timeout` is as for `wait`.
        """
        if not is_id(delivery_id):
            raise unknown_delivery(delivery_id)
        return await self._result_within(delivery_id, timeout, logs=True)

    async def _result_within(
        self, delivery_id: str | None, timeout: Span | None, *, known: str | None = None, logs: bool
    ) -> Result[Out]:
        """Wait for a result, for so long; see `wait_or_outage` for `known`."""
        seconds = None if timeout is None else milliseconds(timeout) / 1000
        limit = asyncio.timeout(seconds)
        try:
            # With 0 the present state is wanted, which `asyncio.timeout(0)` would not let anybody
            # read.
            if seconds != 0:
                async with limit:
                    return await self._wait_for_result(delivery_id, known, logs=logs)
        except TimeoutError:
            # A TimeoutError of the store's own must not pass for the end of this one.
            if not limit.expired():
                raise
        info = await self.info()
        return await self._look(info, delivery_id) or await self._running(info, delivery_id)

    async def _wait_for_result(
        self, delivery_id: str | None, known: str | None, *, logs: bool
    ) -> Result[Out]:
        idle_check = IdleWorkerCheck(self._store)
        outages = OutageWatch(self._store)
        # Not by every commit: thousands may wait for results while tokens stream.
        with Wakeups(self._store, self.id, only_rests=True) as wakeups:
            while True:
                wakeups.clear()
                info = await self.info()
                found = await self._look(info, delivery_id)
                if found and self._notices.are_open:
                    info = await self.info()  # the first one may be older than the result
                waits = await outages.look(info)
                if logs:
                    self._notices.tell(waits)
                if found:
                    return found
                if known is not None and known != code_of(waits):
                    return await self._running(info, delivery_id, *waits)
                # Nothing came for a second: the time to see whether any worker serves the session
                # at all.
                if not await wakeups.wait():
                    await idle_check.look(info)

    async def _look(self, info: SessionInfo, delivery_id: str | None) -> Result[Out] | None:
        """Return the result of the session's last turn or of a delivery, if there is one yet."""
        if delivery_id is None:
            return await self._result(info, None) if is_at_rest(info) else None
        delivery = await self._delivery(delivery_id)
        if delivery.kind in (STATE, CONTEXT):
            return await self._result_of_change(delivery)
        # An answer is settled when it is taken; its turn goes on.
        answered = delivery.outcome == "answered"
        goes_on = answered and any(lane.turn == delivery.turn for lane in info.lanes)
        if delivery.state == "settled" and not goes_on:
            if delivery.turn:
                # The turn's end stands before that of its delivery: no need to look for it from the
                # log's end. An answer is settled long before its turn ends.
                before = None if answered else delivery.settled_offset
                return await self._result(info, delivery.turn, before)
            # Only its deadline makes a message fail before it had a turn.
            error = DEADLINE_EXCEEDED if delivery.outcome == "failed" else None
            return Result(status=cast("ResultStatus", delivery.outcome), error=error)
        if needs_somebody(info, delivery.lane):
            return await self._waiting(info, delivery.lane)
        return await self._result(info, None) if is_at_rest(info) else None

    async def _result_of_change(self, change: DeliveryInfo) -> Result[Out] | None:
        """Return what became of a change of state; it waits for no turn and for nobody."""
        if change.state != "settled":
            return None
        error = await read_refusal(self._store, change) if change.outcome == "refused" else None
        return Result(status=cast("ResultStatus", change.outcome), error=error)

    async def _delivery(self, delivery_id: str) -> DeliveryInfo:
        found = await self._store.listing.delivery(delivery_id) if is_id(delivery_id) else None
        if found is None or found.session_id != self.id:
            raise unknown_delivery(delivery_id)
        return found

    async def _running(
        self, info: SessionInfo, delivery_id: str | None, *outages: WaitingFor
    ) -> Result[Out]:
        """Return that there is no result yet, and what is waited for."""
        if outages:
            return Result(status="running", waiting_for=outages[0])
        lane = (await self._delivery(delivery_id)).lane if delivery_id else None
        return Result(status="running", waiting_for=await read_waiting(self._store, info, lane))

    async def history(self, lane: str = MAIN) -> list[Message]:
        """Return a lane's conversation so far, as the model sees it."""
        await self._info_with(lane)
        reader = HistoryReader(self._store, self.id, lane)
        return [message async for _, message in reader.read()]

    def query(self, kind: type[T]) -> SliceQuery[T]:
        """Return the session's values of a type: `await session.query(T).all()`."""
        return SliceQuery(type_of(kind), partial(read_slices, self._store, self.id))

    @overload
    def mutate(self, kind: type[T], *, principal: str = "") -> SliceChanges[T]: ...

    @overload
    def mutate(self, kind: None = None, *, principal: str = "") -> SessionChanges: ...

    def mutate(
        self, kind: type[T] | None = None, *, principal: str = ""
    ) -> SliceChanges[T] | SessionChanges:
        """Return the way to change the session's values of a type, or of all types.

        A change is a delivery to the lane `main`, whose owner makes it between two steps.
        """
        send = partial(self._change, check_who(PRINCIPAL, principal))
        return SessionChanges(send) if kind is None else SliceChanges(type_of(kind), send)

    async def _change(
        self, principal: str, change: r.StateChangeRequested, dispatch_id: str | None
    ) -> Receipt[Out]:
        check_size(change)
        change = replace(change, principal=principal)
        return await self._add(await self.info(), change, MAIN, f"session:{self.id}", dispatch_id)

    async def _rekey(
        self,
        token: str,
        outbox: tuple[r.NewOutboxCursor, ...],
        dispatch_id: str | None,
        principal: str,
    ) -> Receipt[Out]:
        """Ask for another address, and for the cursors that tell there what happens from then."""
        change = r.StateChangeRequested(delivery_id="", op="rekey", token=token, outbox=outbox)
        return await self._change(check_who(PRINCIPAL, principal), change, dispatch_id)

    async def compact(
        self, *, lane: str = MAIN, dispatch_id: str | None = None, principal: str = ""
    ) -> Receipt[Out]:
        """Shorten what the model is sent of a lane from here on. The log stays whole.

        The lane's owner does it between two steps, or after an open approval; the receipt's
        `result()` waits until it is done.
        """
        return await self._change_context("compact", "", lane, dispatch_id, principal)

    async def rewind(
        self, to: str, *, dispatch_id: str | None = None, principal: str = ""
    ) -> Receipt[Out]:
        """Show the model the session as it was after the turn `to`, such as "t3".

        The model sees nothing that came later; parts that were compacted since are seen in full
        again. The log, the session's state and effects of tools stay. It is done when no turn is
        open, and refused for an unknown turn.
        """
        turn = check_id("turn", to)
        return await self._change_context("rewind", turn, lane_of(turn), dispatch_id, principal)

    async def _change_context(
        self,
        op: r.ContextOperation,
        turn: str,
        lane: str,
        dispatch_id: str | None,
        principal: str,
    ) -> Receipt[Out]:
        change = r.ContextChangeRequested(
            delivery_id="", op=op, turn=turn, principal=check_who(PRINCIPAL, principal)
        )
        info = await self._info_with(lane)
        if info.mode == "run":
            raise InvalidInput(f"session {self.id} cannot be changed so: {NO_MODEL.message}")
        return await self._add(info, change, lane, f"session:{self.id}", dispatch_id)

    def observe(self, kind: type[T], function: Observer[T]) -> Observation[T]:
        """Call a function when a slice changes, in this process and while it runs.

        The function gets the values before and after. `async with session.observe(T, fn):` stops at
        the end of the block, as does `close()`. Nothing of it is durable.
        """
        return Observation(self._store, self.id, type_of(kind), function)

    async def snapshot(self, *, at: int | None = None) -> Snapshot:
        """Return all values of the session's state, and its id, tags, parent and children.

        With `at`, the state as it was at that offset of the log: that of a milestone, for example.
        """
        info = await self.info()
        if at is None:
            return await take_snapshot(self._store, info)
        return await take_snapshot_at(self._store, info, at)

    async def milestones(self) -> list[Milestone]:
        """Return the milestones that the session has reached, in all lanes, oldest first."""
        info = await self.info()
        return [each async for each in read_milestones(self._store, info.session_id)]

    async def explain(self) -> Explanation:
        """Say for each lane what it does or waits for, and why."""
        now = date_of(self._store.clock.earliest())
        return explain(await gather(self._store, self.id, now))

    async def usage(self) -> TreeUsage:
        """Return what the session has used so far, and the total with all that it has started."""
        return await self._store.usage.tree(self.id)

    async def requests(self) -> tuple[Request, ...]:
        """Return the questions that are open."""
        return await self._requests()

    async def _requests(self, lane: str | None = None) -> tuple[Request, ...]:
        found = await self._store.listing.requests(self.id, kinds=(*PEOPLE, RELAYED))
        return tuple(request_of(info) for info in found if lane in (None, info.lane))

    # Results

    async def _result(
        self, info: SessionInfo, turn: str | None, before: int | None = None
    ) -> Result[Out]:
        if turn is None and any(lane.status == "waiting" for lane in info.lanes):
            return await self._waiting(info)
        end = (before or info.end) + 1
        outcome = await read_outcome(self._store, self.id, end, lambda t: turn in (None, t))
        if outcome is None:
            # It may have failed before its first turn: only a deadline comes so early.
            return Result(status=cast("ResultStatus", info.over or "idle"), error=info_error(info))
        output = None
        if outcome.how == "completed":
            output = self._typed(info.agent, outcome)
        return Result(
            status=cast("ResultStatus", outcome.how),
            output=output,
            error=outcome.error,
            usage=outcome.usage,
            budget_exhausted=outcome.exhausted,
            turn=outcome.turn,
        )

    async def _waiting(self, info: SessionInfo, lane: str | None = None) -> Result[Out]:
        found = await read_waiting(self._store, info, lane)
        return Result(status="waiting", requests=await self._requests(lane), waiting_for=found)

    def _typed(self, name: str, outcome: Outcome) -> Any:
        agent = self._agents.get(name)
        if agent is None:
            return outcome.text if outcome.output is None else from_json(outcome.output)
        return output_of(outcome.text, outcome.output, agent)


def unknown_delivery(delivery_id: str) -> UnknownDelivery:
    return UnknownDelivery(f"this session never got {delivery_id}", delivery=delivery_id)


async def send_addressed(session: Session[Any], message: AddressedMessage) -> Receipt[Any]:
    """Put a message that came by a token or a key into a session's queue.

    Its dispatch id is compared with those of its own scope, because the same message may have
    started the session that it now finds.
    """
    info = await session._info_for_message()
    queued = r.DeliveryQueued(delivery_id="", content=message.content, principal=message.principal)
    return await session._add(
        info, queued, MAIN, message.scope, message.dispatch_id, message.fingerprint
    )


def info_error(info: SessionInfo) -> Failure | None:
    """Return why a session has failed, in short, if it has."""
    failure = info.failure if info.over == "failed" else None
    return Failure(failure.code, failure.message) if failure else None


async def wait_or_outage(
    session: Session[Any], delivery_id: str | None, timeout: Span | None, known: str | None
) -> Result[Any]:
    """Wait for a result on behalf of another process, and leave it to that to tell of an outage.

    With `known` the wait is also over when that is not the code of the error for which a provider
    is waited for: empty, if none is.
    """
    return await session._result_within(delivery_id, timeout, known=known, logs=False)


async def restore_state(session: Session[Any], snapshot: Snapshot) -> Receipt[Any]:
    """Have a session go on with a state that it had before, which may be larger than a message."""
    change = rollback_request(snapshot)
    return await session._add(await session.info(), change, MAIN, f"session:{session.id}", None)
