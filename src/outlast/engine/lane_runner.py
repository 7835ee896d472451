"""Runs a claimed lane until it has to wait or has ended.

Owns the loop: decide, record, commit before every effect, perform, record the outcome, and again.
Refuses to know how a model is called or a tool is run (`executor.py`) and what the log looks like
(`owned_lane.py`). Calls run in tasks beside the loop (`lane_call.py`), so that what arrives while
one runs is looked at at once; what has to be had before one may begin is in `start_gate.py`, how
results are written down in `result_recorder.py`, what others asked for in `requested_change.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from outlast.clock import Clock
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
    TakeEvent,
    TakeRelay,
    TakeReply,
)
from outlast.core.amount import BudgetHold
from outlast.core.compaction import pinned_calls
from outlast.core.decide import decide
from outlast.core.instant import seconds
from outlast.core.outcome import opening
from outlast.core.record import AnyRecord, Failure
from outlast.core.request import allowed_call
from outlast.core.result import ChildEnd, Result
from outlast.core.state_change import put_change_first
from outlast.core.visible import visible_line
from outlast.engine.budget_gate import BudgetDirectory, BudgetGate
from outlast.engine.executor import Executor
from outlast.engine.lane_call import LaneCalls
from outlast.engine.lane_folds import LaneStale, insist
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.provider_breaker import ProviderBreakers
from outlast.engine.requested_change import RequestedChanges
from outlast.engine.result_recorder import ResultRecorder
from outlast.engine.settings import WorkerSettings
from outlast.engine.start_gate import StartGate, takes_key
from outlast.errors import OutlastError
from outlast.log.reader import read_outcome
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.engine")

STALE_PAUSE = 0.05
LOOK_EVERY = 15.0
"""Seconds after which a lane looks at the time again, whatever it waits for."""
BEGINS_NO_CALL = frozenset({TakeRelay, TakeEvent, ExpireRequest, SettleDeliveries, ChangeState})
GIVES_UP_SUMMARIES = (Park, CompleteSession, FailSession)
"""With these, nothing waits any more for a summary that is being made between turns."""


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
        lane.agent_budget = executor.policy.session_budget
        self._gate = StartGate(lane, executor, store, clock, breakers, session_bytes)
        self._budgets = BudgetGate(lane, executor, store, clock, directory)
        self._calls = LaneCalls(lane, executor, store, clock, settings, self._gate, breakers)
        self._tasks = self._calls.tasks
        self._recorder = ResultRecorder(lane, executor, self._calls, self._budgets, breakers)
        self._changes = RequestedChanges(lane, executor, self._gate, self._calls)
        self._has_hint = False
        self._stopping = False

    async def run(self) -> None:
        """Run the lane until it was given back. Raises LaneLost if another worker has it now."""
        # Log lines of the lane name its model from the first on.
        self._calls.note_model()
        try:
            while True:
                try:
                    # In the loop: after a stale lane was folded again, its first commit has to
                    # record the takeover anew.
                    self.lane.take_over(self._calls.cut_off)
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
            if self.lane.folds.state.summary and isinstance(action, GIVES_UP_SUMMARIES):
                await self._calls.drop_compaction()
            if action.is_rest:
                if await self.lane.rest(action):  # type: ignore[arg-type]
                    return
            elif await self._open(action) and action.is_effect:
                # Before the flush as well: a start that is in the log counts as begun, and without
                # a lease it would be the interruption of something that never ran.
                if pause := self._until_confirmed():
                    await pause
                if not (type(action) is RunTools and self._may_run_ahead(action)):
                    await self.lane.flush()
                    if pause := self._until_confirmed():  # a store may have been away for long
                        await pause
                await self._recorder.record(action, await self._perform(action))
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
            allowed = await self._allowed(action)
            # What came while the gate was asked may call for something else.
            if allowed is not None and arrivals == self.lane.folds.arrivals:
                return allowed

    async def _allowed(self, action: AnyAction) -> AnyAction | None:
        """Return an action as far as it may begin now; None if it has to be decided anew."""
        if type(action) is TakeReply:
            return await self._take_if_allowed(action)
        if type(action) in BEGINS_NO_CALL:  # so calls that wait for a slot keep it
            return action
        if type(action) is CompactContext and self._calls.is_compacting:
            return action
        allowed = await self._gate.let_in(action)
        if allowed is not None and allowed is not action:  # it may rest instead
            allowed = self._change_first(allowed)
        if allowed is None or not self._budgets.is_needed:
            return allowed
        affordable = await self._budgets.let_in(allowed)
        if affordable is allowed:
            return allowed
        if isinstance(affordable, CompactContext) and not affordable.sums_up:
            self.lane.return_permit(affordable.call_id)  # no budget allows a summary
        return None if affordable is None else self._change_first(affordable)

    def _change_first(self, action: AnyAction) -> AnyAction:
        state = self.lane.folds.state
        return put_change_first(state, action) if state.changes else action

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
        if type(action) is MissTools:
            facts = {"calls": action.calls}
            log.warning("calls wait for a worker whose code has their tools", extra=facts)
        hold: BudgetHold | None = None
        if type(action) is CallModel:
            hold = action.hold
            if action.restarts:
                action = await self._with_restart(action)
                if arrivals != lane.folds.arrivals:
                    return False
        elif type(action) is CompactContext:
            hold = action.hold
        # The time that a human has to answer counts from here; else this is only a date.
        now = lane.latest() if type(action) is AskHuman else lane.date()
        records = opening(lane.folds.state, action, now)
        if self._settings.deployment:
            records = with_deployment(records, self._settings.deployment)
        # Committed apart and at once, and not folded before: what is refused must leave no trace
        # here.
        if can_be_refused(action):
            return await self._try_to_open(records, arrivals)
        # A shared budget may have been spent by another session meanwhile: the store then refuses
        # this commit.
        if hold and hold.budgets:
            return await self._try_to_open(records, arrivals)
        if type(action) is ChangeState:
            return await self._changes.change_state(action.change, arrivals)
        if type(action) is ChangeContext:
            return await self._changes.change_context(action, arrivals)
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

    async def _perform(self, action: AnyAction) -> list[Result]:
        """Do what the action says, as far as the next result or arrival."""
        match action:
            case CallModel():
                # While the call runs this is only another look at it: arrivals and other results
                # wake the loop.
                if not action.running:
                    self._calls.begin_model_call(action)
            case RunTools():
                for start in action.start:
                    self._calls.begin_tool(start)
                for request_id in action.contact:
                    self._calls.begin_contact(request_id)
                # What was reported is all there was to do, and is in the opening: there is nothing
                # to wait for.
                if action.report and self._tasks.is_idle:
                    return []
                if self.lane.is_ahead:
                    await self._commit_started(action.until)
            case GiveFeedback() | CheckCompletion():
                self._calls.begin_rules(action)
            case CompactContext():
                if not self._calls.is_compacting:
                    self._calls.begin_compaction(action)
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
                return [await self._calls.stop()]
        return await self._next_results(action.until)  # type: ignore[union-attr]

    async def _commit_started(self, until: int) -> None:
        """Commit calls that began ahead of it, unless they have ended: then their ends go along."""
        await asyncio.sleep(0)  # a call that needs only one round of the loop saves a commit
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
        await self._recorder.record(action, results)
        await self._abandon()
        await self.lane.hand_back(self._calls.cut_off)

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


def can_be_refused(action: AnyAction) -> bool:
    """Say whether another call's key, or an answer just in time, can stand against an action."""
    if type(action) is RunTools:
        return takes_key(action) or bool(action.spends and action.budgets)
    if type(action) is TakeRelay:
        return action.relay.how == "expired"  # the parent says that its time is up
    return type(action) is ExpireRequest
