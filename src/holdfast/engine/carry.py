"""Takes a claimed lane forward until it has to wait or has ended.

Decides, writes down, commits before every effect, performs, writes down what came of
it, and again. The work itself runs in tasks beside the loop, so that what arrives
while a tool runs is looked at at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from holdfast.clock import Clock
from holdfast.core import codec
from holdfast.core import record as r
from holdfast.core.action import (
    AnyAction,
    CallModel,
    CancelTurn,
    CompleteSession,
    FailSession,
    FailTurn,
    Park,
    RunTools,
    Settle,
    Start,
)
from holdfast.core.decide import decide, rest_for
from holdfast.core.lane import Call
from holdfast.core.limit import Bound
from holdfast.core.outcome import opening, outcome
from holdfast.core.record import AnyRecord, Failure, MessageDelta, ReasoningDelta
from holdfast.core.request import changed_call
from holdfast.core.result import (
    Answered,
    ChildEnd,
    Interrupted,
    ModelFailed,
    Raised,
    Result,
    Returned,
    Stopped,
    ToolEnd,
    Waits,
    is_contended,
    with_updates,
)
from holdfast.core.slices import Slices
from holdfast.engine.desk import CallDesk
from holdfast.engine.owned import LaneStale, OwnedLane
from holdfast.engine.performer import Performer
from holdfast.engine.settings import WorkerSettings
from holdfast.engine.stream import DeltaStream
from holdfast.engine.work import Work
from holdfast.errors import HoldfastError, NotEncodable
from holdfast.reading import read_outcome
from holdfast.store import Effect, Store

Do = Callable[[], Awaitable[Result | None]]

NEVER = float("inf")
STALE_PAUSE = 0.05
HELD_POLL = 500
"""How long to wait, in milliseconds, before looking again at a key that another call holds, while
other calls of the lane run."""
TOKEN_TAKEN = Failure(
    "TOKEN_TAKEN", "another session took the continuation token that this call wanted to set"
)
PERMIT_POLL = 1000
"""The same, before asking again for a permit."""


class Unstorable(Exception):
    """What a tool came to cannot be written down."""


class Carrier:
    """One lane's journey in this worker."""

    def __init__(
        self,
        lane: OwnedLane,
        performer: Performer,
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
        self._work: dict[str, Work] = {}
        self._results: list[Result] = []
        self._broken: BaseException | None = None
        self._alarm: tuple[float, asyncio.TimerHandle] | None = None
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
            if self._alarm is not None:
                self._alarm[1].cancel()
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
            action = decide(self.lane.state, self._policy, self.lane.now())
            if isinstance(action, Settle):
                return self._with_new_key(await self._as_allowed(action))
            if not isinstance(action, RunTools):
                return await self._as_permitted(action)
            if found := await self._without_duplicates(action):
                return await self._as_permitted(found)

    async def _as_allowed(self, action: Settle) -> Settle:
        """Refuse an answer that is not its giver's to give, whoever let it in."""
        reply = action.reply
        if reply is None or await self._performer.may_answer(self.lane.state, reply):
            return action
        return msgspec.structs.replace(action, refused=True)

    async def _open(self, action: AnyAction) -> bool:
        """Write down what is about to be done; False if somebody was quicker: decide anew."""
        if self.lane.state.parent and isinstance(action, CompleteSession | FailSession):
            await self._report(action)
        records = opening(self.lane.state, action, self.lane.now())
        if takes_key(action) or (isinstance(action, Settle) and action.expired):
            return await self._try_to_open(records)
        self.lane.write(records)
        return True

    async def _try_to_open(self, records: list[AnyRecord]) -> bool:
        """Commit what another call's key, or an answer that came just in time, stands against."""
        refused = await self.lane.attempt(lambda _: records)
        if refused and refused.arrivals:
            await self.lane.catch_up()
        return not refused

    async def _report(self, action: CompleteSession | FailSession) -> None:
        """Tell the parent what this session came to, in the commit that ends it."""
        await self.lane.flush()
        self.lane.report(await end_of(action, self.lane, self._store, self._performer))

    async def _record(self, action: AnyAction, results: list[Result]) -> None:
        now = self.lane.now()
        for result in results:
            if isinstance(result, Returned) and is_contended(result):
                if not (other := await self._attempt(action, result, now)):
                    continue
                result = other
            records = self._outcome(action, result, now)
            if isinstance(result, Returned | Waits) and not can_be_stored(records):
                result = Interrupted(result.call_id, "unstorable")
                records = self._outcome(action, result, now)
            self.lane.write(records)
            for child in result.children if isinstance(result, Waits) else ():
                self.lane.start(child)

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
            return Interrupted(result.call_id, "unstorable")
        return Raised(result.call_id, TOKEN_TAKEN) if refused else None

    def _concluded(
        self, action: AnyAction, result: Returned, now: int, slices: Slices
    ) -> list[AnyRecord]:
        try:
            whole = with_updates(result, slices)
        except Exception as error:  # the tool's own function, of a value that it did not foresee
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
                if action.report and not (self._work or self._results):
                    return []
                if self.lane.is_ahead:
                    await self._record_beside(action.until)
            case CancelTurn() | FailTurn():
                return [await self._stop_work()]
        return await self._next_results(action.until)  # type: ignore[union-attr]

    async def _record_beside(self, until: int) -> None:
        """Commit what began already, unless it has ended by now: then its end goes with it."""
        await asyncio.sleep(0)
        if not self._results:
            self._set_alarm(until)  # a store may be away for longer than a call may take
            await self.lane.flush()

    async def _next_results(self, until: int) -> list[Result]:
        """Wait for something to happen; return the results that are there by then."""
        if not (self._results or self._stopping):
            await self._stir(until)
            if self._broken:
                raise self._broken
            if self._news:
                self._news = False
                await self.lane.catch_up()
        # Whatever it was, decide anew: a transactional call ends with nothing to return.
        results, self._results = self._results, []
        return results

    async def _stir(self, until: int) -> None:
        """Wait until something stirs, until a time, or until patience with a call ends."""
        self._set_alarm(until)
        await self.lane.stirred.wait()
        self.lane.stirred.clear()

    def _set_alarm(self, until: int | None = None) -> None:
        """Have the lane stir in time. An alarm that rings too early is set again."""
        now = self._clock.monotonic()
        at = NEVER if until is None else now + (until - self.lane.now()) / 1000
        for work in self._work.values():
            at = min(at, work.due_at)
        if at == NEVER:
            return
        if self._alarm is not None:
            if self._alarm[0] <= at:
                return
            self._alarm[1].cancel()
        timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._ring)
        self._alarm = (at, timer)

    def _ring(self) -> None:
        self._alarm = None
        now = self._clock.monotonic()
        for work in [work for work in self._work.values() if work.due_at <= now]:
            if work.is_overdue:
                self._leave_behind(work)
            else:
                work.give_up(self._settings.stop_grace)
        self._set_alarm()  # the lane may be held up, by the very call that is to be stopped
        self.lane.stirred.set()

    def _leave_behind(self, work: Work) -> None:
        """Wait no longer for a call that does not even stop."""
        self._dismiss(work)
        lane = self.lane.state
        assert lane.turn is not None
        if work.call_id in lane.turn.calls:
            self._results.append(Interrupted(work.call_id, "timeout"))
        else:
            self._results.append(self._performer.too_late(lane))

    # The work

    def _begin_model_call(self, action: CallModel) -> None:
        work = Work(action.call_id, self._performer.patience, self._clock)
        self._begin(work, partial(self._ask_model, work, action))

    def _begin_tool(self, start: Start) -> None:
        call = self._call(start.call_id)
        work = Work(start.call_id, self._performer.patience_with(call.tool), self._clock)
        self._begin(work, partial(self._run_tool, work, call, start))

    def _begin(self, work: Work, do: Do) -> None:
        self._work[work.call_id] = work
        work.task = asyncio.create_task(self._see_through(work, do))

    async def _see_through(self, work: Work, do: Do) -> None:
        try:
            result = await do()
            if result is not None and work.is_awaited:
                self._results.append(result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again by the lane's own loop
            if work.is_awaited:
                self._broken = error
        finally:
            if work.is_awaited:
                self._dismiss(work)
                self.lane.stirred.set()

    def _dismiss(self, work: Work) -> None:
        """Have nothing to do any more with a call, of which something may still be running."""
        del self._work[work.call_id]
        work.is_awaited = False

    async def _ask_model(self, work: Work, action: CallModel) -> Answered | ModelFailed:
        stream: DeltaStream | None = None

        def hear(delta: MessageDelta | ReasoningDelta | None) -> None:
            nonlocal stream
            if work.is_overdue or not work.is_awaited:
                return
            work.show_life()
            if delta is not None:
                stream = stream or DeltaStream(self.lane, self._settings.flush)
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

    async def _run_tool(self, work: Work, call: Call, start: Start) -> ToolEnd | None:
        desk = CallDesk(self.lane, work, self._policy, self._store, self._clock)
        try:
            end = await self._performer.run_tool(call, start, desk)
        except asyncio.CancelledError:
            if not work.is_stopped:
                return Interrupted(call.call_id, "cancelled")
            if not work.is_overdue:
                raise
        else:
            # What a tool raises while it is being stopped says nothing of what it did.
            if not (work.is_overdue and isinstance(end, Raised) and end.begun):
                return end
        return Interrupted(call.call_id, "timeout")

    def _call(self, call_id: str) -> Call:
        assert self.lane.state.turn is not None
        return self.lane.state.turn.calls[call_id]

    # Calls that must not be made twice

    async def _without_duplicates(self, action: RunTools) -> RunTools | Park | None:
        """Leave out calls whose key another call has, and rest, if nothing else is to be done.

        None if one got that call's outcome.
        """
        if not takes_key(action):
            return action
        keyed = [self._call(begin.call_id) for begin in action.start if begin.key]
        # Committed apart: a key that another worker takes first must not cost what is known.
        await self.lane.flush()
        others = [(call, await self._other(call)) for call in keyed]
        if ended := [e for call, other in others if other for e in same_outcome(call, other)]:
            self.lane.write(ended)
            return None
        held = {call.call_id for call, other in others if other}
        taken: set[str] = set()
        start: list[Start] = []
        for begin in action.start:
            if begin.call_id not in held and begin.key not in taken:
                start.append(begin)
                taken |= {begin.key} if begin.key else set()
        if len(start) == len(action.start):
            return action
        now = self.lane.now()
        if not (start or action.report or action.running):
            return rest_for(self.lane.state, ("key",), now)
        until = min(action.until, now + HELD_POLL)
        return msgspec.structs.replace(
            action, start=tuple(start), until=until, awaits_key=bool(held)
        )

    def _with_new_key(self, action: Settle) -> Settle:
        """Let a call whose arguments a human changes have the key of these."""
        call = changed_call(self.lane.state, action.reply) if action.reply else None
        if call is None:
            return action
        key = self._performer.key_of_tool(call, self.lane.state)
        return msgspec.structs.replace(action, dedupe=key)

    async def _other(self, call: Call) -> Effect | None:
        """Return another call's hold on this call's key, if there is one."""
        scope, _, key = call.dedupe.partition("\n")
        effect = await self.lane.insist(self._store.effect, scope, key)
        if effect is None or effect.state == "free":
            return None
        ours = (effect.session_id, effect.call_id) == (self.lane.session_id, call.call_id)
        return None if ours else effect

    # Calls that must wait for a place

    async def _as_permitted(self, action: AnyAction) -> AnyAction:
        """Leave out calls that may not begin yet; rest, if nothing else is to be done."""
        bounds = self._bounds(action)
        if not bounds:
            return action
        permits = await self.lane.acquire(bounds)
        waiting = {call_id: p.again_at for call_id, p in permits.items() if not p.granted}
        if not waiting:
            return action
        now = self.lane.now()
        again_at = min((at for at in waiting.values() if at), default=0)
        others: tuple[str, ...] = ("limit",)
        if isinstance(action, RunTools):
            others = ("limit", "key") if action.awaits_key else others
            start = tuple(begin for begin in action.start if begin.call_id not in waiting)
            if start or action.report or action.running:
                until = min(action.until, again_at or action.until, now + PERMIT_POLL)
                return msgspec.structs.replace(action, start=start, until=until)
        return rest_for(self.lane.state, others, now, again_at)

    def _bounds(self, action: AnyAction) -> dict[str, tuple[Bound, ...]]:
        """Return the limits of the calls that an action would begin, if there are any."""
        match action:
            case CallModel(running=False):
                bounds = self._performer.bounds_of_model(starts_turn=bool(action.delivery))
                return {action.call_id: bounds} if bounds else {}
            case RunTools(start=start) if start:
                found: dict[str, tuple[Bound, ...]] = {}
                for begin in start:
                    call = self._call(begin.call_id)
                    if bounds := self._performer.bounds_of_tool(call, self.lane.state):
                        found[call.call_id] = bounds
                return found
        return {}

    # Stopping

    async def _stop_work(self) -> Stopped:
        """Signal all that runs, give it a little time, and return what ended by itself."""
        for work in self._work.values():
            work.cancel()
        await self._wait_for_work(self._settings.stop_grace)
        # What is being recorded already is out of our hands.
        if ending := [work.task for work in self._work.values() if work.is_ending]:
            await asyncio.wait(ending)
        if self._broken:
            raise self._broken
        self._dismiss_all()
        ends, self._results = self._results, []
        return Stopped(tuple(end for end in ends if not isinstance(end, Answered | ModelFailed)))  # type: ignore[misc]

    async def _wind_down(self) -> None:
        """Let what runs end for a while, record it, and hand the lane back."""
        await self.lane.flush()
        await self._wait_for_work(self._settings.grace)
        if self._broken:
            raise self._broken
        results, self._results = self._results, []
        action = decide(self.lane.state, self._policy, self.lane.now())
        await self._record(action, results)
        await self._abandon()
        await self.lane.hand_back()

    async def _abandon(self) -> None:
        for work in self._work.values():
            work.stop()
        await self._wait_for_work(self._settings.stop_grace)
        self._dismiss_all()
        self._results.clear()
        self._broken = None

    def _dismiss_all(self) -> None:
        for work in [*self._work.values()]:
            self._dismiss(work)

    async def _wait_for_work(self, seconds: float) -> None:
        if tasks := [work.task for work in self._work.values()]:
            await asyncio.wait(tasks, timeout=seconds)


async def end_of(
    action: CompleteSession | FailSession, lane: OwnedLane, store: Store, performer: Performer
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
    except HoldfastError as error:  # the code of today cannot read what it had said
        return ChildEnd(error=Failure(error.code, error.message))


def takes_key(action: AnyAction) -> bool:
    """Say whether an action begins calls that no other call with the same key may accompany."""
    return isinstance(action, RunTools) and any(begin.key for begin in action.start)


def can_be_stored(records: list[AnyRecord]) -> bool:
    """Say whether the log can take records: a tool may put anything into them."""
    try:
        codec.encode(records)
    except NotEncodable:
        return False
    return True


def same_outcome(call: Call, effect: Effect) -> list[AnyRecord]:
    """Return the outcome that a call shares with the one that had its key before."""
    other = f"{effect.session_id}:{effect.call_id}"
    match effect.state:
        case "done":
            value, message = msgspec.json.decode(effect.value)
            return [
                r.ToolCompleted(
                    call_id=call.call_id,
                    attempt=call.attempt,
                    value=value,
                    message=message,
                    same_as=other,
                )
            ]
        case "unknown":
            reason = f"the same call was interrupted as {other}"
            return [r.ToolInterrupted(call_id=call.call_id, attempt=call.attempt, reason=reason)]
    return []
