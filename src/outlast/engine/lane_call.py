"""The calls of one lane: what the task of each does, and what it comes to when its time is up.

Owns how a model call, a tool, the contact with a remote child's server, rules and a compaction are
begun, and that what they tell meanwhile shows that they live. Refuses to know when one may begin
(`lane_runner.py`) and how its result is recorded (`result_recorder.py`). Tasks and timeouts are in
`call_tasks.py`, how a model is asked and a tool is run behind `executor.py`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from outlast.clock import Clock
from outlast.core.action import CallModel, CheckCompletion, CompactContext, GiveFeedback, Start
from outlast.core.budget_charge import call_under_way, calls_cut_off, cut_off, summary_cut_off
from outlast.core.instant import seconds
from outlast.core.lane import Lane, OpenCall, OpenRequest
from outlast.core.record import AnyRecord, MessageDelta, ReasoningDelta, UsageRecorded
from outlast.core.result import (
    Answered,
    CallPrice,
    ChildContact,
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
)
from outlast.engine.call_journal import LaneJournal
from outlast.engine.call_tasks import CallTasks, CallTimeouts, RunningCall
from outlast.engine.coalesce import DeltaStream
from outlast.engine.executor import CallSlot, Executor
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.provider_breaker import ProviderBreakers
from outlast.engine.settings import WorkerSettings
from outlast.engine.start_gate import StartGate
from outlast.log_context import enter
from outlast.store import Store

CONTACT_TIMEOUTS = CallTimeouts(120.0)
"""For contacting the server of a remote child, whose requests have timeouts of their own."""
RULES = "rules"
"""Names the one task of a lane in which rules look at its turn. Each has a timeout of its own."""
COMPACTION = "compaction"
"""Names the one task of a lane in which its view is made shorter."""
NO_TIMEOUTS = CallTimeouts(float("inf"))
TOOL_ENDS = (Returned, Raised, Interrupted, ToolWaits, Mismatched, Restarted, Undone)


class LaneCalls:
    """One lane's calls in this worker.

    `compacting` is what the view is being made shorter for, or was last.
    """

    def __init__(
        self,
        lane: OwnedLane,
        executor: Executor,
        store: Store,
        clock: Clock,
        settings: WorkerSettings,
        gate: StartGate,
        breakers: ProviderBreakers,
    ) -> None:
        self._lane = lane
        self._executor = executor
        self._store = store
        self._clock = clock
        self._settings = settings
        self._gate = gate
        self._breakers = breakers
        self.tasks = CallTasks(
            clock, seconds(settings.stop_grace), lane.folds.wakeup, self._timed_out
        )
        self.compacting: CompactContext | None = None
        self._noted_model = ""

    def find(self, call_id: str) -> OpenCall:
        turn = self._lane.folds.state.turn
        assert turn is not None
        return turn.calls[call_id]

    # Model calls

    def note_model(self) -> None:
        """Tell counters, metrics and log lines which model the lane asks."""
        name = self._executor.model_of(self._lane.folds.state).name
        if name != self._noted_model:
            self._noted_model = self._lane.model = name
            enter(model=name)

    def begin_model_call(self, action: CallModel) -> None:
        self.note_model()
        ask = partial(self._ask_model, action)
        timeouts = self._executor.model_timeouts(self._lane.folds.state)
        self.tasks.begin(action.call_id, timeouts, ask)

    async def _ask_model(self, action: CallModel, running: RunningCall) -> Answered | ModelFailed:
        stream: DeltaStream | None = None
        provider = self._executor.provider_of(self._lane.folds.state) if action.probes else None
        if not action.probes and self._breakers.knows_any:
            provider = self._executor.provider_of(self._lane.folds.state)
            has_others = len(self._executor.policy.models) > 1
            away = await self._breakers.find_away(
                provider, self._lane.session_id, action.call_id, has_others=has_others
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
                stream = stream or DeltaStream(self._lane, running, seconds(self._settings.flush))
                stream.add(delta)

        folds = self._lane.folds
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
            # Only recording the answer is left: no timeout may take it back.
            running.end()
            if stream:
                # Its last deltas go into the answer's own commit: flushed before, a whole answer
                # could look cut off after a crash.
                await stream.end()
        return stream.complete(result) if stream else result

    # Tools

    def begin_tool(self, start: Start) -> None:
        call = self.find(start.call_id)
        slot = self._gate.hand_over_slot(start.call_id)
        run = partial(self._run_tool, call, start, slot)
        running = self.tasks.begin(start.call_id, self._executor.tool_timeouts(call.tool), run)
        if slot:
            # With the task, not with the call: one that was given up may still be running.
            running.task.add_done_callback(lambda _: slot.leave())

    async def _run_tool(
        self, call: OpenCall, start: Start, slot: CallSlot | None, running: RunningCall
    ) -> ToolEnd | None:
        journal = LaneJournal(
            self._lane,
            running,
            slot,
            self._executor.policy,
            self._store,
            self._clock,
            self._settings,
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

    # Remote children and rules

    def begin_contact(self, request_id: str) -> None:
        """Contact a remote child's server, unless that is under way: the log does not say so."""
        turn = self._lane.folds.state.turn
        assert turn is not None
        if not self.tasks.is_running(request_id):
            contact = partial(self._contact, turn.requests[request_id])
            self.tasks.begin(request_id, CONTACT_TIMEOUTS, contact)

    async def _contact(self, child: OpenRequest, running: RunningCall) -> ChildContact:
        try:
            return await self._executor.contact_child(self._lane.folds.state, child)
        except asyncio.CancelledError:
            if not running.is_overdue:
                raise
            return ChildContact(request_id=child.request_id)

    def begin_rules(self, action: GiveFeedback | CheckCompletion) -> None:
        """Ask the rules about the turn, unless that is under way: the log does not say so."""
        if not self.tasks.is_running(RULES):
            self.tasks.begin(RULES, NO_TIMEOUTS, partial(self._apply_rules, action))

    async def _apply_rules(
        self, action: GiveFeedback | CheckCompletion, running: RunningCall
    ) -> FeedbackCollected | CompletionChecked:
        folds = self._lane.folds
        view, now = await folds.view(), self._lane.earliest()
        if isinstance(action, GiveFeedback):
            return await self._executor.give_feedback(folds.state, folds.slices, view, action, now)
        return await self._executor.check_completion(folds.state, folds.slices, view, action, now)

    # Compactions

    @property
    def is_compacting(self) -> bool:
        """Whether the view is being made shorter, or that has ended and is yet to be recorded."""
        ended = any(isinstance(each, Compacted | SummaryLost) for each in self.tasks.results)
        return ended or self.tasks.is_running(COMPACTION)

    def begin_compaction(self, action: CompactContext) -> None:
        """Make the view shorter, unless that is under way: the log says so of a summary alone."""
        self.compacting = action
        timeouts = NO_TIMEOUTS
        if action.sums_up:
            self.note_model()
            timeouts = self._executor.model_timeouts(self._lane.folds.state)
        self.tasks.begin(COMPACTION, timeouts, partial(self._compact, action))

    async def _compact(
        self, action: CompactContext, running: RunningCall
    ) -> Compacted | SummaryLost:
        folds, executor = self._lane.folds, self._executor
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

    async def drop_compaction(self) -> None:
        await self.tasks.drop(COMPACTION)
        results = self.tasks.results
        results[:] = [each for each in results if not isinstance(each, Compacted | SummaryLost)]
        self._lane.write([*summary_cut_off(self._lane.folds.state, self.price)])

    # Calls that were cut off

    async def stop(self) -> TurnStopped:
        """Stop what runs of a turn; return what it came to by then."""
        ends = await self.tasks.stop()
        kept = tuple(end for end in ends if isinstance(end, TOOL_ENDS))
        self._lane.write([*summary_cut_off(self._lane.folds.state, self.price)])
        return TurnStopped(kept, self._stopped_call())

    def _timed_out(self, call_id: str) -> Result:
        lane = self._lane.folds.state
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

    def price(self, input_tokens: int, output_tokens: int) -> CallPrice | None:
        return self._executor.price(self._lane.folds.state, input_tokens, output_tokens)

    def cut_off(self, lane: Lane) -> Iterator[AnyRecord]:
        return calls_cut_off(lane, self.price)

    def _stopped_call(self) -> UsageRecorded | None:
        """Estimate what a model call has used that was stopped."""
        lane = self._lane.folds.state
        if (model := call_under_way(lane)) is None:
            return None
        return cut_off(lane, model.call_id, model.heard, self.price)
