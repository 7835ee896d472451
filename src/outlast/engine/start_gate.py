"""What stands before a call may begin: its key, its place in the fleet, its place here.

Nothing is written down as begun before it has all of them. What has to wait is left out of the
action, and where that leaves nothing to do, the lane rests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeGuard

import msgspec
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import AnyAction, CallModel, Park, RunTools, Start, TakeReply
from outlast.core.decide import rest_for
from outlast.core.lane import OpenCall
from outlast.core.limit import Bound
from outlast.core.record import AnyRecord
from outlast.core.request import changed_call
from outlast.engine.executor import CallSlot, Executor
from outlast.engine.owned_lane import OwnedLane
from outlast.store import EffectClaim, Store

HELD_POLL = 500
"""How long to wait, in milliseconds, before looking again at a key that another call holds, while
other calls of the lane run."""
PERMIT_POLL = 1000
"""The same, before asking again for a permit."""


class StartGate:
    """One lane's."""

    def __init__(self, lane: OwnedLane, performer: Executor, store: Store) -> None:
        self._lane = lane
        self._performer = performer
        self._store = store
        self._places: dict[str, CallSlot] = {}

    async def let_in(self, action: AnyAction) -> AnyAction | None:
        """Return an action as far as it may begin now; None if the state is another by now."""
        found: AnyAction | None = action
        if takes_key(action):
            found = await self._without_duplicates(action)
        if self._places:
            self.leave_places(but=ids_of(found) if found else ())
        if isinstance(found, RunTools):
            found = self._with_places(found)
        if found is None or not (bounds := self._bounds(found)):
            return found
        permitted = await self._as_permitted(found, bounds)
        if permitted is not found:
            self._give_way(permitted)
        return permitted

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
            self._lane.write(ended)
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
        now = self._lane.now()
        if not (start or action.report or action.running):
            return rest_for(self._lane.state, ("key",), now)
        until = min(action.until, now + HELD_POLL)
        return replace(action, start=tuple(start), until=until, awaits_key=bool(held))

    async def _other(self, call: OpenCall) -> EffectClaim | None:
        """Return another call's hold on this call's key, if there is one."""
        scope, _, key = call.dedupe.partition("\n")
        effect = await self._lane.insist(self._store.effect, scope, key)
        if effect is None or effect.state == "free":
            return None
        ours = (effect.session_id, effect.call_id) == (self._lane.session_id, call.call_id)
        return None if ours else effect

    def with_new_key(self, action: TakeReply) -> TakeReply:
        """Let a call whose arguments a human changes have the key of these."""
        call = changed_call(self._lane.state, action.reply)
        if call is None:
            return action
        return replace(action, dedupe=self._performer.key_of_tool(call, self._lane.state))

    # Calls that must wait for a place here

    def _with_places(self, action: RunTools) -> RunTools:
        """Leave out calls that have to wait for room in this process; the lane stirs then."""
        start = tuple(begin for begin in action.start if self._has_place(begin))
        return action if len(start) == len(action.start) else replace(action, start=start)

    def _has_place(self, begin: Start) -> bool:
        place = self._places.get(begin.call_id)
        if place is None:
            call = self._call(begin.call_id)
            place = self._performer.place_for(call, begin, self._lane.stirred.set)
            if place is None:
                return True
            self._places[begin.call_id] = place
        return place.is_taken

    def pass_through(self, call_id: str) -> CallSlot | None:
        """Return the place of a call that begins now: from now on it is the call's to leave."""
        return self._places.pop(call_id, None)

    @property
    def _in_line(self) -> list[str]:
        """The calls that wait for a place here."""
        return [call_id for call_id, place in self._places.items() if not place.is_taken]

    def leave_places(self, but: Collection[str] = ()) -> None:
        """Leave the places of calls that have not begun, taken or waited for."""
        left = [self._places.pop(each) for each in [*self._places] if each not in but]
        # Who waits goes first, or he would get what another of them leaves.
        for place in sorted(left, key=lambda place: place.is_taken):
            place.leave()

    def _give_way(self, action: AnyAction) -> None:
        """Have no place, and be in no line for one, for calls that may have to wait for a permit.

        Whoever kept his place in line would get it from the next who is refused a permit, be
        refused himself, and so on for ever. They ask again when the lane looks again.
        """
        unlimited = [call_id for call_id in self._in_line if not self._limits(call_id)]
        self.leave_places(but={*ids_of(action), *unlimited})

    # Calls that must wait for a place in the fleet

    async def _as_permitted(
        self, action: AnyAction, bounds: Mapping[str, tuple[Bound, ...]]
    ) -> AnyAction:
        """Leave out calls that may not begin yet; rest, if nothing else is to be done."""
        permits = await self._lane.acquire(bounds)
        waiting = {call_id: p.again_at for call_id, p in permits.items() if not p.granted}
        if not waiting:
            return action
        now = self._lane.now()
        again_at = min((at for at in waiting.values() if at), default=0)
        others: tuple[str, ...] = ("limit",)
        if isinstance(action, RunTools):
            others = ("limit", "key") if action.awaits_key else others
            start = tuple(begin for begin in action.start if begin.call_id not in waiting)
            if start or action.report or action.running or self._in_line:
                until = min(action.until, again_at or action.until, now + PERMIT_POLL)
                return replace(action, start=start, until=until)
        return rest_for(self._lane.state, others, now, again_at)

    def _bounds(self, action: AnyAction) -> dict[str, tuple[Bound, ...]]:
        """Return the limits of the calls that an action would begin, if there are any."""
        match action:
            case CallModel(running=False):
                bounds = self._performer.bounds_of_model(starts_turn=bool(action.delivery))
                return {action.call_id: bounds} if bounds else {}
            case RunTools(start=start) if start:
                found: dict[str, tuple[Bound, ...]] = {}
                for begin in start:
                    if bounds := self._limits(begin.call_id):
                        found[begin.call_id] = bounds
                return found
        return {}

    def _limits(self, call_id: str) -> tuple[Bound, ...]:
        return self._performer.bounds_of_tool(self._call(call_id), self._lane.state)

    def _call(self, call_id: str) -> OpenCall:
        assert self._lane.state.turn is not None
        return self._lane.state.turn.calls[call_id]


def takes_key(action: AnyAction) -> TypeGuard[RunTools]:
    """Say whether an action begins calls that no other call with the same key may accompany."""
    return isinstance(action, RunTools) and any(begin.key for begin in action.start)


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
