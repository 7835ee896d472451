"""Writes down what calls came to, each in a commit of its own where it needs one.

Owns what stands between a result and its records: the provider's breaker is told first, ends that
depend on what others do are committed at once (a changed slice, a continuation token, shares of
budgets), and an end that cannot be stored makes its call's outcome unknown. Which records these are
is decided in `core/outcome.py`; `lane_runner.py` says when.
"""

from functools import partial

from msgspec.structs import replace

from outlast.core import codec
from outlast.core import record as r
from outlast.core.action import AnyAction
from outlast.core.amount import BudgetHold, BudgetTerms
from outlast.core.budget_charge import cut_off
from outlast.core.lane import UNSTORABLE
from outlast.core.message import storable
from outlast.core.outcome import is_tried_soon, outcome
from outlast.core.record import AnyRecord, Failure
from outlast.core.result import (
    Answered,
    ChildContact,
    Compacted,
    Interrupted,
    ModelFailed,
    Raised,
    Result,
    Returned,
    SummaryLost,
    ToolEnd,
    ToolWaits,
    TurnStopped,
    is_contended,
    with_updates,
)
from outlast.core.slice import Slices
from outlast.core.state_change import TURNS_OPEN
from outlast.engine.budget_gate import BudgetGate
from outlast.engine.executor import Executor
from outlast.engine.lane_call import TOOL_ENDS, LaneCalls
from outlast.engine.lane_folds import LaneStale
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.provider_breaker import ProviderBreakers
from outlast.errors import NotEncodable
from outlast.log_context import get_logger

log = get_logger("outlast.engine")

UNSTORABLE_END = "changed state, emitted an event or began a wait that cannot be stored"
TOKEN_TAKEN = Failure(
    "TOKEN_TAKEN", "another session took the continuation token that this call wanted to set"
)


class UpdateFailed(Exception):
    """A tool's function that changes a slice raised, given the newest value of the slice."""


