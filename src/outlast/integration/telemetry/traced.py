"""A worker's executor and store, wrapped so that OpenTelemetry hears of calls, commits and turns.

Only `log.commit` and `work.claim` are wrapped; every other method is the wrapped store's own.
A turn's span is added by the worker that records the turn's end. If the turn began elsewhere,
its start is read from the log.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from outlast.agents.agent import Agent
from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.action import CallModel, CompactContext, Start
from outlast.core.lane import Lane, OpenCall
from outlast.core.message import Text
from outlast.core.result import (
    Answered,
    Compacted,
    Interrupted,
    Mismatched,
    ModelFailed,
    Raised,
    Restarted,
    Returned,
    SummaryLost,
    ToolEnd,
    ToolWaits,
    Undone,
    Usage,
)
from outlast.core.slice import Slices
from outlast.core.view import View
from outlast.engine.counters import BoundedCodes
from outlast.engine.executor import CallJournal, Executor, Hear
from outlast.errors import StoreError
from outlast.integration.telemetry import content
from outlast.integration.telemetry.instrument import Instruments
from outlast.log.reader import EntriesBefore
from outlast.log_context import enter, get_logger, known
from outlast.store import (
    NO_LIMITS,
    Claim,
    Commit,
    Committed,
    LogStore,
    Refused,
    Store,
    WorkStore,
)

log = get_logger("outlast.engine")

PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""The conventions' names for providers, where they differ from ours."""


