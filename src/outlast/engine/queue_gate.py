"""Has a turn wait in its session's queue until it has a place there.

Owns the asking: which limits a turn is under by the queue's settings of this moment, and that it
keeps its place until it ends or rests for something else than a place. Nothing here is asked for a
session that stands in no queue, nor for a turn that has its place. The limits are granted by the
store's topic `limit`, as those on calls are; here the permit is the turn's.
"""

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.action import AnyAction, CallModel, CallWorkflow, RunTools
from outlast.core.decide import rest_for
from outlast.core.limit import Bound
from outlast.core.name import place_here, turn_and_step
from outlast.core.policy import SECOND
from outlast.core.queue import (
    NO_SETTINGS,
    QueueSettings,
    ahead_of,
    places_here,
    places_of,
    rate_of,
)
from outlast.core.record import QueuePlace
from outlast.engine.lane_folds import insist
from outlast.engine.owned_lane import OwnedLane
from outlast.log.queue import find_queue
from outlast.store import Permit, Store

WORKER_POLL = SECOND
"""How long a turn waits for a place in one worker before it looks whether another has one."""
POLLS = 50
"""How many of those that wait in one line look in a second; where there are more, they look less
often."""


class QueueGate:
    """The gate of one lane's turns."""

    def __init__(self, lane: OwnedLane, store: Store, clock: Clock) -> None:
        self._lane = lane
        self._store = store
        self._clock = clock

    async def let_in(self, action: AnyAction, place: QueuePlace) -> AnyAction:
        """Return an action if its turn has a place, or else what can be done without one."""
        turn = turn_of(action)
        if not turn or self._lane.has_place(turn):
            return action
        now = self._lane.earliest()
        starts = isinstance(action, CallModel | CallWorkflow) and bool(action.delivery)
        # The turn before this one may have ended in what was written and not committed yet.
        await self._lane.flush()
        again_at = await self._ask(turn, place, starts=starts)
        if again_at is not None:
            return without_place(action, self._lane, now, again_at)
        self._lane.take_place(turn)
        return action

    async def _ask(self, turn: str, place: QueuePlace, *, starts: bool) -> int | None:
        """Ask for a turn's place; return None if it has it, or else when to ask again.

        A turn that has to wait looks whether the settings are still those that it asked by: if so,
        a change of them finds it in line.
        """
        settings, version = await self._read(place.queue)
        while True:
            again_at = await self._ask_by(settings, turn, place, starts=starts)
            before = version
            if again_at is not None:
                settings, version = await self._read(place.queue)
            if version == before:
                return again_at

    async def _ask_by(
        self, settings: QueueSettings, turn: str, place: QueuePlace, *, starts: bool
    ) -> int | None:
        lane, ahead = self._lane.folds.state, ahead_of(place, settings)
        if lane.turn is not None:
            # It had its place before it came to rest, and does not stand behind those that came
            # meanwhile.
            ahead += max(0, self._lane.date() - lane.turn.began)
        fleet = places_of(place, settings, lane.tenant)
        here = places_here(place.queue, settings, self._lane.worker)
        rate = rate_of(place.queue, settings) if starts else ()
        if not here:
            permit = await self._acquire(turn, (*fleet, *rate), ahead)
            return None if permit.granted else permit.again_at or 0
        permit = await self._acquire(turn, fleet, ahead)
        if not permit.granted:
            return 0
        # A place in this worker is asked for apart: so it is known which of the two is waited for.
        permit = await self._acquire(place_here(turn), (*here, *rate), ahead)
        if permit.granted or permit.again_at:
            return None if permit.granted else permit.again_at
        lines = await insist(self._clock, self._store.limit.lines, here[0].name)
        waiting = sum(line.waiting for line in lines)
        pause = self._clock.jitter(WORKER_POLL * max(1.0, waiting / POLLS))
        return self._lane.earliest() + int(pause)

    async def _acquire(self, permit_id: str, bounds: tuple[Bound, ...], ahead: int) -> Permit:
        permits = await self._lane.acquire({permit_id: bounds}, ahead)
        return permits[permit_id]

    async def _read(self, queue: str) -> tuple[QueueSettings, int]:
        settings, version = await insist(self._clock, find_queue, self._store, queue)
        return settings or NO_SETTINGS, version


def turn_of(action: AnyAction) -> str:
    """Return the turn that an action would begin or carry on; empty if it does neither."""
    match action:
        case CallModel(running=False):
            return turn_and_step(action.call_id)[0]
        case CallWorkflow():
            return action.turn
        case RunTools(start=[first, *_]):
            return turn_and_step(first.call_id)[0]
    return ""


def without_place(action: AnyAction, lane: OwnedLane, now: int, again_at: int) -> AnyAction:
    """Leave out what may not begin yet; rest, if nothing else is to be done."""
    if isinstance(action, RunTools) and (action.report or action.running or action.contact):
        until = min(action.until, again_at or action.until, now + SECOND)
        return replace(action, start=(), until=until)
    return rest_for(lane.folds.state, ("queue",), now, again_at)
