"""Lets calls begin as far as budgets allow, and gives children their shares.

Owns the look at how budgets stand before a call; what follows from that is decided in
`core/budget_admission.py`; the reservation is part of the commit that begins it, which the store
refuses where another session was quicker. A lane without any budget is not held up: which shared
ones exist is looked up once a second for all of a worker's lanes (`BudgetDirectory`).
"""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.action import (
    AnyAction,
    CallModel,
    CompactContext,
    Park,
    RunTools,
)
from outlast.core.amount import (
    UNLIMITED,
    BudgetHold,
    BudgetKey,
    BudgetState,
    BudgetTerms,
)
from outlast.core.budget import (
    held_of,
    in_order,
    keys_of,
    on_day,
    session_terms,
    share_of,
    turn_state,
)
from outlast.core.budget_admission import admit_call, admit_summary, admit_tools
from outlast.core.decide import rest_for
from outlast.core.result import ChildContact, ToolWaits
from outlast.engine.executor import Executor
from outlast.engine.lane_folds import insist
from outlast.engine.owned_lane import OwnedLane
from outlast.store import Store

NEVER = float("inf")


class BudgetDirectory:
    """Knows whether budgets beside those of turns and sessions were set: a service of a worker.

    `newest` grows with every change. A budget holds for the calls that begin a second after it was
    set at the latest; no step asks the store for that. Nor does a worker without lanes: what it
    knows is too old by the time it is given one, and it looks before the lane does anything.
    """

    interval = 1.0

    def __init__(self, store: Store, clock: Clock, is_idle: Callable[[], bool]) -> None:
        self._store = store
        self._clock = clock
        self._is_idle = is_idle
        self._looking = asyncio.Lock()
        self._asked_at = -NEVER
        self.newest = 0

    async def run_once(self) -> int:
        return 0 if self._is_idle() else await self.look()

    @property
    def is_old(self) -> bool:
        return self._clock.monotonic() - self._asked_at > self.interval

    async def renew(self) -> None:
        """Look once for all lanes that a worker is given after it had none.

        A look that began before counts for none of them: a budget may have been set since.
        """
        wanted_at = self._clock.monotonic()
        async with self._looking:
            if self._asked_at < wanted_at:
                await self.look()

    async def look(self) -> int:
        before, asked_at = self.newest, self._clock.monotonic()
        self.newest = await self._store.budget.newest_budget()
        self._asked_at = asked_at
        return int(self.newest != before)


class BudgetGate:
    """The budgets of one lane."""

    def __init__(
        self,
        lane: OwnedLane,
        executor: Executor,
        store: Store,
        clock: Clock,
        directory: BudgetDirectory,
    ) -> None:
        self._lane = lane
        self._executor = executor
        self._policy = executor.policy
        self._store = store
        self._clock = clock
        self._directory = directory
        self._has_own = bool(self._policy.turn_budget or self._policy.session_budget)

    @property
    def is_needed(self) -> bool:
        """Whether any budget may limit what the lane does. A step asks for nothing else."""
        if self._has_own or self._directory.newest:
            return True
        return self._lane.folds.state.budget is not None

    async def let_in(self, action: AnyAction) -> AnyAction | None:
        """Return an action as far as budgets allow it; None if the state is another by now."""
        match action:
            case CallModel(running=False):
                return await self._call(action)
            case CompactContext(sums_up=True):
                return await self._summary(action)
            case RunTools(start=start) if start:
                return await self._tools(action)
        return action

    async def _call(self, action: CallModel) -> AnyAction | None:
        if not (states := await self._states(action.delivery, retries=bool(action.retries))):
            return action
        folds = self._lane.folds
        view = await folds.view()
        joins = (action.delivery, *action.joins) if action.delivery else action.joins
        estimate = await self._executor.estimate(folds.state, folds.slices, view, joins)
        found = admit_call(folds.state, action, states, estimate, self._lane.earliest())
        return self._merged(found)

    async def _summary(self, action: CompactContext) -> AnyAction | None:
        if not (states := await self._states()):
            return action
        folds = self._lane.folds
        view = await folds.view()
        estimate = await self._executor.estimate(folds.state, folds.slices, view, ())
        return admit_summary(action, states, estimate)

    async def _tools(self, action: RunTools) -> AnyAction | None:
        """Let as many calls begin as budgets allow that limit calls."""
        lane = self._lane.folds.state
        assert lane.turn is not None
        states = [
            state for state in await self._states() if state.terms.limits.tool_calls != UNLIMITED
        ]
        if not states:
            return action
        now = self._lane.earliest()
        found = admit_tools(lane, action, states, now)
        return rest_for(lane, (), now) if found is None else self._merged(found)

    def _merged(self, action: AnyAction) -> AnyAction:
        """Add what else a lane waits for that waits for a budget."""
        if not isinstance(action, Park):
            return action
        lane = self._lane.folds.state
        rest = rest_for(lane, action.wait, self._lane.earliest(), action.until)
        return replace(rest, budgets=action.budgets, ended=action.ended)

    async def _states(self, delivery: str = "", *, retries: bool = False) -> list[BudgetState]:
        """Return how all budgets stand that count what this lane does, the narrowest first.

        It is about to begin a turn with the `delivery`, if one is named.
        """
        lane = self._lane.folds.state
        own = session_terms(lane, self._policy.session_budget)
        found: list[BudgetState] = []
        if own or self._directory.newest:
            await self._lane.flush()  # what was settled by then is free
            lane = self._lane.folds.state
            now = self._lane.date()
            keys = [on_day(key, now) for key in keys_of(lane, delivery, retries=retries)]
            # No shared budget was ever set: only the session's own row is to be looked up.
            if not self._directory.newest:
                keys = keys[:1]
            found = [*await insist(self._clock, self._store.budget.find_budgets, lane.tenant, keys)]
            if own and not any(state.key.scope == "session" for state in found):
                found.append(BudgetState(BudgetKey("session", lane.session), own))
        if state := turn_state(lane, self._policy):
            found.append(state)
        return in_order(found)

    # Children

    async def counting(self, contact: ChildContact) -> ChildContact:
        """Say in which budgets the usage of a remote child counts, which has ended.

        Its server knows nothing of them, so nothing was reserved.
        """
        if not (states := await self._states()):
            return contact
        keys = tuple(state.key for state in states if state.key.scope != "turn")
        return replace(contact, budgets=keys)

    async def share(self, waits: ToolWaits) -> tuple[BudgetTerms, BudgetHold] | None:
        """Return what each child may use that a call is about to start, and what is held for it.

        Of what is free the open calls of the step get the same share each, and the lane keeps one.
        None if nothing is limited.
        """
        states = [s for s in await self._states() if s.key.scope in ("turn", "session")]
        if not states:
            return None
        lane = self._lane.folds.state
        assert lane.turn is not None
        # These have their shares already.
        waiting = {q.call_id for q in lane.turn.requests.values() if q.kind == "child"}
        others = sum(
            not call.is_done and name != waits.call_id and name not in waiting
            for name, call in lane.turn.calls.items()
        )
        terms = states[0].terms
        limits = share_of(states, others + len(waits.children))
        keys = tuple(state.key for state in states)
        share = BudgetTerms(limits, terms.on_end, terms.unpriced)
        return share, BudgetHold(held_of(limits), lane.turn.id, keys)