class TracedExecutor:
    """Wraps another executor."""

    def __init__(
        self,
        executor: Executor,
        name: str,
        agent: Agent[Any, Any] | None,
        clock: Clock,
        instruments: Instruments | None,
    ) -> None:
        self._executor = executor
        self._name = name
        self._instructions = agent.instructions if agent else ""
        self._clock = clock
        self._to = instruments
        # Not worth a span: passed through without a further call.
        self.policy = executor.policy
        self.model_of = executor.model_of
        self.estimate = executor.estimate
        self.price = executor.price
        self.model_timeouts = executor.model_timeouts
        self.tool_timeouts = executor.tool_timeouts
        self.providers = executor.providers
        self.provider_of = executor.provider_of
        self.bounds_of_model = executor.bounds_of_model
        self.bounds_of_tool = executor.bounds_of_tool
        self.key_of_tool = executor.key_of_tool
        self.slot_for = executor.slot_for
        self.may_answer = executor.may_answer
        self.misfit = executor.misfit
        self.digests = executor.digests
        self.contact_child = executor.contact_child
        self.note_of_tool = executor.note_of_tool
        self.change_state = executor.change_state
        self.give_feedback = executor.give_feedback
        self.check_completion = executor.check_completion
        self.needs_summary = executor.needs_summary
        self.compact = executor.compact
        self.cut_off = executor.cut_off
        self.timed_out = executor.timed_out
        self.output_of = executor.output_of

    # The model

    async def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Answered | ModelFailed:
        enter(turn=action.turn, step=action.step, call=action.call_id, attempt=action.attempt)
        if self._to is None or not self._to.is_heard:
            result = await self._executor.call_model(lane, slices, view, action, hear)
        else:
            result = await self._trace_model(self._to, lane, slices, view, action, hear)
        if type(result) is ModelFailed:
            name = self.model_of(lane).name
            why = {"code": result.error.code, "kind": result.kind, "model": name}
            log.info("a model call failed", extra=why)
        return result

    async def sum_up(
        self, lane: Lane, slices: Slices, view: View, action: CompactContext, hear: Hear
    ) -> Compacted | SummaryLost:
        enter(turn=action.turn, call=action.call_id, attempt=action.attempt)
        if self._to is None or not self._to.is_heard:
            return await self._executor.sum_up(lane, slices, view, action, hear)
        facts = model_facts(self.model_of(lane).name)
        name = f"chat {facts['gen_ai.request.model']}"
        attributes = {**facts, "gen_ai.conversation.id": lane.session}
        began = self._clock.monotonic()
        with self._to.span(name, lane.session, action.turn, attributes, client=True) as span:
            if span.is_recording():
                span.set_attribute("gen_ai.agent.name", self._name)
            result = await self._executor.sum_up(lane, slices, view, action, hear)
            answer = result.failed if isinstance(result, SummaryLost) else answered(result)
            if span.is_recording():
                self._after(self._to, span, answer)
        measure(self._to, facts, answer, self._clock.monotonic() - began)
        return result

    async def _trace_model(
        self,
        to: Instruments,
        lane: Lane,
        slices: Slices,
        view: View,
        action: CallModel,
        hear: Hear,
    ) -> Answered | ModelFailed:
        model = self.model_of(lane)
        facts = model_facts(model.name)
        name = f"chat {facts['gen_ai.request.model']}"
        attributes = {**facts, "gen_ai.conversation.id": lane.session}
        began = self._clock.monotonic()
        with to.span(name, lane.session, action.turn, attributes, client=True) as span:
            if span.is_recording():
                span.set_attribute("gen_ai.request.stream", model.streams)
                self._before(to, span, view)
            result = await self._executor.call_model(lane, slices, view, action, hear)
            if span.is_recording():
                self._after(to, span, result)
        measure(to, facts, result, self._clock.monotonic() - began)
        return result

    def _before(self, to: Instruments, span: Any, view: View) -> None:
        span.set_attribute("gen_ai.agent.name", self._name)
        if to.telemetry.content:
            span.set_attribute("gen_ai.input.messages", content.messages(view.messages))
            if isinstance(self._instructions, str) and self._instructions:
                told = [{"type": "text", "content": self._instructions}]
                span.set_attribute("gen_ai.system_instructions", content.to_json(told))

    def _after(self, to: Instruments, span: Any, result: Answered | ModelFailed) -> None:
        if isinstance(result, ModelFailed):
            to.fail(span, result.error.code, result.error.message)
            return
        usage = result.usage
        span.set_attributes(
            {
                "gen_ai.response.model": result.model,
                "gen_ai.response.finish_reasons": [result.finish],
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
            }
        )
        if to.telemetry.content:
            told = content.answer(result.parts, result.finish)
            span.set_attribute("gen_ai.output.messages", told)

    # The tools

    async def run_tool(self, call: OpenCall, start: Start, journal: CallJournal) -> ToolEnd | None:
        turn = journal.lane.turn
        assert turn is not None
        enter(turn=turn.id, step=turn.step, call=call.call_id, attempt=start.attempt)
        if call.request:
            enter(request=call.request)
        if self._to is None or not self._to.is_heard:
            end = await self._executor.run_tool(call, start, journal)
        else:
            end = await self._trace_tool(self._to, turn.id, call, start, journal)
        if type(end) is Raised:
            log.info("a tool failed", extra={"tool": call.tool, "code": end.error.code})
        return end

    async def _trace_tool(
        self, to: Instruments, turn: str, call: OpenCall, start: Start, journal: CallJournal
    ) -> ToolEnd | None:
        session = journal.lane.session
        facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.tool}
        began = self._clock.monotonic()
        name = f"execute_tool {call.tool}"
        with to.span(name, session, turn, facts, client=False) as span:
            end = await self._executor.run_tool(call, start, journal)
            if span.is_recording():
                self._describe(to, span, call, session, end)
        outcome = {"gen_ai.tool.name": call.tool, "outlast.outcome": outcome_of(end)}
        to.tools.record(self._clock.monotonic() - began, outcome)
        return end

    def _describe(
        self, to: Instruments, span: Any, call: OpenCall, session: str, end: ToolEnd | None
    ) -> None:
        span.set_attributes(
            {
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call.call_id,
                "gen_ai.agent.name": self._name,
                "gen_ai.conversation.id": session,
                "outlast.outcome": outcome_of(end),
            }
        )
        match end:
            case Raised(error=error):
                to.fail(span, error.code, error.message)
            case Interrupted(reason=reason, why=why):
                to.fail(span, "INTERRUPTED", why or reason)
        if to.telemetry.content:
            span.set_attribute("gen_ai.tool.call.arguments", call.args)
            if isinstance(end, Returned):
                span.set_attribute("gen_ai.tool.call.result", end.value)


