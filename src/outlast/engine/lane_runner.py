"""Runs a claimed lane until it has to wait or has ended.

Owns the loop: decide, record, commit before every effect, perform, record the outcome, and again.
Refuses to know how a model is called or a tool is run (`executor.py`) and what the log looks like
(`owned_lane.py`). Calls run in tasks beside the loop (`call_tasks.py`), so that what arrives while
one runs is looked at at once; what has to be had before one may begin is in `start_gate.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core import codec
from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    AskHuman,
    CallModel,
    CancelTurn,
    ChangeContext,
    ChangeState,
    CheckCompletion,
    CompactContext,
    CompleteSession,
    ExpireRequest,
    FailSession,
    FailTurn,
    GiveFeedback,
    MissTools,
    Park,
    RefuseReply,
    RunTools,
    SettleDeliveries,
    Start,
    TakeEvent,
    TakeRelay,
    TakeReply,
)
from outlast.core.amount import BudgetHold, BudgetTerms
from outlast.core.budget_charge import call_under_way, calls_cut_off, cut_off, summary_cut_off
from outlast.core.compaction import TURN_UNKNOWN, pinned_calls, refused, rewound
from outlast.core.decide import decide
from outlast.core.instant import seconds
from outlast.core.lane import UNSTORABLE, Lane, OpenCall, OpenRequest
from outlast.core.message import storable
from outlast.core.outcome import is_tried_soon, opening, outcome
from outlast.core.record import (
    AnyRecord,
    Failure,
    MessageDelta,
    ReasoningDelta,
    UsageRecorded,
)
from outlast.core.request import allowed_call
from outlast.core.result import (
    Answered,
    CallPrice,
    ChildContact,
    ChildEnd,
    Compacted,
    CompletionChecked,
    FeedbackCollected,
    Interrupted,
    Mismatched,
    ModelFailed,
    Raised,
    Restarted,
    Result,
    Returned,
    SummaryLost,
    ToolEnd,
    ToolWaits,
    TurnStopped,
    Undone,
    is_contended,
    with_updates,
)
from outlast.core.slice import Slices
from outlast.core.state_change import (
    REFUSED_CHANGES,
    TURNS_OPEN,
    change_made,
    change_refused,
    put_change_first,
    rekeyed,
)
from outlast.core.visible import visible_line
from outlast.engine.budget_gate import BudgetDirectory, BudgetGate
from outlast.engine.call_journal import LaneJournal
from outlast.engine.call_tasks import CallTasks, CallTimeouts, RunningCall
from outlast.engine.coalesce import DeltaStream
from outlast.engine.executor import CallSlot, Executor
from outlast.engine.lane_folds import LaneStale, insist
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.provider_breaker import ProviderBreakers
from outlast.engine.settings import WorkerSettings
from outlast.engine.start_gate import StartGate, takes_key
from outlast.errors import NotEncodable, OutlastError
from outlast.log.reader import read_outcome
from outlast.log_context import enter, get_logger
from outlast.store import Store

log = get_logger("outlast.engine")

STALE_PAUSE = 0.05
LOOK_EVERY = 15.0
"""Seconds after which a lane looks at the time again, whatever it waits for."""
CONTACT_TIMEOUTS = CallTimeouts(120.0)
"""For contacting the server of a remote child, whose requests have timeouts of their own."""
RULES = "rules"
"""Names the one task of a lane in which rules look at its turn. Each has a timeout of its own."""
COMPACTION = "compaction"
"""Names the one task of a lane in which its view is made shorter."""
NO_TIMEOUTS = CallTimeouts(float("inf"))
CAN_BE_REFUSED = (RunTools, ExpireRequest, TakeRelay)
GIVES_UP_SUMMARIES = (Park, CompleteSession, FailSession)
"""With these, nothing waits any more for a summary that is being made between turns."""
TOOL_ENDS = (Returned, Raised, Interrupted, ToolWaits, Mismatched, Restarted, Undone)
UNSTORABLE_END = "changed state, emitted an event or began a wait that cannot be stored"
NOT_READ = Failure("WORKERS_LOST", "this lane took its workers down, and is not read any more")
"""Why nothing changes the state of a lane of which only the outline was read, if it may go on."""
TOKEN_TAKEN = Failure(
    "TOKEN_TAKEN", "another session took the continuation token that this call wanted to set"
)


class UpdateFailed(Exception):
    """A tool's function that changes a slice raised, given the newest value of the slice."""


