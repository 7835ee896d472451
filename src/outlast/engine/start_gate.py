"""Checks what a call needs before it may begin: its idempotency key, a thread slot here, a permit.

And first of all whether its lane may go on: a lane that has killed its workers, or whose session
is too large for them, may not. Owns the slots and permits of calls that have not begun. A call is
recorded as begun only when it has all of them. One that has to wait is left out of the action, and
where that leaves nothing to do, the lane rests. Refuses to know how slots and permits are shared
out: see `Executor.slot_for` and the store's `acquire`.
"""

from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    AskHuman,
    CallModel,
    CallWorkflow,
    CancelTurn,
    CompactContext,
    CompleteSession,
    CompleteTurn,
    FailSession,
    FailTurn,
    Park,
    RunTools,
    SettleDeliveries,
    Start,
    TakeReply,
)
from outlast.core.breaker import LONGEST_PAUSE
from outlast.core.compaction import summary_lost
from outlast.core.decide import (
    ask_human,
    earliest,
    rest_for,
    rest_for_provider,
    session_too_large,
    workers_lost,
)
from outlast.core.lane import Lane, OpenCall
from outlast.core.limit import Bound
from outlast.core.outcome import moves_on
from outlast.core.record import AnyRecord, Failure, IdempotencyKey
from outlast.core.request import changed_call
from outlast.core.result import ModelFailed, SummaryLost
from outlast.engine.executor import CallSlot, Executor
from outlast.engine.lane_folds import insist
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.provider_breaker import ProviderBreakers
from outlast.engine.queue_gate import QueueGate
from outlast.store import EffectClaim, Store

CLOSING = (
    SettleDeliveries,
    CompleteTurn,
    FailTurn,
    CancelTurn,
    CompleteSession,
    FailSession,
    Park,
)
"""The actions by which something ends or rests, and for which no large value has to be known."""
HELD_POLL = 500
"""How long to wait, in milliseconds, before looking again at a key that another call holds, while
other calls of the lane run."""
PERMIT_POLL = 1000
"""The same, before asking again for a permit."""


