"""What OpenTelemetry is told of the work: one trace per turn, whoever carries it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from known import known
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, StatusCode
from scene import FAST, agent, log_of, running, until

from outlast import Agent, Approval, ModelOptions, Outlast, Telemetry, tool
from outlast.core.name import request_name
from outlast.errors import StoreUnavailable
from outlast.integration.telemetry.trace import TurnIds, trace_of
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, calls, say
from outlast.testing.wrapped_store import WrappedStore


class Told:
    """An SDK of a test's own, and what it was told."""

    def __init__(self, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def the(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @property
    def text(self) -> str:
        """All that was told, to look for what must not be in it."""
        return "\n".join(span.to_json() for span in self.spans)

    def metric(self, name: str) -> list[Any]:
        """The data points of a metric."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in known(data).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def told() -> Told:
    return Told()


@asynccontextmanager
async def observed(
    told: Told, *agents: Agent[Any, Any], content: bool = False, sample: float = 1.0, **options: Any
) -> AsyncIterator[Outlast]:
    telemetry = told.telemetry(content=content, sample=sample)
    async with running(*agents, telemetry=telemetry, **options) as app:
        yield app


def facts(span: ReadableSpan, prefix: str) -> dict[str, Any]:
    found = span.attributes or {}
    return {name.removeprefix(prefix): v for name, v in found.items() if name.startswith(prefix)}


def trace_ids(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in spans if span.context}


@tool(readonly=True)
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def looking(**options: Any) -> Agent[Any, Any]:
    script = [calls(("look", {"at": "stars"}), ("look", {"at": "moon"})), say("all is well")]
    return agent(script, tools=[look], **options)


# Spans


async def test_a_turn_is_a_trace_of_its_model_calls_and_tool_calls(told: Told) -> None:
    async with observed(told, looking(), settings=replace(FAST, name="w1")) as app:
        session = await app.start("a", "go")
        await session.wait()

    turn, first, second = told.the("invoke_agent a"), *told.named("chat scripted")
    tools = told.named("execute_tool look")
    expected = trace_of(session.id, "t1")
    assert len(told.spans) == 5
    assert trace_ids(told.spans) == {expected.trace_id}
    assert {span.parent.span_id for span in told.spans if span.parent} == {expected.span_id}
    assert (turn.kind, first.kind, tools[0].kind) == (
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
    )
    where = {"session": session.id, "lane": "main", "worker": "w1", "fence": 1, "turn": "t1"}
    assert facts(first, "outlast.") == {**where, "step": 1, "call": "t1.s1", "attempt": 1}
    assert facts(second, "outlast.")["call"] == "t1.s2"
    for number, span in enumerate(sorted(tools, key=lambda s: str(facts(s, "gen_ai."))), 1):
        assert facts(span, "outlast.") == {
            **where,
            "step": 1,
            "call": f"t1.s1.c{number}",
            "attempt": 1,
            "outcome": "returned",
        }
    assert facts(turn, "outlast.") == {**where, "outcome": "completed"}


async def test_spans_follow_the_genai_conventions(told: Told) -> None:
    async with observed(told, looking()) as app:
        session = await app.start("a", "go")
        await session.wait()

    chat, tool_span = told.named("chat scripted")[1], told.named("execute_tool look")[0]
    assert facts(chat, "gen_ai.") == {
        "operation.name": "chat",
        "provider.name": "unknown",
        "request.model": "scripted",
        "request.stream": True,
        "response.model": "scripted",
        "response.finish_reasons": ("stop",),
        "usage.input_tokens": 30,
        "usage.output_tokens": 3,
        "usage.cache_read.input_tokens": 0,
        "usage.cache_creation.input_tokens": 0,
        "conversation.id": session.id,
        "agent.name": "a",
    }
    assert facts(tool_span, "gen_ai.").keys() == {
        "operation.name",
        "tool.name",
        "tool.type",
        "tool.call.id",
        "agent.name",
        "conversation.id",
    }
    assert facts(tool_span, "gen_ai.")["operation.name"] == "execute_tool"
    turn = facts(told.the("invoke_agent a"), "gen_ai.")
    assert turn == {
        "operation.name": "invoke_agent",
        "agent.name": "a",
        "conversation.id": session.id,
        "usage.input_tokens": 40,
        "usage.output_tokens": 4,
    }


async def test_a_provider_is_named_as_the_conventions_name_it(told: Told) -> None:
    model = ScriptedModel([say("hi")], name="google-gla:gemini-9")
    async with observed(told, Agent("a", model)) as app:
        await (await app.start("a", "go")).wait()

    chat = facts(told.the("chat gemini-9"), "gen_ai.")
    assert (chat["provider.name"], chat["request.model"]) == ("gcp.gemini", "gemini-9")


async def test_a_span_and_a_metric_are_those_of_the_model_that_was_asked(told: Told) -> None:
    rejected = ScriptedReply(fails=(ScriptedError("blocked", "wrong key"),))
    models = [
        ScriptedModel([rejected], name="openai:first"),
        ScriptedModel([say("hi")], name="mistral:second"),
    ]
    async with observed(told, Agent("a", models)) as app:
        await (await app.start("a", "go")).wait()

    first, second = told.the("chat first"), told.the("chat second")
    assert facts(first, "gen_ai.")["provider.name"] == "openai"
    assert facts(first, "")["error.type"] == "SCRIPTED"
    assert facts(second, "gen_ai.")["provider.name"] == "mistral_ai"
    counted = told.metric("gen_ai.client.operation.duration")
    assert {
        (point.attributes["gen_ai.request.model"], point.attributes.get("error.type"))
        for point in counted
    } == {("first", "SCRIPTED"), ("second", None)}


async def test_two_turns_are_two_traces_of_one_conversation(told: Told) -> None:
    async with observed(told, agent([say("one"), say("two")])) as app:
        session = await app.start("a", "1")
        await session.wait()
        await (await session.send("2")).result()

    assert len(trace_ids(told.spans)) == 2
    assert {facts(s, "gen_ai.")["conversation.id"] for s in told.spans} == {session.id}


def nanoseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1) * 1_000_000


@pytest.mark.parametrize("is_graceful", [True, False])
async def test_a_turn_that_moves_between_workers_is_one_trace(
    told: Told, is_graceful: bool
) -> None:
    entered, store = asyncio.Event(), MemoryStore()

    @tool(on_interrupt="rerun")
    async def gate() -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return "through"

    def mover() -> Agent[Any, Any]:
        return agent([call("gate"), say("done")], tools=[gate])

    first = observed(told, mover(), store=store, settings=replace(FAST, name="w1"))
    second = observed(told, mover(), store=store, settings=replace(FAST, name="w2"))
    async with first as app:
        session = await app.start("a", "go")
        await entered.wait()
        if is_graceful:
            await app.close()
        else:
            store.declare_dead("w1")
        async with second as other:
            session = await other.session(session.id)
            assert (await session.wait()).output == "done"
            in_the_log = {event.type: nanoseconds(event.at) for event in await log_of(session)}
        await app.close()

    assert trace_ids(told.spans) == {trace_of(session.id, "t1").trace_id}
    tools = told.named("execute_tool gate")
    workers = {facts(span, "outlast.")["attempt"]: facts(span, "outlast.") for span in tools}
    assert [(w, workers[w]["worker"], workers[w]["fence"]) for w in (1, 2)] == [
        (1, "w1", 1),
        (2, "w2", 2),
    ]
    turn = told.the("invoke_agent a")
    assert facts(turn, "outlast.")["worker"] == "w2"
    assert turn.start_time == in_the_log["turn.started"]
    assert turn.end_time == in_the_log["turn.completed"]
    assert turn.start_time <= min(span.start_time or 0 for span in tools)


async def test_with_our_ids_the_turns_own_span_is_the_parent_of_its_others() -> None:
    told = Told(id_generator=TurnIds(RandomIdGenerator()))
    async with observed(told, looking()) as app:
        session = await app.start("a", "go")
        await session.wait()

    turn = told.the("invoke_agent a")
    assert turn.parent is None
    assert trace_ids(told.spans) == {trace_of(session.id, "t1").trace_id}
    others = [span for span in told.spans if span is not turn]
    assert {known(span.parent).span_id for span in others} == {turn.context.span_id}
    assert len({span.context.span_id for span in told.spans}) == 5


async def test_spans_of_a_tools_own_hang_under_its_call(told: Told) -> None:
    tracer = told.tracers.get_tracer("user")

    @tool
    async def shop() -> str:
        with tracer.start_as_current_span("buy"):
            return "bought"

    @tool
    def walk() -> str:
        with tracer.start_as_current_span("step"):
            return "walked"

    script = [calls(("shop", {}), ("walk", {})), say("done")]
    async with observed(told, agent(script, tools=[shop, walk])) as app:
        await (await app.start("a", "go")).wait()

    for inner, outer in (("buy", "shop"), ("step", "walk")):
        parent = told.the(inner).parent
        assert known(parent).span_id == told.the(f"execute_tool {outer}").context.span_id


async def test_an_approved_call_names_the_request_that_it_waited_for(told: Told) -> None:
    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    async with observed(told, agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await (await session.answer(request.request_id, "approve")).result()

    assert facts(told.the("execute_tool pay"), "outlast.")["request"] == request.request_id
    assert request.request_id == request_name(session.id, "t1.s1.c1", "approval#0")
    assert facts(told.named("chat scripted")[1], "outlast.").get("request") is None
    assert len(trace_ids(told.spans)) == 1


async def test_a_call_that_was_asked_about_anew_names_the_request_that_was_answered(
    told: Told,
) -> None:
    lenient = [True]

    @tool(approval=Approval("always", approvers=lambda who: who == "ada" or lenient[0]))
    async def pay() -> str:
        return "paid"

    store = MemoryStore()
    paying = agent([call("pay"), say("done")], tools=[pay])
    async with running(paying, store=store) as app:
        session = await app.start("a", "go")
        [first] = (await session.wait()).requests
    async with Outlast([paying], store=store, worker=None) as app:
        session = await app.session(session.id)
        await session.answer(first.request_id, "approve", principal="eve")
        lenient.clear()
        lenient.append(False)
    async with observed(told, paying, store=store) as app:
        session = await app.session(session.id)
        [second] = (await session.wait()).requests
        await (await session.answer(second.request_id, "approve", principal="ada")).result()

    assert second.request_id != first.request_id
    assert facts(told.the("execute_tool pay"), "outlast.")["request"] == second.request_id


async def test_failures_are_told_by_their_codes(told: Told) -> None:
    @tool
    async def fall() -> str:
        raise RuntimeError("sk-secret is wrong")

    closed = ScriptedError("recoverable", "sk-secret was refused")
    script = [call("fall"), ScriptedReply(fails=(closed,))]
    async with observed(told, agent(script, tools=[fall])) as app:
        await (await app.start("a", "go")).wait()

    fell, chat, turn = (
        told.the("execute_tool fall"),
        told.named("chat scripted")[1],
        told.the("invoke_agent a"),
    )
    assert [facts(s, "error.")["type"] for s in (fell, chat, turn)] == [
        "TOOL_ERROR",
        "SCRIPTED",
        "SCRIPTED",
    ]
    assert {s.status.status_code for s in (fell, chat, turn)} == {StatusCode.ERROR}
    assert facts(fell, "outlast.")["outcome"] == "raised"
    assert "sk-secret" not in told.text


async def test_a_call_that_is_stopped_ends_its_span(told: Told) -> None:
    @tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    async with observed(told, agent([call("hang")], tools=[hang])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await session.cancel()
        await session.wait()

    assert facts(told.the("execute_tool hang"), "error.")["type"] == "CancelledError"
    assert facts(told.the("invoke_agent a"), "outlast.")["outcome"] == "cancelled"


@pytest.mark.parametrize(("sample", "traces"), [(0.0, 0), (1.0, 20)])
async def test_a_share_of_the_turns_is_traced(told: Told, sample: float, traces: int) -> None:
    async with observed(told, agent([say("hi")]), sample=sample) as app:
        for _ in range(20):
            await (await app.start("a", "go")).wait()
    assert len(trace_ids(told.spans)) == traces


def test_every_worker_chooses_the_same_turns() -> None:
    chosen = [trace_of(f"ses_{n}", "t1").is_sampled(0.25) for n in range(4_000)]
    assert 800 < sum(chosen) < 1_200
    assert chosen == [trace_of(f"ses_{n}", "t1").is_sampled(0.25) for n in range(4_000)]


# Content


SECRET = "sk-never-to-be-told"


def talkative() -> Agent[Any, Any]:
    return looking(
        instructions="Be brief about the harvest.",
        model_options=ModelOptions(settings={"extra_headers": {"authorization": SECRET}}),
    )


async def test_no_content_is_told_unless_asked_for(told: Told) -> None:
    async with observed(told, talkative()) as app:
        session = await app.start("a", "what of the night?", continuation_token=SECRET)
        await session.wait()

    for content in ("night", "harvest", "stars", "saw", "all is well", SECRET):
        assert content not in told.text


async def test_content_is_told_when_asked_for_and_secrets_never(told: Told) -> None:
    async with observed(told, talkative(), content=True) as app:
        session = await app.start(
            "a", "what of the night?", continuation_token=SECRET, principal=SECRET
        )
        await session.wait()

    first, second = (facts(span, "gen_ai.") for span in told.named("chat scripted"))
    assert json.loads(first["input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "what of the night?"}]}
    ]
    assert json.loads(first["system_instructions"]) == [
        {"type": "text", "content": "Be brief about the harvest."}
    ]
    [answer] = json.loads(first["output.messages"])
    assert (answer["role"], answer["finish_reason"]) == ("assistant", "stop")
    assert answer["parts"][0] == {
        "type": "tool_call",
        "id": "t1.s1.c1",
        "name": "look",
        "arguments": {"at": "stars"},
    }
    results = json.loads(second["input.messages"])[2]
    assert results["role"] == "tool"
    assert [part["id"] for part in results["parts"]] == ["t1.s1.c1", "t1.s1.c2"]
    assert json.loads(second["output.messages"])[0]["parts"] == [
        {"type": "text", "content": "all is well"}
    ]
    tools = [facts(span, "gen_ai.tool.call.") for span in told.named("execute_tool look")]
    assert {(t["arguments"], t["result"]) for t in tools} == {
        ('{"at":"stars"}', '"saw stars"'),
        ('{"at":"moon"}', '"saw moon"'),
    }
    assert SECRET not in told.text


# Metrics


async def test_work_is_measured(told: Told) -> None:
    async with observed(told, looking(), settings=replace(FAST, name="w1")) as app:
        await (await app.start("a", "go")).wait()

    [calls_made] = told.metric("gen_ai.client.operation.duration")
    assert calls_made.count == 2
    assert dict(calls_made.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "unknown",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
    }
    tokens = {
        p.attributes["gen_ai.token.type"]: p.sum for p in told.metric("gen_ai.client.token.usage")
    }
    assert tokens == {"input": 40, "output": 4}
    [tools] = told.metric("outlast.tool.duration")
    assert tools.count == 2
    [turns] = told.metric("outlast.turn.duration")
    assert (turns.count, turns.attributes["outlast.outcome"]) == (1, "completed")
    [claims], [commits] = told.metric("outlast.claims"), told.metric("outlast.commits")
    assert claims.value == 1
    assert commits.value >= 3
    [held] = told.metric("outlast.lanes.held")
    assert dict(held.attributes) == {"outlast.worker": "w1"}


async def test_a_failed_model_call_is_measured_with_its_code(told: Told) -> None:
    closed = ScriptedError("recoverable", "closed")
    async with observed(told, agent([ScriptedReply(fails=(closed,))])) as app:
        await (await app.start("a", "go")).wait()

    [measured] = told.metric("gen_ai.client.operation.duration")
    assert measured.attributes["error.type"] == "SCRIPTED"


async def test_failed_turns_and_outages_are_counted_by_code_agent_and_model(told: Told) -> None:
    away, closed = ScriptedError("transient", "away"), ScriptedError("recoverable", "closed")
    once = ModelOptions(max_attempts=1)
    patient = Agent("a", ScriptedModel([ScriptedReply(fails=(away,))]), model_options=once)
    hasty = Agent("b", ScriptedModel([ScriptedReply(fails=(closed,))] * 2))
    async with observed(told, patient, hasty) as app:
        for _ in range(2):
            await (await app.start("b", "go")).wait()
        async for event in (await app.start("a", "go")).events():
            if event.type == "provider.unavailable":
                break

    [failed], [outage] = (
        told.metric("outlast.turns.failed"),
        told.metric("outlast.provider.outages"),
    )
    of_model = {"gen_ai.provider.name": "unknown", "gen_ai.request.model": "scripted"}
    of_b = {"error.type": "SCRIPTED", "gen_ai.agent.name": "b", **of_model}
    assert (failed.value, dict(failed.attributes)) == (2, of_b)
    assert (outage.value, dict(outage.attributes)) == (1, {**of_b, "gen_ai.agent.name": "a"})


async def test_takeovers_are_counted(told: Told) -> None:
    entered, store = asyncio.Event(), MemoryStore()

    @tool(readonly=True)
    async def gate() -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return "through"

    mover = agent([call("gate"), say("done")], tools=[gate])
    async with observed(told, mover, store=store, settings=replace(FAST, name="w1")) as app:
        session = await app.start("a", "go")
        await entered.wait()
        async with observed(told, mover, store=store, settings=replace(FAST, name="w2")):
            store.declare_dead("w1")
            await session.wait()

    [taken] = told.metric("outlast.takeovers")
    assert (taken.value, taken.attributes["outlast.graceful"]) == (1, False)
    assert len(trace_ids(told.spans)) == 1


# Without


async def test_nothing_is_told_where_nobody_wants_it() -> None:
    async with running(looking(), telemetry=None) as app:
        assert (await (await app.start("a", "go")).wait()).output == "all is well"


async def test_without_an_sdk_all_goes_on_as_before() -> None:
    seen = []

    @tool
    async def peek() -> str:
        seen.append(trace.get_current_span().is_recording())
        return "peeked"

    async with running(agent([call("peek"), say("done")], tools=[peek])) as app:
        assert (await (await app.start("a", "go")).wait()).output == "done"
    assert seen == [False]


async def test_a_store_that_is_away_when_a_turns_start_is_looked_up_costs_its_span_only(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(WrappedStore):
        async def read_back(self, *args: Any, **options: Any) -> Any:
            raise StoreUnavailable("away")

    store, entered = Forgetful(MemoryStore()), asyncio.Event()

    @tool(readonly=True)
    async def gate() -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return "through"

    mover = agent([call("gate"), say("done")], tools=[gate])
    async with observed(told, mover, store=store) as app:
        session = await app.start("a", "go")
        await entered.wait()
    async with observed(told, mover, store=store) as app:
        await until(await app.session(session.id), "turn.completed")

    assert "the store is away" not in caplog.text  # the commit itself was not in doubt
    assert told.named("invoke_agent a") == []
    assert len(told.named("execute_tool gate")) == 2