def answered(summary: Compacted) -> Answered:
    """Return the summary as an answer: a compaction that needed none has no usage."""
    return Answered((Text(summary.text),), summary.usage or Usage(), model=summary.model)


def measure(
    to: Instruments, facts: Mapping[str, str], result: Answered | ModelFailed, seconds: float
) -> None:
    """Count a model call, by the facts of the model that was asked."""
    if isinstance(result, ModelFailed):
        to.model_calls.record(seconds, {**facts, "error.type": result.error.code})
        return
    facts = {**facts, "gen_ai.response.model": result.model}
    to.model_calls.record(seconds, facts)
    to.tokens.record(result.usage.input_tokens, {**facts, "gen_ai.token.type": "input"})
    to.tokens.record(result.usage.output_tokens, {**facts, "gen_ai.token.type": "output"})


def outcome_of(end: ToolEnd | None) -> str:
    """Name how a tool call ended; `recorded` if its end was written in its own transaction."""
    match end:
        case Returned():
            return "returned"
        case Raised():
            return "raised"
        case Interrupted():
            return "interrupted"
        case ToolWaits():
            return "waits"
        case Mismatched():
            return "mismatched"
        case Restarted():
            return "restarted"
        case Undone():
            return "undone"
        case None:
            return "recorded"


def model_facts(name: str) -> dict[str, str]:
    """Return the attributes of a model by the conventions, from its name: `openai:gpt-5.2`."""
    provider, _, model = name.rpartition(":")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(provider, provider or "unknown"),
        "gen_ai.request.model": model,
    }


TurnEnd = r.TurnCompleted | r.TurnFailed | r.TurnCancelled

HOW = {r.TurnCompleted: "completed", r.TurnFailed: "failed", r.TurnCancelled: "cancelled"}
OF_NOTE = frozenset({*HOW, r.TurnStarted, r.LaneTakenOver, r.ProviderUnavailable})
MOST_REMEMBERED = 10_000


class TracedStore:
    """A `outlast.store.Store` that reports what a worker claims and commits."""

    def __init__(self, store: Store, instruments: Instruments) -> None:
        self.log = TracedLog(store.log, instruments)
        self.work = TracedWork(store.work, instruments)
        self.listing = store.listing
        self.limit = store.limit
        self.outbox = store.outbox
        self.document = store.document
        self.usage = store.usage
        self.budget = store.budget
        self.clock = store.clock
        self.migrate = store.migrate
        self.close = store.close
        self.counts = store.counts


class TracedWork:
    """A `outlast.store.WorkStore` that counts claims."""

    def __init__(self, work: WorkStore, instruments: Instruments) -> None:
        self._claim = work.claim
        self._to = instruments
        self.enlist = work.enlist
        self.find_dead = work.find_dead
        self.workers = work.workers
        self.drain = work.drain
        self.deployments = work.deployments
        self.promote = work.promote
        self.retire = work.retire
        self.find_arrivals = work.find_arrivals
        self.find_unfinished = work.find_unfinished
        self.next_ready_at = work.next_ready_at
        self.listen = work.listen

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        agents: Sequence[str] | None = None,
        version: int = r.FORMAT,
        lanes: Sequence[str] | None = None,
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Sequence[Claim]:
        claims = await self._claim(worker, limit, held, agents, version, lanes, most)
        if claims:
            self._to.claims.add(len(claims))
        self._to.held.set(len(held) + len(claims), {"outlast.worker": worker})
        return claims