class ChangeImpossible(Exception):
    """A change of state that was asked for from outside cannot be made, for an error."""

    def __init__(self, error: Failure) -> None:
        super().__init__(error.message)
        self.error = error


class LaneRunner:
    """One lane in this worker.

    `until_confirmed` returns what to wait for before something new may begin: a lease that is in
    doubt has to be renewed first. A session with more than `session_bytes` begins no model call.
    """

    def __init__(
        self,
        lane: OwnedLane,
        executor: Executor,
        store: Store,
        clock: Clock,
        settings: WorkerSettings,
        until_confirmed: Callable[[], Awaitable[None] | None],
        breakers: ProviderBreakers,
        directory: BudgetDirectory,
        session_bytes: int = 0,
    ) -> None:
        self.lane = lane
        self._executor = executor
        self._policy = executor.policy
        self._store = store
        self._clock = clock
        self._settings = settings
        self._until_confirmed = until_confirmed
        self._breakers = breakers
        self._gate = StartGate(lane, executor, store, clock, breakers, session_bytes)
        self._directory = directory
        self._budgets = BudgetGate(lane, executor, store, clock, directory)
        policy = executor.policy
        self._has_budget = bool(policy.turn_budget or policy.session_budget)
        lane.agent_budget = policy.session_budget
        self._tasks = CallTasks(
            clock, seconds(settings.stop_grace), lane.folds.wakeup, self._timed_out
        )
        self._compacting: CompactContext | None = None
        self._has_hint = False
        self._stopping = False

    async def run(self) -> None:
        """Run the lane until it was given back. Raises LaneLost if another worker has it now."""
        # Log lines of the lane name its model from the first on.
        self._note_model()
        try:
            while True:
                try:
                    # In the loop: after a stale lane was folded again, its first commit has to
                    # record the takeover anew.
                    self.lane.take_over(self._cut_off)
                    return await self._run()
                except LaneStale:
                    await self._abandon()
                    await asyncio.sleep(self._clock.jitter(STALE_PAUSE))
                    await self.lane.reload()
        finally:
            self._tasks.close()
            await self._abandon()

    def nudge(self) -> None:
        """Look at the log soon: something may have arrived."""
        # Only noted here: the lane's lock may be held for as long as a commit takes.
        self._has_hint = True
        self.lane.folds.wakeup.set()

    def stop(self) -> None:
        """Begin nothing more, and give the lane back when what runs has ended."""
        self._stopping = True
        self.lane.folds.wakeup.set()

    # The loop

    async def _run(self) -> None:
        while not self._stopping:
            action = await self._decide()
            if isinstance(action, GIVES_UP_SUMMARIES) and self.lane.folds.state.summary:
                await self._drop_compaction()
            if action.is_rest:
                if await self.lane.rest(action):  # type: ignore[arg-type]
                    return
            elif await self._open(action) and action.is_effect:
                # Before the flush as well: a start that is in the log counts as begun, and without
                # a lease it would be the interruption of something that never ran.
                if pause := self._until_confirmed():
                    await pause
                if not (isinstance(action, RunTools) and self._may_run_ahead(action)):
                    await self.lane.flush()
                    if pause := self._until_confirmed():  # a store may have been away for long
                        await pause
                await self._record(action, await self._perform(action))
        await self._wind_down()

    def _may_run_ahead(self, action: RunTools) -> bool:
        """Say whether calls begin before their start is committed, as `decide` lets them.

        Only while the answer that asks for them is not committed either: should one of them take
        the worker down, the log tells of a model call that was cut off, which counts as an attempt.
        And not with a permit, which is known by a call that the log has.
        """
        for start in action.start:
            if not start.may_run_ahead or self.lane.has_permit(start.call_id):
                return False
        return bool(action.start) and self.lane.is_ahead_by(r.MessageCompleted)

    async def _decide(self) -> AnyAction:
        """Decide what comes next, as far as rules, keys and limits let it begin now."""
        while True:
            arrivals = self.lane.folds.arrivals
            action = decide(self.lane.folds.state, self._policy, self.lane.earliest())
            if self._gate.goes_on(action):
                # `find_block` goes by the count of deaths, which a failed turn makes smaller once
                # it is committed.
                if self.lane.deaths and self.lane.is_ahead_by(r.TurnFailed):
                    await self.lane.flush()  # then one death less counts
                    continue
                if error := self._gate.find_block():
                    self.lane.write([r.LaneBlocked(error=error)])
                    continue
                if self.lane.folds.is_outline:
                    await self.lane.flush()
                    raise LaneStale("outline")  # its turn has ended; the next needs all of the log
            allowed: AnyAction | None
            match action:
                case TakeReply():
                    allowed = await self._take_if_allowed(action)
                case CompactContext() if self._is_compacting:
                    allowed = action
                case (
                    TakeRelay() | TakeEvent() | ExpireRequest() | SettleDeliveries() | ChangeState()
                ):
                    allowed = action  # it begins no call, so calls that wait for a slot keep it
                case _:
                    allowed = await self._gate.let_in(action)
                    if allowed is not None and allowed is not action:  # it may rest instead
                        state = self.lane.folds.state
                        allowed = put_change_first(state, allowed) if state.changes else allowed
                    if allowed is not None and (
                        self._has_budget or self._directory.newest or self.lane.folds.state.budget
                    ):
                        asked, allowed = allowed, await self._budgets.let_in(allowed)
                        if isinstance(asked, CompactContext) and allowed is not asked:
                            self.lane.return_permit(asked.call_id)  # no budget allows a summary
                        state = self.lane.folds.state
                        if allowed is not None and allowed is not asked and state.changes:
                            allowed = put_change_first(state, allowed)
            # What came while the gate was asked may call for something else.
            if allowed is not None and arrivals == self.lane.folds.arrivals:
                return allowed

    async def _take_if_allowed(self, action: TakeReply) -> TakeReply | RefuseReply:
        """Refuse an answer that is not its giver's to give, or that no call can run with.

        The session's handle has checked the same (`session/handle.py`). It is checked again here
        because the handle may be in a process that lacks the agent's code or has an older version
        of it, and because an answer may come from another session, which asked on its behalf.
        The handle's check tells the caller at once; this one is what guards the call.
        """
        reply, lane = action.reply, self.lane.folds.state
        call = allowed_call(lane, reply)
        misfit = self._executor.misfit(call) if call else ""
        if not misfit and await self._executor.may_answer(lane, reply):
            return self._gate.with_new_key(action)
        if call and misfit:
            log.warning("a call does not fit its tool; it is asked anew", extra={"tool": call.tool})
        assert lane.turn is not None
        tool = lane.turn.calls[lane.turn.requests[reply.request_id].call_id].tool
        restricted = self._policy.tool(tool).restricted
        return RefuseReply(reply=reply, restricted=restricted, misfit=misfit)

    async def _open(self, action: AnyAction) -> bool:
        """Record what is about to be done; return False if an arrival calls for something else."""
        lane = self.lane
        arrivals = lane.folds.arrivals
        if lane.folds.state.parent and isinstance(action, CompleteSession | FailSession):
            await lane.flush()
            # Read from the log, where the answer's text is: hence the flush before it.
            end = await self._end_of(action)
            if arrivals != lane.folds.arrivals:  # another lane may have ended it
                return False
            lane.report(end)  # to the parent, in the commit that ends this session
        if isinstance(action, MissTools):
            facts = {"calls": action.calls}
            log.warning("calls wait for a worker whose code has their tools", extra=facts)
        hold: BudgetHold | None = None
        if isinstance(action, CallModel):
            hold = action.hold
            if action.restarts:
                action = await self._with_restart(action)
                if arrivals != lane.folds.arrivals:
                    return False
        elif isinstance(action, CompactContext):
            hold = action.hold
        # The time that a human has to answer counts from here; else this is only a date.
        now = lane.latest() if isinstance(action, AskHuman) else lane.date()
        records = opening(lane.folds.state, action, now)
        if self._settings.deployment:
            records = with_deployment(records, self._settings.deployment)
        # Committed apart and at once, and not folded before: what is refused must leave no trace
        # here.
        if isinstance(action, CAN_BE_REFUSED) and can_be_refused(action):
            return await self._try_to_open(records, arrivals)
        # A shared budget may have been spent by another session meanwhile: the store then refuses
        # this commit.
        if hold and hold.budgets:
            return await self._try_to_open(records, arrivals)
        if isinstance(action, ChangeState):
            return await self._change_state(action.change, arrivals)
        if isinstance(action, ChangeContext):
            return await self._change_context(action, arrivals)
        lane.write(records)
        return True

    async def _with_restart(self, action: CallModel) -> CallModel:
        """Say what the model sees from here on, which is known by places in the log."""
        await self.lane.flush()
        folds = self.lane.folds
        view = await folds.view()
        return replace(action, restarted=view.restarted(action.turn, pinned_calls(folds.slices)))

    async def _try_to_open(self, records: list[AnyRecord], arrivals: int) -> bool:
        """Commit what another call's key, or an answer just in time, can stand against."""
        refused = await self.lane.attempt(lambda _: records, arrivals)
        if refused and refused.arrivals:
            await self.lane.catch_up()
        return not refused

    async def _change_context(self, action: ChangeContext, arrivals: int) -> bool:
        """Take the view back behind a turn, or record why that cannot be.

        Its places in the log are known to the view alone. A compaction that is under way is one of
        the view as it was.
        """
        change = action.change
        # The view of a lane that is too large is not read.
        if error := self._gate.find_block() or action.error:
            self.lane.write([*refused(change, error)])
            return True
        await self.lane.flush()
        until = (await self.lane.folds.view()).end_of(change.turn)
        if until is None:
            self.lane.write([*refused(change, TURN_UNKNOWN)])
            return True
        past = await self.lane.folds.view_at(until)
        # Not before the view is read: until then the change may come to nothing.
        await self._drop_compaction()
        if arrivals != self.lane.folds.arrivals:
            return False
        self.lane.write([*rewound(change, until, past)])
        await self.lane.flush()  # the view is read from the log anew
        return True

    @property
    def _is_compacting(self) -> bool:
        """Whether the view is being made shorter, or that has ended and is yet to be recorded."""
        ended = any(isinstance(each, Compacted | SummaryLost) for each in self._tasks.results)
        return ended or self._tasks.is_running(COMPACTION)

    async def _drop_compaction(self) -> None:
        await self._tasks.drop(COMPACTION)
        results = self._tasks.results
        results[:] = [each for each in results if not isinstance(each, Compacted | SummaryLost)]
        self.lane.write([*summary_cut_off(self.lane.folds.state, self._price)])

    async def _change_state(self, change: r.StateChangeRequested, arrivals: int) -> bool:
        """Change the session's state as was asked for, or record why that cannot be."""
        if self.lane.folds.is_outline:  # which has no slices
            self.lane.write(change_refused(change, self._gate.find_block() or NOT_READ))
            return True
        try:
            refused = await self.lane.attempt(partial(self._changed, change), arrivals)
        except ChangeImpossible as why:
            self.lane.write(change_refused(change, why.error))
            return True
        # Refused, not raised: a change that cannot be made must not stand in the lane's way for
        # ever.
        except NotEncodable as error:
            self.lane.write(change_refused(change, Failure(error.code, error.message)))
            return True
        if refused and refused.reason in REFUSED_CHANGES:
            self.lane.write(change_refused(change, REFUSED_CHANGES[refused.reason]))
        return not refused

    def _changed(self, change: r.StateChangeRequested, slices: Slices) -> list[AnyRecord]:
        if change.op == "rekey":
            return change_made(change, [rekeyed(change)])
        try:
            return change_made(change, self._executor.change_state(change, slices))
        except OutlastError as error:
            raise ChangeImpossible(Failure(error.code, storable(error.message))) from error
        except Exception as error:
            log.exception("a reducer failed; the change of state is refused")
            what = storable(f"a reducer raised {type(error).__name__}: {error}")
            raise ChangeImpossible(Failure("REDUCER_FAILED", what)) from error

    async def _record(self, action: AnyAction, results: list[Result]) -> None:
        now = self.lane.latest()  # the pause before a further attempt counts from here
        for result in results:
            # Before anything is recorded of it: the breaker's pause is a part of the record.
            if isinstance(result, Answered | ModelFailed):
                result = await self._told_of(result)
                if isinstance(result, ModelFailed):
                    result = self._with_cut_off(result)
            if isinstance(result, Compacted | SummaryLost):
                assert self._compacting is not None  # feedback may have become due meanwhile
                action = self._compacting
            # Apart: `update` is called with the newest value, and a token may be another session's
            # by now.
            if isinstance(result, ChildContact) and result.view and result.view.end:
                result = await self._counted(result)
            if isinstance(result, Returned) and is_contended(result):
                if not (other := await self._attempt(action, result, now)):
                    continue
                result = other
            share = None
            if isinstance(result, ToolWaits) and result.children:
                share = await self._share(result)
                if share and share[1].has_rows:
                    try:
                        await self._start_children(action, result, share, now)
                        continue
                    except NotEncodable:
                        share = None  # see below
            # Also when a turn is stopped: what a tool has done stands, and so do its changes of
            # state.
            if isinstance(result, TurnStopped):
                result = await self._without_contended(action, result, now)
            try:
                self.lane.write(self._outcome(action, result, now))
            # The tool was run: a failure would invite the model to call it again, so its outcome is
            # unknown.
            except NotEncodable:
                result = self._without_unstorable(action, result, now)
                self.lane.write(self._outcome(action, result, now))
            if isinstance(result, ToolWaits):
                for child in result.children:
                    self.lane.start(child, *(share or ()))

    async def _start_children(
        self, action: AnyAction, waits: ToolWaits, share: tuple[BudgetTerms, BudgetHold], now: int
    ) -> None:
        """Start children with shares of budgets that other lanes and sessions reserve of as well.

        Where one of them was quicker, less is free, and that is shared.
        """

        def waiting(_: Slices) -> list[AnyRecord]:
            return self._outcome(action, waits, now)

        while refused := await self.lane.start_with_shares(waiting, waits.children, *share):
            if refused.reason != "budget":
                raise LaneStale(refused.reason)
            share = await self._share(waits) or share

    async def _told_of(self, result: Answered | ModelFailed) -> Answered | ModelFailed:
        """Let the provider's breaker know, and the result have what that knows."""
        provider = self._executor.provider_of(self.lane.folds.state)
        if provider is None or not self._breakers.concerns(provider, result):
            return result
        lane = self.lane.folds.state
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
        tool = self._call(call_id).tool
        why = f"{tool} {storable(why)}"
        log.warning("the outcome of a tool is unknown: %s", why, extra={"tool": tool, "why": why})
        return Interrupted(call_id, UNSTORABLE, why=why)

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

    def _outcome(self, action: AnyAction, result: Result, now: int) -> list[AnyRecord]:
        folds = self.lane.folds
        records = outcome(folds.state, action, result, self._policy, now, folds.slices)
        if isinstance(result, ModelFailed) and isinstance(left := records[-1], r.ModelSwitched):
            log.info(  # once per turn; of the provider itself its breaker warns, once in the fleet
                "%s leaves the model %s for %s: %s: %s",
                self.lane.session_id,
                left.left,
                left.model,
                left.error.code,
                left.error.message,
                extra={"model": left.model, "left": left.left, "code": left.error.code},
            )
        return records

    async def _attempt(
        self, action: AnyAction, result: Returned, now: int
    ) -> Raised | Interrupted | None:
        """Record an end that depends on what others do meanwhile, or return what it is instead."""
        try:
            refused = await self.lane.attempt(partial(self._concluded, action, result, now))
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

    async def _perform(self, action: AnyAction) -> list[Result]:
        """Do what the action says, as far as the next result or arrival."""
        match action:
            case CallModel():
                # While the call runs this is only another look at it: arrivals and other results
                # wake the loop.
                if not action.running:
                    self._begin_model_call(action)
            case RunTools():
                for start in action.start:
                    self._begin_tool(start)
                for request_id in action.contact:
                    self._begin_contact(request_id)
                # What was reported is all there was to do, and is in the opening: there is nothing
                # to wait for.
                if action.report and self._tasks.is_idle:
                    return []
                if self.lane.is_ahead:
                    await self._commit_started(action.until)
            case GiveFeedback() | CheckCompletion():
                self._begin_rules(action)
            case CompactContext():
                if not self._is_compacting:
                    self._begin_compaction(action)
            case CancelTurn() | FailTurn():
                if isinstance(action, FailTurn):
                    log.warning(
                        "turn %s of %s failed (agent %s, model %s): %s: %s",
                        action.turn,
                        self.lane.session_id,
                        self.lane.agent,
                        self.lane.model,
                        action.error.code,
                        visible_line(action.error.message),
                        extra={"turn": action.turn, "code": action.error.code},
                    )
                ends = await self._tasks.stop()
                kept = tuple(end for end in ends if isinstance(end, TOOL_ENDS))
                self.lane.write([*summary_cut_off(self.lane.folds.state, self._price)])
                return [TurnStopped(kept, self._stopped_call())]
        return await self._next_results(action.until)  # type: ignore[union-attr]

    async def _commit_started(self, until: int) -> None:
        """Commit calls that began ahead of it, unless they have ended: then their ends go along."""
        await asyncio.sleep(
            0
        )  # a call that needs no more than one round of the loop saves a commit
        if not self._tasks.results:
            self._set_alarm(until)  # a store may be away for longer than a call may take
            await self.lane.flush()

    async def _next_results(self, until: int) -> list[Result]:
        """Wait for something to happen; return the results that are there by then."""
        wakeup = self.lane.folds.wakeup
        # A result may have come while the start was committed: then the wakeup would come too late.
        if not (self._tasks.results or self._stopping):
            self._set_alarm(until)
            await wakeup.wait()
        # Before the look at the log: what arrives during it sets the wakeup again.
        wakeup.clear()
        if self._has_hint:
            self._has_hint = False
            await self.lane.catch_up()
        # It may be none: a transactional call has recorded its own outcome. Decide anew anyway.
        return self._tasks.take_results()

    def _set_alarm(self, until: int) -> None:
        # The loop's time is not the store's: a clock may be set, or the machine be suspended.
        self._tasks.set_alarm(min((until - self.lane.earliest()) / 1000, LOOK_EVERY))

    def _timed_out(self, call_id: str) -> Result:
        lane = self.lane.folds.state
        # The names of a lane's tasks: its one compaction, a tool call, a remote child's request, or
        # else the model call.
        if call_id == COMPACTION:
            return SummaryLost(self._executor.timed_out(lane))
        assert lane.turn is not None
        if call_id in lane.turn.calls:
            return Interrupted(call_id, "timeout")
        if call_id in lane.turn.requests:  # of a remote child, whose server was contacted
            return ChildContact(request_id=call_id)
        return self._executor.timed_out(lane)

    # Calls that were cut off

    def _price(self, input_tokens: int, output_tokens: int) -> CallPrice | None:
        return self._executor.price(self.lane.folds.state, input_tokens, output_tokens)

    def _cut_off(self, lane: Lane) -> Iterator[AnyRecord]:
        return calls_cut_off(lane, self._price)

    def _with_cut_off(self, failed: ModelFailed) -> ModelFailed:
        """Estimate what an attempt has used that failed after some of its answer was heard."""
        lane = self.lane.folds.state
        model = lane.turn.model if lane.turn else None
        heard = failed.heard + sum(len(delta.text) for delta in failed.deltas)
        if model is None or not (heard := heard + model.heard):
            return failed
        return replace(failed, cut_off=cut_off(lane, model.call_id, heard, self._price))

    def _stopped_call(self) -> UsageRecorded | None:
        """Estimate what a model call has used that was stopped."""
        lane = self.lane.folds.state
        if (model := call_under_way(lane)) is None:
            return None
        return cut_off(lane, model.call_id, model.heard, self._price)

    @property
    def _may_have_budgets(self) -> bool:
        return bool(
            self._has_budget or self._directory.newest or self.lane.folds.state.budget is not None
        )

    async def _share(self, waits: ToolWaits) -> tuple[BudgetTerms, BudgetHold] | None:
        return await self._budgets.share(waits) if self._may_have_budgets else None

    async def _counted(self, contact: ChildContact) -> ChildContact:
        return await self._budgets.counting(contact) if self._may_have_budgets else contact

    # Calls

    def _note_model(self) -> None:
        """Tell counters, metrics and log lines which model the lane asks."""
        self.lane.model = self._executor.model_of(self.lane.folds.state).name
        enter(model=self.lane.model)

    def _begin_model_call(self, action: CallModel) -> None:
        self._note_model()
        ask = partial(self._ask_model, action)
        timeouts = self._executor.model_timeouts(self.lane.folds.state)
        self._tasks.begin(action.call_id, timeouts, ask)

    def _begin_tool(self, start: Start) -> None:
        call = self._call(start.call_id)
        slot = self._gate.hand_over_slot(start.call_id)
        run = partial(self._run_tool, call, start, slot)
        running = self._tasks.begin(start.call_id, self._executor.tool_timeouts(call.tool), run)
        if slot:
            # With the task, not with the call: one that was given up may still be running.
            running.task.add_done_callback(lambda _: slot.leave())

    def _begin_contact(self, request_id: str) -> None:
        """Contact a remote child's server, unless that is under way: the log does not say so."""
        turn = self.lane.folds.state.turn
        assert turn is not None
        if not self._tasks.is_running(request_id):
            contact = partial(self._contact, turn.requests[request_id])
            self._tasks.begin(request_id, CONTACT_TIMEOUTS, contact)

    async def _contact(self, child: OpenRequest, running: RunningCall) -> ChildContact:
        try:
            return await self._executor.contact_child(self.lane.folds.state, child)
        except asyncio.CancelledError:
            if not running.is_overdue:
                raise
            return ChildContact(request_id=child.request_id)

    def _begin_rules(self, action: GiveFeedback | CheckCompletion) -> None:
        """Ask the rules about the turn, unless that is under way: the log does not say so."""
        if not self._tasks.is_running(RULES):
            self._tasks.begin(RULES, NO_TIMEOUTS, partial(self._apply_rules, action))

    async def _apply_rules(
        self, action: GiveFeedback | CheckCompletion, running: RunningCall
    ) -> FeedbackCollected | CompletionChecked:
        folds = self.lane.folds
        view, now = await folds.view(), self.lane.earliest()
        if isinstance(action, GiveFeedback):
            return await self._executor.give_feedback(folds.state, folds.slices, view, action, now)
        return await self._executor.check_completion(folds.state, folds.slices, view, action, now)

    def _begin_compaction(self, action: CompactContext) -> None:
        """Make the view shorter, unless that is under way: the log says so of a summary alone."""
        self._compacting = action
        timeouts = NO_TIMEOUTS
        if action.sums_up:
            self._note_model()
            timeouts = self._executor.model_timeouts(self.lane.folds.state)
        self._tasks.begin(COMPACTION, timeouts, partial(self._compact, action))

    async def _compact(
        self, action: CompactContext, running: RunningCall
    ) -> Compacted | SummaryLost:
        folds, executor = self.lane.folds, self._executor
        view = await folds.view()
        if not action.sums_up:
            return executor.compact(folds.slices, view, action)
        state, provider = folds.state, executor.provider_of(folds.state)

        def hear(_: object) -> None:
            if not running.is_overdue and running.is_awaited:
                running.show_life()

        result: Compacted | SummaryLost
        try:
            result = await executor.sum_up(state, folds.slices, view, action, hear)
        except asyncio.CancelledError:
            if running.is_overdue:
                result = SummaryLost(executor.timed_out(state))
            elif running.is_stopped:
                raise
            else:
                result = SummaryLost(executor.cut_off(state))
        finally:
            running.end()
        if isinstance(result, SummaryLost) and provider:
            # Others need not find it out. Whether it answers again is found out by model calls.
            await self._breakers.note(
                provider,
                result.failed,
                state.session,
                action.call_id,
                parks=False,
                probes=False,
            )
        return result

    async def _ask_model(self, action: CallModel, running: RunningCall) -> Answered | ModelFailed:
        stream: DeltaStream | None = None
        provider = self._executor.provider_of(self.lane.folds.state)
        if not action.probes:
            has_others = len(self._policy.models) > 1
            away = await self._breakers.find_away(
                provider, self.lane.session_id, action.call_id, has_others=has_others
            )
            if away:
                running.end()
                return away

        def hear(delta: MessageDelta | ReasoningDelta | None) -> None:
            nonlocal stream
            # A call that was told to stop may still hear: its time must not be lengthened, nor its
            # lane written to.
            if running.is_overdue or not running.is_awaited:
                return
            running.show_life()
            if delta is not None:
                # The first word is enough for others to be let through: an answer may take minutes.
                if action.probes and provider and stream is None:
                    self._breakers.hear(provider)
                stream = stream or DeltaStream(self.lane, running, seconds(self._settings.flush))
                stream.add(delta)

        folds = self.lane.folds
        try:
            view = await folds.view()
            result = await self._executor.call_model(folds.state, folds.slices, view, action, hear)
        except asyncio.CancelledError:
            # Cancelled for being late: that is a failure of the attempt, not the end of the task.
            if running.is_overdue:
                result = self._executor.timed_out(folds.state)
            elif running.is_stopped:
                raise
            else:
                result = self._executor.cut_off(folds.state)
        finally:
            # What is left is to record the answer: no timeout may take it back.
            running.end()
            if stream:
                # Its last deltas go into the answer's own commit: flushed before, a whole answer
                # could look cut off after a crash.
                await stream.end()
        return stream.complete(result) if stream else result

    async def _run_tool(
        self, call: OpenCall, start: Start, slot: CallSlot | None, running: RunningCall
    ) -> ToolEnd | None:
        journal = LaneJournal(
            self.lane, running, slot, self._policy, self._store, self._clock, self._settings
        )
        try:
            end = await self._executor.run_tool(call, start, journal)
        except asyncio.CancelledError:
            # It was not cancelled from here: the tool has cancelled itself, and may have done its
            # work before.
            if not running.is_stopped:
                return Interrupted(call.call_id, "cancelled")
            if not running.is_overdue:
                raise
        else:
            # What a tool raises while it is being stopped says nothing about what it did.
            if not (running.is_overdue and isinstance(end, Raised)):
                return end
        finally:
            with suppress(asyncio.CancelledError):  # its outcome is known, and stands
                await journal.end()
        return Interrupted(call.call_id, "timeout")

    def _call(self, call_id: str) -> OpenCall:
        turn = self.lane.folds.state.turn
        assert turn is not None
        return turn.calls[call_id]

    # Stopping

    async def _wind_down(self) -> None:
        """Let what runs end for a while, record it, and hand the lane back."""
        # Waiting calls first: they would take the slots that running calls leave, and begin nothing
        # any more.
        self._gate.leave_slots()
        await self.lane.flush()
        await self._tasks.wait(seconds(self._settings.grace))
        results = self._tasks.take_results()
        action = decide(self.lane.folds.state, self._policy, self.lane.earliest())
        # What has ended within the grace is recorded here, so that the next owner need not ask what
        # became of it.
        await self._record(action, results)
        await self._abandon()
        await self.lane.hand_back(self._cut_off)

    async def _abandon(self) -> None:
        self._gate.leave_slots()
        await self._tasks.abandon()

    async def _end_of(self, action: CompleteSession | FailSession) -> ChildEnd:
        """Return what a session that ends came to: its last turn's answer, or why it has none."""
        if isinstance(action, FailSession):
            return ChildEnd(error=action.error)
        if not action.turn:
            return ChildEnd(error=Failure("ENDED", action.reason or "somebody ended it"))
        ended = await insist(
            self._clock,
            read_outcome,
            self._store,
            self.lane.session_id,
            self.lane.folds.head + 1,
            lambda turn: turn == action.turn,
        )
        assert ended is not None
        try:
            return ChildEnd(value=self._executor.output_of(ended.text, ended.output))
        except OutlastError as error:  # the code of today cannot read what it had said
            return ChildEnd(error=Failure(error.code, error.message))


def with_deployment(records: Sequence[AnyRecord], name: str) -> list[AnyRecord]:
    """Say of a turn that starts with which version of the code it does."""
    return [replace(e, deployment=name) if isinstance(e, r.TurnStarted) else e for e in records]


def can_be_refused(action: RunTools | ExpireRequest | TakeRelay) -> bool:
    """Say whether another call's key, or an answer just in time, can stand against an action."""
    match action:
        case RunTools():
            return takes_key(action) or bool(action.spends and action.budgets)
        case TakeRelay():
            return action.relay.how == "expired"  # the parent says that its time is up
    return True
