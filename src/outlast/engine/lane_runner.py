"""Takes a claimed lane forward until it has to wait or has ended.

Decides, writes down, commits before every effect, performs, writes down what came of
it, and again. The work itself runs in tasks beside the loop, so that what arrives
while a tool runs is looked at at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from outlast.clock import Clock
from outlast.core import codec
from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    CallModel,
    CancelTurn,
    CompleteSession,
    ExpireRequest,
    FailSession,
    FailTurn,
    RefuseReply,
    RunTools,
    SettleDeliveries,
    Start,
    TakeRelay,
    TakeReply,
)
from outlast.core.decide import decide
from outlast.core.lane import UNSTORABLE, OpenCall
from outlast.core.outcome import opening, outcome
from outlast.core.record import AnyRecord, Failure, MessageDelta, ReasoningDelta
from outlast.core.result import (
    Answered,
    ChildEnd,
    Interrupted,
    ModelFailed,
    Raised,
    Result,
    Returned,
    ToolEnd,
    ToolWaits,
    TurnStopped,
    is_contended,
    with_updates,
)
from outlast.core.slices import Slices
from outlast.engine.call_journal import LaneJournal
from outlast.engine.call_tasks import CallTasks
from outlast.engine.coalesce import DeltaStream
from outlast.engine.executor import CallSlot, Executor
from outlast.engine.owned_lane import LaneStale, OwnedLane
from outlast.engine.running_call import RunningCall
from outlast.engine.settings import WorkerSettings
from outlast.engine.start_gate import StartGate, takes_key
from outlast.errors import NotEncodable, OutlastError
from outlast.log.reader import read_outcome
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.engine")

STALE_PAUSE = 0.05
OF_A_TOOL = (Returned, Raised, Interrupted, ToolWaits)
TOKEN_TAKEN = Failure(
    "TOKEN_TAKEN", "another session took the continuation token that this call wanted to set"
)


class Unstorable(Exception):
    """What a tool came to cannot be written down."""


class LaneRunner:
    """One lane's journey in this worker."""

    def __init__(
        self,
        lane: OwnedLane,
        performer: Executor,
        store: Store,
        clock: Clock,
        settings: WorkerSettings,
        until_confirmed: Callable[[], Awaitable[None] | None],
    ) -> None:
        self.lane = lane
        self._performer = performer
        self._policy = performer.policy
        self._store = store
        self._clock = clock
        self._settings = settings
        self._until_confirmed = until_confirmed
        self._gate = StartGate(lane, performer, store)
        self._crew = CallTasks(clock, settings.stop_grace, lane.stirred, self._too_late)
        self._news = False
        self._stopping = False
        self._is_careful = False

    async def run(self) -> None:
        """Carry the lane until it was given back. Raises LaneLost if another has it now."""
        try:
            while True:
                try:
                    self._is_careful = self.lane.take_over()
                    return await self._carry()
                except LaneStale:
                    await self._abandon()
                    await asyncio.sleep(self._clock.jitter(STALE_PAUSE))
                    await self.lane.reload()
        finally:
            self._crew.close()
            await self._abandon()

    def nudge(self) -> None:
        """Something may have arrived: look."""
        self._news = True
        self.lane.stirred.set()

    def stop(self) -> None:
        """Begin nothing more, and give the lane back when what runs has ended."""
        self._stopping = True
        self.lane.stirred.set()

    # The loop

    async def _carry(self) -> None:
        while not self._stopping:
            action = await self._decide()
            if action.is_rest:
                if await self.lane.rest(action):  # type: ignore[arg-type]
                    return
            elif await self._open(action) and action.is_effect:
                if pause := self._until_confirmed():
                    await pause
                if not self._only_reads(action):
                    await self.lane.flush()
                    if pause := self._until_confirmed():  # a store may have been away for long
                        await pause
                await self._record(action, await self._perform(action))
        await self._wind_down()

    def _only_reads(self, action: AnyAction) -> bool:
        """Say whether an action may begin before the log knows of it: it has no effect.

        Only beside its answer: should it take its worker down, the log tells of a model call that
        was cut off. And not after a takeover, which may be for that reason.
        """
        if self._is_careful or not isinstance(action, RunTools) or not action.start:
            return False
        if not all(self._is_plain_read(begin) for begin in action.start):
            return False
        return self.lane.is_ahead_by(r.MessageCompleted)

    def _is_plain_read(self, begin: Start) -> bool:
        call = self._call(begin.call_id)
        tool = self._policy.tool(call.tool)
        is_rerun = tool.readonly and tool.on_interrupt == "rerun" and begin.attempt == 1
        return is_rerun and not self.lane.has_permit(call.call_id)

    async def _decide(self) -> AnyAction:
        """Decide what comes next, as far as rules, keys and limits let it begin now."""
        while True:
            arrived = self.lane.arrived
            action = decide(self.lane.state, self._policy, self.lane.now())
            allowed: AnyAction | None
            match action:
                case TakeReply():
                    allowed = await self._take_if_allowed(action)
                case TakeRelay() | ExpireRequest() | SettleDeliveries():
                    allowed = action  # it begins no call, so calls that wait for a slot keep it
                case _:
                    allowed = await self._gate.let_in(action)
            # What came while it was looked at may call for something else.
            if allowed is not None and arrived == self.lane.arrived:
                return allowed

    async def _take_if_allowed(self, action: TakeReply) -> TakeReply | RefuseReply:
        """Refuse an answer that is not its giver's to give, or that no call can run with.

        The session's handle has checked the same (`session/handle.py`). It is checked again here
        because the handle may be in a process that lacks the agent's code or has an older version
        of it, and because an answer may come from another session, which asked on its behalf.
        The handle's check tells the caller at once; this one is what guards the call.
        """
        reply, lane = action.reply, self.lane.state
        if await self._performer.may_answer(lane, reply):
            return self._gate.with_new_key(action)
        assert lane.turn is not None
        tool = lane.turn.calls[lane.turn.requests[reply.request_id].call_id].tool
        return RefuseReply(reply=reply, restricted=self._policy.tool(tool).restricted)

    async def _open(self, action: AnyAction) -> bool:
        """Write down what is about to be done; False if somebody was quicker: decide anew."""
        arrived = self.lane.arrived
        if self.lane.state.parent and isinstance(action, CompleteSession | FailSession):
            await self.lane.flush()
            end = await end_of(action, self.lane, self._store, self._performer)
            if arrived != self.lane.arrived:  # another lane may have ended it
                return False
            self.lane.report(end)  # to the parent, in the commit that ends this session
        records = opening(self.lane.state, action, self.lane.now())
        if takes_key(action) or isinstance(action, ExpireRequest) or is_relayed_expiry(action):
            return await self._try_to_open(records, arrived)
        self.lane.write(records)
        return True

    async def _try_to_open(self, records: list[AnyRecord], arrived: int) -> bool:
        """Commit what another call's key, or an answer that came just in time, stands against."""
        refused = await self.lane.attempt(lambda _: records, arrived)
        if refused and refused.arrivals:
            await self.lane.catch_up()
        return not refused

    async def _record(self, action: AnyAction, results: list[Result]) -> None:
        now = self.lane.now()
        for result in results:
            if isinstance(result, Returned) and is_contended(result):
                if not (other := await self._attempt(action, result, now)):
                    continue
                result = other
            if isinstance(result, TurnStopped):
                result = await self._without_contended(action, result, now)
            records = self._outcome(action, result, now)
            if isinstance(result, Returned | ToolWaits) and not can_be_stored(records):
                result = Interrupted(result.call_id, UNSTORABLE)
                records = self._outcome(action, result, now)
            self.lane.write(records)
            for child in result.children if isinstance(result, ToolWaits) else ():
                self.lane.start(child)

    async def _without_contended(
        self, action: AnyAction, stopped: TurnStopped, now: int
    ) -> TurnStopped:
        """Record the ends among others that depend on what others do, and leave them out."""
        left: list[ToolEnd] = []
        for end in stopped.ends:
            if not (isinstance(end, Returned) and is_contended(end)):
                left.append(end)
            elif other := await self._attempt(action, end, now):
                left.append(other)
        return TurnStopped(tuple(left))

    def _outcome(self, action: AnyAction, result: Result, now: int) -> list[AnyRecord]:
        lane = self.lane
        return outcome(lane.state, action, result, self._policy, now, lane.slices)

    async def _attempt(
        self, action: AnyAction, result: Returned, now: int
    ) -> Raised | Interrupted | None:
        """Record an end that depends on what others do meanwhile, or return what it is instead."""
        try:
            refused = await self.lane.attempt(partial(self._concluded, action, result, now))
        except Unstorable:
            return Interrupted(result.call_id, UNSTORABLE)
        return Raised(result.call_id, TOKEN_TAKEN) if refused else None

    def _concluded(
        self, action: AnyAction, result: Returned, now: int, slices: Slices
    ) -> list[AnyRecord]:
        try:
            whole = with_updates(result, slices)
        except Exception as error:  # the tool's own function, of a value that it did not foresee
            log.exception("a tool's update failed; its outcome is unknown")
            raise Unstorable from error
        records = self._outcome(action, whole, now)
        if not can_be_stored(records):
            raise Unstorable
        return records

    async def _perform(self, action: AnyAction) -> list[Result]:
        """Do what the action says, as far as the next result or arrival."""
        match action:
            case CallModel():
                if not action.running:
                    self._begin_model_call(action)
            case RunTools():
                for start in action.start:
                    self._begin_tool(start)
                if action.report and self._crew.is_idle:
                    return []
                if self.lane.is_ahead:
                    await self._record_beside(action.until)
            case CancelTurn() | FailTurn():
                if isinstance(action, FailTurn):
                    log.warning(
                        "a turn failed", extra={"turn": action.turn, "code": action.error.code}
                    )
                ends = await self._crew.stop()
                return [TurnStopped(tuple(end for end in ends if isinstance(end, OF_A_TOOL)))]
        return await self._next_results(action.until)  # type: ignore[union-attr]

    async def _record_beside(self, until: int) -> None:
        """Commit what began already, unless it has ended by now: then its end goes with it."""
        await asyncio.sleep(0)
        if not self._crew.results:
            self._set_alarm(until)  # a store may be away for longer than a call may take
            await self.lane.flush()

    async def _next_results(self, until: int) -> list[Result]:
        """Wait for something to happen; return the results that are there by then."""
        if not (self._crew.results or self._stopping):
            self._set_alarm(until)
            await self.lane.stirred.wait()
        self.lane.stirred.clear()
        self._crew.check()
        if self._news:
            self._news = False
            await self.lane.catch_up()
        # Whatever it was, decide anew: a transactional call ends with nothing to return.
        return self._crew.take_results()

    def _set_alarm(self, until: int) -> None:
        self._crew.set_alarm((until - self.lane.now()) / 1000)

    def _too_late(self, call_id: str) -> Result:
        lane = self.lane.state
        assert lane.turn is not None
        is_tool = call_id in lane.turn.calls
        return Interrupted(call_id, "timeout") if is_tool else self._performer.too_late(lane)

    # The work

    def _begin_model_call(self, action: CallModel) -> None:
        ask = partial(self._ask_model, action)
        self._crew.begin(action.call_id, self._performer.patience, ask)

    def _begin_tool(self, start: Start) -> None:
        call = self._call(start.call_id)
        place = self._gate.pass_through(start.call_id)
        run = partial(self._run_tool, call, start, place)
        work = self._crew.begin(start.call_id, self._performer.patience_with(call.tool), run)
        if place:
            work.task.add_done_callback(lambda _: place.leave())

    async def _ask_model(self, action: CallModel, work: RunningCall) -> Answered | ModelFailed:
        stream: DeltaStream | None = None

        def hear(delta: MessageDelta | ReasoningDelta | None) -> None:
            nonlocal stream
            if work.is_overdue or not work.is_awaited:
                return
            work.show_life()
            if delta is not None:
                stream = stream or DeltaStream(self.lane, work, self._settings.flush)
                stream.add(delta)

        try:
            view = await self.lane.view()
            lane, slices = self.lane.state, self.lane.slices
            result = await self._performer.call_model(lane, slices, view, action, hear)
        except asyncio.CancelledError:
            if work.is_overdue:
                result = self._performer.too_late(self.lane.state)
            elif work.is_stopped:
                raise
            else:
                result = self._performer.cut_off(self.lane.state)
        finally:
            work.end()
            if stream:
                await stream.end()
        return stream.complete(result) if stream else result

    async def _run_tool(
        self, call: OpenCall, start: Start, place: CallSlot | None, work: RunningCall
    ) -> ToolEnd | None:
        desk = LaneJournal(
            self.lane, work, place, self._policy, self._store, self._clock, self._settings
        )
        try:
            end = await self._performer.run_tool(call, start, desk)
        except asyncio.CancelledError:
            if not work.is_stopped:
                return Interrupted(call.call_id, "cancelled")
            if not work.is_overdue:
                raise
        else:
            # What a tool raises while it is being stopped says nothing of what it did.
            if not (work.is_overdue and isinstance(end, Raised)):
                return end
        finally:
            with suppress(asyncio.CancelledError):  # what it came to is known, and stands
                await desk.end()
        return Interrupted(call.call_id, "timeout")

    def _call(self, call_id: str) -> OpenCall:
        assert self.lane.state.turn is not None
        return self.lane.state.turn.calls[call_id]

    # Stopping

    async def _wind_down(self) -> None:
        """Let what runs end for a while, record it, and hand the lane back."""
        self._gate.leave_places()
        await self.lane.flush()
        await self._crew.wait(self._settings.grace)
        self._crew.check()
        results = self._crew.take_results()
        action = decide(self.lane.state, self._policy, self.lane.now())
        await self._record(action, results)
        await self._abandon()
        await self.lane.hand_back()

    async def _abandon(self) -> None:
        self._gate.leave_places()
        await self._crew.abandon()


async def end_of(
    action: CompleteSession | FailSession, lane: OwnedLane, store: Store, performer: Executor
) -> ChildEnd:
    """Return what a session that ends came to: its last turn's answer, or why there is none."""
    if isinstance(action, FailSession):
        return ChildEnd(error=action.error)
    if not action.turn:
        return ChildEnd(error=Failure("ENDED", action.reason or "somebody ended it"))
    before = lane.head + 1
    outcome = await lane.insist(
        read_outcome, store, lane.session_id, before, lambda turn: turn == action.turn
    )
    assert outcome is not None
    try:
        return ChildEnd(value=performer.output_of(outcome.text, outcome.output))
    except OutlastError as error:  # the code of today cannot read what it had said
        return ChildEnd(error=Failure(error.code, error.message))


def is_relayed_expiry(action: AnyAction) -> bool:
    """Say whether the parent has told a child that its request's time is up."""
    return isinstance(action, TakeRelay) and action.relay.how == "expired"


def can_be_stored(records: list[AnyRecord]) -> bool:
    """Say whether the log can take records: a tool may put anything into them."""
    try:
        codec.encode(records)
    except NotEncodable:
        return False
    return True