class TurnBegan(NamedTuple):
    """When a turn began, and the span in which its message was sent."""

    at: int
    traceparent: str


class TracedLog:
    """A `outlast.store.LogStore` that counts commits and adds the spans of turns."""

    def __init__(self, log: LogStore, instruments: Instruments) -> None:
        self._commit = log.commit
        self._to = instruments
        self._began: OrderedDict[tuple[str, str], TurnBegan] = OrderedDict()
        self._codes = BoundedCodes()
        self.admit = log.admit
        self.transaction = log.transaction
        self.effect = log.effect
        self.load = log.load
        self.read = log.read
        self.read_back = log.read_back
        self.erase = log.erase
        self.find_orphans = log.find_orphans
        self.drop_snapshots = log.drop_snapshots

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self._commit(commits)
        if not self._to.is_heard:
            return results
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Refused):
                self._to.refusals.add(1, {"outlast.reason": result.reason})
                continue
            self._to.commits.add(1)
            for record in commit.records:
                if type(record) in OF_NOTE:
                    await self._note(commit, result, record)
        return results

    async def _note(self, commit: Commit, result: Committed, record: r.AnyRecord) -> None:
        match record:
            case r.TurnStarted(turn=turn):
                began = TurnBegan(result.at, record.traceparent)
                self._remember(commit.session_id, turn, began)
            case r.LaneTakenOver(graceful=graceful, evidence=evidence):
                self._to.takeovers.add(
                    1, {"outlast.graceful": graceful, "outlast.evidence": evidence}
                )
            case r.ProviderUnavailable(error=error):
                self._to.outages.add(1, self._facts_of(error))
            case r.TurnFailed(error=error):
                self._to.failed_turns.add(1, self._facts_of(error))
                await self._add_turn(commit, result, record)
            case r.TurnCompleted() | r.TurnCancelled():
                await self._add_turn(commit, result, record)

    def _facts_of(self, error: r.Failure) -> dict[str, str]:
        """Return what failed, and of which agent and model."""
        facts = model_facts(str(known().get("model", "")))
        return {
            "error.type": self._codes.told(error.code),
            "gen_ai.agent.name": str(known().get("agent", "")),
            "gen_ai.provider.name": facts["gen_ai.provider.name"],
            "gen_ai.request.model": facts["gen_ai.request.model"],
        }

    def _remember(self, session_id: str, turn: str, began: TurnBegan) -> None:
        """Keep a turn's start, unless so many began here that ended elsewhere."""
        self._began[session_id, turn] = began
        if len(self._began) > MOST_REMEMBERED:
            self._began.popitem(last=False)

    async def _add_turn(self, commit: Commit, result: Committed, end: TurnEnd) -> None:
        began = self._began.pop((commit.session_id, end.turn), None)
        if began is None and self._to.is_traced:
            began = await self._find_start(commit.session_id, end.turn, result.first_offset)
        if began is None:
            return
        how, agent = HOW[type(end)], str(known().get("agent", ""))
        facts = {"gen_ai.agent.name": agent, "outlast.outcome": how}
        self._to.turns.record((result.at - began.at) / 1000, facts)
        self._to.add_turn(
            agent,
            commit.session_id,
            end.turn,
            began.at,
            result.at,
            began.traceparent,
            end.error.code if isinstance(end, r.TurnFailed) else "",
            **{
                "outlast.outcome": how,
                "gen_ai.usage.input_tokens": end.usage.input_tokens,
                "gen_ai.usage.output_tokens": end.usage.output_tokens,
            },
        )

    async def _find_start(self, session_id: str, turn: str, before: int) -> TurnBegan | None:
        with suppress(StoreError):  # what was committed must not look as if it had failed
            async for entry in EntriesBefore(self, session_id, before):
                if isinstance(entry.record, r.TurnStarted) and entry.record.turn == turn:
                    return TurnBegan(entry.at, entry.record.traceparent)
        return None