class ResultRecorder:
    """Records the results of one lane's calls."""

    def __init__(
        self,
        lane: OwnedLane,
        executor: Executor,
        calls: LaneCalls,
        budgets: BudgetGate,
        breakers: ProviderBreakers,
    ) -> None:
        self._lane = lane
        self._executor = executor
        self._policy = executor.policy
        self._calls = calls
        self._budgets = budgets
        self._breakers = breakers

    async def record(self, action: AnyAction, results: list[Result]) -> None:
        """Record what an action's calls came to, in the order in which they ended."""
        now = self._lane.latest()  # the pause before a further attempt counts from here
        for result in results:
            # First those of every step: a case that does not match takes as long as some lines.
            match result:
                case Returned():
                    is_apart = is_contended(result)
                    if other := await self._attempt(action, result, now) if is_apart else result:
                        self._write(action, other, now)
                case Answered() if not self._breakers.knows_any:
                    self._write(action, result, now)
                # The breaker is told first: its pause is a part of the record.
                case Answered() | ModelFailed():
                    self._write(action, await self._told_of(result), now)
                case ToolWaits() if result.children:
                    await self._wait_for_children(action, result, now)
                case TurnStopped():
                    # Tools that ended in the turn have had their effects, so their changes of state
                    # stand.
                    self._write(action, await self._without_contended(action, result, now), now)
                case ChildContact() if result.view and result.view.end:
                    self._write(action, await self._budgets.counting(result), now)
                case Compacted() | SummaryLost():
                    # Not `action`: feedback may have become due while the view was made shorter.
                    assert self._calls.compacting is not None
                    self._write(self._calls.compacting, result, now)
                case _:
                    self._write(action, result, now)

    def _write(self, action: AnyAction, result: Result, now: int) -> bool:
        """Write a result down; return False if it could not be stored as it was."""
        try:
            self._lane.write(self._outcome(action, result, now))
        # The tool was run: a failure would invite the model to call it again, so its outcome is
        # unknown.
        except NotEncodable:
            result = self._without_unstorable(action, result, now)
            self._lane.write(self._outcome(action, result, now))
            return False
        return True

    def _outcome(self, action: AnyAction, result: Result, now: int) -> list[AnyRecord]:
        folds = self._lane.folds
        records = outcome(folds.state, action, result, self._policy, now, folds.slices)
        if type(result) is ModelFailed and isinstance(left := records[-1], r.ModelSwitched):
            log.info(  # once per turn; of the provider itself its breaker warns, once in the fleet
                "%s leaves the model %s for %s: %s: %s",
                self._lane.session_id,
                left.left,
                left.model,
                left.error.code,
                left.error.message,
                extra={"model": left.model, "left": left.left, "code": left.error.code},
            )
        return records

    # Model calls

    async def _told_of(self, result: Answered | ModelFailed) -> Answered | ModelFailed:
        """Let the provider's breaker know, and the result have what that knows."""
        if isinstance(result, ModelFailed):
            result = self._with_cut_off(result)
        provider = self._executor.provider_of(self._lane.folds.state)
        if provider is None or not self._breakers.concerns(provider, result):
            return result
        lane = self._lane.folds.state
        assert lane.turn is not None
        assert lane.turn.model is not None
        parks = isinstance(result, ModelFailed) and (
            lane.outage is not None or not is_tried_soon(lane.turn.model, result, self._policy)
        )
        return await self._breakers.note(
            provider,
            result,
            lane.session,
            lane.turn.model.call_id,
            parks=parks,
            probes=lane.outage is not None,
        )

    def _with_cut_off(self, failed: ModelFailed) -> ModelFailed:
        """Estimate what an attempt has used that failed after some of its answer was heard."""
        lane = self._lane.folds.state
        model = lane.turn.model if lane.turn else None
        heard = failed.heard + sum(len(delta.text) for delta in failed.deltas)
        if model is None or not (heard := heard + model.heard):
            return failed
        return replace(failed, cut_off=cut_off(lane, model.call_id, heard, self._calls.price))

    # Ends that depend on what others do

    async def _wait_for_children(self, action: AnyAction, waits: ToolWaits, now: int) -> None:
        """Record that a call waits for children that start with it, each with its share."""
        share = await self._budgets.share(waits)
        if share and share[1].has_rows:
            try:
                await self._start_with_shares(action, waits, share, now)
                return
            except NotEncodable:
                share = None  # what cannot be stored is told below, and starts nothing
        if self._write(action, waits, now):
            for child in waits.children:
                self._lane.start(child, *(share or ()))

    async def _start_with_shares(
        self, action: AnyAction, waits: ToolWaits, share: tuple[BudgetTerms, BudgetHold], now: int
    ) -> None:
        """Start children with shares of budgets that other lanes and sessions reserve of as well.

        Where one of them was quicker, less is free, and that is shared.
        """

        def waiting(_: Slices) -> list[AnyRecord]:
            return self._outcome(action, waits, now)

        while refused := await self._lane.start_with_shares(waiting, waits.children, *share):
            if refused.reason != "budget":
                raise LaneStale(refused.reason)
            share = await self._budgets.share(waits) or share

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
        return TurnStopped(tuple(left), stopped.cut_off)

    async def _attempt(
        self, action: AnyAction, result: Returned, now: int
    ) -> Raised | Interrupted | None:
        """Record an end that depends on what others do meanwhile, or return what it is instead."""
        try:
            refused = await self._lane.attempt(partial(self._concluded, action, result, now))
        except NotEncodable as error:
            return self._unstorable(result.call_id, f"{UNSTORABLE_END}: {error.message}")
        except UpdateFailed as error:
            return self._unstorable(result.call_id, str(error))
        if refused is None:
            return None
        rolls_back = refused.reason == "turns_open"
        return Raised(result.call_id, TURNS_OPEN if rolls_back else TOKEN_TAKEN)

    def _concluded(
        self, action: AnyAction, result: Returned, now: int, slices: Slices
    ) -> list[AnyRecord]:
        try:
            whole = with_updates(result, slices)
        except Exception as error:  # the tool's own function, of a value that it did not foresee
            log.exception("a tool's update failed; its outcome is unknown")
            why = f"failed to update the session's state: {type(error).__name__}: {error}"
            raise UpdateFailed(why) from error
        return self._outcome(action, whole, now)

    # Ends that cannot be stored

    def _without_unstorable(self, action: AnyAction, result: Result, now: int) -> Result:
        """Say of each tool whose end cannot be written down that its outcome is unknown.

        It ran to its end; it may be one of several in a turn that is stopped.
        """
        if isinstance(result, TurnStopped):
            ends = (self._without_unstorable(action, end, now) for end in result.ends)
            kept = tuple(end for end in ends if isinstance(end, TOOL_ENDS))
            return TurnStopped(kept, result.cut_off)
        if not isinstance(result, Returned | ToolWaits):
            return result
        try:
            codec.encode(self._outcome(action, result, now))
        except NotEncodable as error:
            return self._unstorable(result.call_id, f"{UNSTORABLE_END}: {error.message}")
        return result

    def _unstorable(self, call_id: str, why: str) -> Interrupted:
        """Return the end of a tool that was run, and of which something cannot be written down."""
        tool = self._calls.find(call_id).tool
        why = f"{tool} {storable(why)}"
        log.warning("the outcome of a tool is unknown: %s", why, extra={"tool": tool, "why": why})
        return Interrupted(call_id, UNSTORABLE, why=why)