class StartGate:
    """The gate of one lane."""

    def __init__(
        self,
        lane: OwnedLane,
        executor: Executor,
        store: Store,
        clock: Clock,
        breakers: ProviderBreakers,
        session_bytes: int = 0,
    ) -> None:
        self._lane = lane
        self._executor = executor
        self._store = store
        self._clock = clock
        self._breakers = breakers
        self._session_bytes = session_bytes
        self._queue = QueueGate(lane, store, clock)
        self._line: tuple[Bound, ...] = ()
        self._slots: dict[str, CallSlot] = {}

    async def let_in(self, action: AnyAction) -> AnyAction | None:
        """Return an action as far as it may begin now; None if the state is another by now."""
        # From what is nearest to what is shared most: keys, slots in this process, permits in the
        # store. A permit that is held while something else is waited for keeps other workers idle.
        found: AnyAction | None = action
        if type(action) is RunTools and (again := self._ask_again(action)):
            return again
        # Only sessions that were started in a queue have one.
        place = self._lane.folds.state.place
        if place and not self._may_probe(action):
            found = await self._queue.let_in(action, place)
        if type(found) is RunTools and takes_key(found):
            found = await self._without_duplicates(found)
        # A lane that decided otherwise meanwhile must not keep slots for calls it no longer begins.
        if self._slots:
            self.leave_slots(but=ids_of(found) if found else ())
        if type(found) is RunTools:
            found = self._with_slots(found)
        if type(found) is CallModel and not found.running and self._lane.folds.state.outage:
            found = await self._past_breaker(found)
            if place and isinstance(found, CallModel) and not found.probes:
                found = await self._queue.let_in(found, place)
        if type(found) is CompactContext and found.may_sum_up:
            found = await self._with_summary(found)
        if found is None or not (bounds := self._bounds(found)):
            return found
        permitted = await self._as_permitted(found, bounds)
        if permitted is not found:
            self._leave_slots_of_unpermitted(permitted)
        return permitted

    # Calls that were approved, and do not fit the code of today

    def _ask_again(self, action: RunTools) -> AskHuman | None:
        """Ask a human again whose approval no call can be run with: it must not be spent on that.

        It was given before a deployment changed the tool's arguments.
        """
        for begin in action.start:
            call = self._call(begin.call_id)
            if call.status == "approved" and (misfit := self._executor.misfit(call)):
                policy = self._executor.policy
                return ask_human(
                    call, "interrupted" if call.attempt else "approval", policy, misfit
                )
        return None

    # Lanes that must not go on

    def goes_on(self, action: AnyAction) -> bool:
        """Say whether an action would carry a turn on, or begin one.

        Of a lane that is whole only model calls are asked about: calls that run may end.
        """
        if type(action) is CallModel:
            return not action.running
        if type(action) is CompactContext:
            return not self._lane.folds.state.blocked
        if type(action) is CallWorkflow:
            return True
        folds = self._lane.folds
        if folds.state.is_run and type(action) is RunTools:
            return bool(action.start)
        has_turn = folds.state.turn is not None
        return folds.is_outline and has_turn and not isinstance(action, CLOSING)

    def find_block(self) -> Failure | None:
        """Return why no turn of the lane may go on, if that is so."""
        lane, most = self._lane, self._session_bytes
        if lane.deaths >= self._executor.policy.max_crashes:
            return workers_lost(lane.deaths)
        return session_too_large(lane.size, most) if 0 < most < lane.size else None

    # Calls that must not be made twice

    async def _without_duplicates(self, action: RunTools) -> RunTools | Park | None:
        """Leave out calls whose key another call has, and rest, if nothing else is to be done.

        None if one got that call's outcome.
        """
        keyed = [self._call(begin.call_id) for begin in action.start if begin.key]
        # Committed apart: a key that another worker takes first must not cost what is known.
        await self._lane.flush()
        others = [(call, await self._other(call)) for call in keyed]
        if ended := [e for call, other in others if other for e in same_outcome(call, other)]:
            for call, other in others:
                if other and other.state == "done":
                    self._note(call)
            self._lane.write(ended)
            return None
        held = {call.call_id for call, other in others if other}
        taken: set[IdempotencyKey] = set()
        start: list[Start] = []
        for begin in action.start:
            if begin.call_id not in held and begin.key not in taken:
                start.append(begin)
                taken |= {begin.key} if begin.key else set()
        if len(start) == len(action.start):
            return action
        now = self._lane.earliest()
        if not (start or action.report or action.running or action.contact):
            return rest_for(self._lane.folds.state, ("key",), now)
        # There is no hint that a key is free.
        until = min(action.until, now + HELD_POLL)
        return replace(action, start=tuple(start), until=until, awaits_key=bool(held))

    def _note(self, call: OpenCall) -> None:
        """Let policies know of a call that has its outcome from another: it has succeeded."""
        folds = self._lane.folds
        if note := self._executor.note_of_tool(call, folds.state, folds.slices):
            self._lane.write([note])

    async def _other(self, call: OpenCall) -> EffectClaim | None:
        """Return another call's hold on this call's key, if there is one."""
        assert call.dedupe is not None
        wanted = call.dedupe
        # Only a look, which spares a commit. What decides is the commit of `tool.started`: of two
        # that take the same key at once one is refused.
        effect = await insist(self._clock, self._store.log.effect, wanted.scope, wanted.key)
        if effect is None or effect.state == "free":
            return None
        ours = (effect.session_id, effect.call_id) == (self._lane.session_id, call.call_id)
        return None if ours else effect

    def with_new_key(self, action: TakeReply) -> TakeReply:
        """Let a call whose arguments a human changes have the key of these."""
        call = changed_call(self._lane.folds.state, action.reply)
        if call is None:
            return action
        return replace(action, dedupe=self._executor.key_of_tool(call, self._lane.folds.state))

    # Calls that must wait for a slot in this process

    def _with_slots(self, action: RunTools) -> RunTools:
        """Leave out calls that have to wait for a slot; the lane is woken when they have it."""
        waiting = [begin for begin in action.start if not self._has_slot(begin)]
        if not waiting:
            return action
        return replace(action, start=tuple(each for each in action.start if each not in waiting))

    def _has_slot(self, begin: Start) -> bool:
        slot = self._slots.get(begin.call_id)
        if slot is None:
            call = self._call(begin.call_id)
            folds = self._lane.folds
            slot = self._executor.slot_for(call, begin, folds.state.tenant, folds.wakeup.set)
            if slot is None:
                return True
            self._slots[begin.call_id] = slot
        return slot.is_taken

    def hand_over_slot(self, call_id: str) -> CallSlot | None:
        """Return the slot of a call that begins now: from now on it is the call's to leave."""
        return self._slots.pop(call_id, None)

    @property
    def _waiting_for_slots(self) -> list[str]:
        return [call_id for call_id, slot in self._slots.items() if not slot.is_taken]

    def leave_slots(self, but: Collection[str] = ()) -> None:
        """Leave the slots of calls that have not begun, taken or waited for."""
        left = [self._slots.pop(each) for each in [*self._slots] if each not in but]
        # Release waiters before holders; otherwise a waiter would be handed a slot that a holder
        # releases in this same loop.
        for slot in sorted(left, key=lambda slot: slot.is_taken):
            slot.leave()

    def _leave_slots_of_unpermitted(self, action: AnyAction) -> None:
        """Give up the slots of calls that are waiting for a permit.

        Otherwise two lanes can hand one slot back and forth without either getting its permit.
        The calls ask again when the lane looks again.
        """
        unlimited = [each for each in self._waiting_for_slots if not self._limits(each)]
        self.leave_slots(but={*ids_of(action), *unlimited})

    # Calls that must wait for a provider

    def _may_probe(self, action: AnyAction) -> bool:
        """Say whether a call may be the one that asks whether its provider answers again.

        It stands in that line only: were it to wait in a queue as well, all behind it would.
        """
        return isinstance(action, CallModel) and self._lane.folds.state.outage is not None

    async def _past_breaker(self, action: CallModel) -> CallModel | Park | None:
        """Let a call that waits for its provider stand in line while that is away.

        The first in line is the probe. It keeps its place until it has asked, and no longer:
        another call's question may be the one that is answered. None if another of the agent's
        models answers by now: the lane moves on to that one.
        """
        lane = self._lane.folds.state
        is_parked = lane.turn and lane.turn.model and lane.turn.model.parked
        provider = self._executor.provider_of(lane)
        if not is_parked or provider is None:
            return action
        breaker = await self._breakers.look(provider)
        if breaker is None:
            if self._lane.has_permit(action.call_id):
                await self._breakers.leave_line(provider)
                # It may stand in the line of a model that this worker's code has replaced.
                await self._breakers.forget_replaced(provider.agent, self._executor.providers())
            return action
        if other := await self._find_answering(lane):
            self._lane.write([moves_on(lane, self._executor.policy, other, self._lane.date())])
            await self._lane.flush()
            return None
        await self._lane.flush()  # a probe that failed gives up its place, and goes to the end
        permits = await self._lane.acquire({action.call_id: (breaker.bound,)})
        if not permits[action.call_id].granted:
            return self._rest_in_line(lane)
        # The probe before this one may have failed just now, in another worker.
        breaker = await self._breakers.look(provider, fresh=True)
        if breaker and breaker.is_paused(self._lane.earliest()):
            return self._rest_in_line(lane, breaker.next_at)
        self._line = (breaker.bound,) if breaker else ()
        return replace(action, probes=True)

    async def _find_answering(self, lane: Lane) -> str:
        """Return another of the agent's models whose provider is not known to be away."""
        assert lane.turn is not None
        policy = self._executor.policy
        for model in policy.models_after(policy.model(lane.turn.fallback)):
            provider = self._executor.provider_of(lane, model)
            if provider and await self._breakers.look(provider) is None:
                return model
        return ""

    def _rest_in_line(self, lane: Lane, next_at: int = 0) -> Park:
        """Rest until it is this lane's turn; one with other models looks after those, too."""
        policy = self._executor.policy
        if len(policy.models) > 1:
            pause = int(self._clock.jitter(LONGEST_PAUSE))
            next_at = earliest(next_at, self._lane.earliest() + pause)
        return rest_for_provider(lane, policy, next_at)

    # Summaries

    async def _with_summary(self, action: CompactContext) -> CompactContext | None:
        """Say whether the model is asked for a summary. None if its provider is away: nothing waits
        for one, and old results are cleared instead."""
        folds = self._lane.folds
        if not self._executor.needs_summary(folds.slices, await folds.view(), action):
            return action
        model = self._executor.model_of(folds.state).name
        asked = replace(action, sums_up=True, model=model)
        breaker = await self._breakers.find_open(self._executor.provider_of(folds.state))
        if breaker is None:
            return asked
        failed = ModelFailed(breaker.error, kind="transient", is_asked=False)
        self._lane.write([*summary_lost(folds.state, asked, SummaryLost(failed))])
        return None

    # Calls that must wait for a permit

    async def _as_permitted(
        self, action: AnyAction, bounds: Mapping[str, tuple[Bound, ...]]
    ) -> AnyAction:
        """Leave out calls that may not begin yet; rest, if nothing else is to be done."""
        permits = await self._lane.acquire(bounds)
        waiting = {call_id: p.again_at for call_id, p in permits.items() if not p.granted}
        if not waiting:
            return action
        now = self._lane.earliest()
        again_at = min((at for at in waiting.values() if at), default=0)
        others: tuple[str, ...] = ("limit",)
        if isinstance(action, RunTools):
            others = ("limit", "key") if action.awaits_key else others
            start = tuple(begin for begin in action.start if begin.call_id not in waiting)
            goes_on = action.report or action.running or action.contact
            if start or goes_on or self._waiting_for_slots:
                # A permit that is granted to a lane at rest makes it ready; one at work has to ask.
                until = min(action.until, again_at or action.until, now + PERMIT_POLL)
                return replace(action, start=start, until=until)
        return rest_for(self._lane.folds.state, others, now, again_at)

    def _bounds(self, action: AnyAction) -> dict[str, tuple[Bound, ...]]:
        """Return the limits of the calls that an action would begin, if there are any."""
        if type(action) is RunTools:
            found: dict[str, tuple[Bound, ...]] = {}
            for begin in action.start:
                if bounds := self._limits(begin.call_id):
                    found[begin.call_id] = bounds
            return found
        if type(action) is CallModel and not action.running:
            lane, starts_turn = self._lane.folds.state, bool(action.delivery)
            bounds = self._executor.bounds_of_model(lane, starts_turn=starts_turn)
            # What a call asks for is all that it keeps: a probe asks for its place again.
            line = self._line if action.probes else ()
            return {action.call_id: (*line, *bounds)} if bounds else {}
        if type(action) is CompactContext and action.sums_up:
            bounds = self._executor.bounds_of_model(self._lane.folds.state, starts_turn=False)
            return {action.call_id: bounds} if bounds else {}
        return {}

    def _limits(self, call_id: str) -> tuple[Bound, ...]:
        return self._executor.bounds_of_tool(self._call(call_id), self._lane.folds.state)

    def _call(self, call_id: str) -> OpenCall:
        turn = self._lane.folds.state.turn
        assert turn is not None
        return turn.calls[call_id]


def takes_key(action: RunTools) -> bool:
    """Say whether an action begins calls that no other call with the same key may accompany."""
    for begin in action.start:  # noqa: SIM110 - a generator costs twice as much
        if begin.key:
            return True
    return False


def ids_of(action: AnyAction) -> Collection[str]:
    """Return the tool calls that an action would begin."""
    return [begin.call_id for begin in action.start] if isinstance(action, RunTools) else ()


def same_outcome(call: OpenCall, effect: EffectClaim) -> list[AnyRecord]:
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
