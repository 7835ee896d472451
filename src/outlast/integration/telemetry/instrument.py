"""The tracer and the meters. Nothing else imports OpenTelemetry.

Owns the names of spans and metrics, and the attributes of each. What is measured is decided where
`Instruments` is called: see `traced.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from outlast.clock import Clock
from outlast.integration.telemetry import Telemetry
from outlast.integration.telemetry.trace import NamedSpan, TurnIds, TurnTrace, trace_of
from outlast.log_context import known
from outlast.net.trace_context import parse

NAME = "outlast"
SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
TOKENS = [4**power for power in range(14)]
LOOK_EVERY = 1.0
A_MILLISECOND = 1_000_000
"""In nanoseconds, the unit of spans."""


class Instruments:
    """The tracer and all metrics of a worker."""

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        from opentelemetry import context, metrics, trace

        self.telemetry = telemetry
        self._clock = clock
        self._looked_at = float("-inf")
        self._is_heard = False
        self._api = trace
        self._metrics = metrics
        self._nowhere = context.Context()
        release = version(NAME)
        self._tracer = trace.get_tracer(NAME, release, telemetry.tracer_provider)
        meter = metrics.get_meter(NAME, release, telemetry.meter_provider)
        self.commits = meter.create_counter("outlast.commits", "{commit}")
        self.refusals = meter.create_counter("outlast.refusals", "{commit}")
        self.claims = meter.create_counter("outlast.claims", "{lane}")
        self.takeovers = meter.create_counter("outlast.takeovers", "{lane}")
        self.failed_turns = meter.create_counter("outlast.turns.failed", "{turn}")
        self.outages = meter.create_counter("outlast.provider.outages", "{outage}")
        self.held = meter.create_gauge("outlast.lanes.held", "{lane}")
        self.turns = histogram(meter, "outlast.turn.duration", "s", SECONDS)
        self.tools = histogram(meter, "outlast.tool.duration", "s", SECONDS)
        self.model_calls = histogram(meter, "gen_ai.client.operation.duration", "s", SECONDS)
        self.tokens = histogram(meter, "gen_ai.client.token.usage", "{token}", TOKENS)

    @property
    def is_heard(self) -> bool:
        """Whether an SDK is set up, which may happen after the worker starts."""
        now = self._clock.monotonic()
        if now - self._looked_at > LOOK_EVERY:
            self._looked_at = now
            self._is_heard = self.is_traced or is_of_an_sdk(self._meter_provider)
        return self._is_heard

    @property
    def is_traced(self) -> bool:
        return is_of_an_sdk(self._provider)

    @property
    def _provider(self) -> Any:
        return self.telemetry.tracer_provider or self._api.get_tracer_provider()

    @property
    def _meter_provider(self) -> Any:
        return self.telemetry.meter_provider or self._metrics.get_meter_provider()

    @contextmanager
    def span(
        self, name: str, session: str, turn: str, attributes: Mapping[str, Any], *, client: bool
    ) -> Iterator[Any]:
        """Open a span within a turn, and make it the current one for user code."""
        kind = self._api.SpanKind.CLIENT if client else self._api.SpanKind.INTERNAL
        span = self._tracer.start_span(
            name, self._within(trace_of(session, turn)), kind, dict(attributes)
        )
        if span.is_recording():
            span.set_attributes(ids())
        # The text of a failure may hold content, so spans get its class and code only.
        with self._api.use_span(span, False, False, False):
            try:
                yield span
            except BaseException as error:
                self.fail(span, type(error).__name__)
                raise
            finally:
                span.end()

    def _within(self, turn: TurnTrace) -> Any:
        sampled = turn.is_sampled(self.telemetry.sample)
        flags = self._api.TraceFlags(1 if sampled else 0)
        parent = self._api.SpanContext(
            turn.trace_id, turn.span_id, is_remote=True, trace_flags=flags
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(parent), self._nowhere)

    def add_turn(
        self,
        agent: str,
        session: str,
        turn: str,
        began: int,
        ended: int,
        asked_by: str,
        code: str,
        **facts: Any,
    ) -> None:
        """Add the span of a whole turn, from its start to its end in milliseconds.

        It is linked with the span in which its message was sent (`asked_by`), not a child of it: a
        turn may begin long after that span has ended, and is sampled by itself.
        """
        trace = trace_of(session, turn)
        if not trace.is_sampled(self.telemetry.sample):
            return
        named = isinstance(getattr(self._provider, "id_generator", None), TurnIds)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": session,
            **facts,
        }
        with NamedSpan(trace):
            span = self._tracer.start_span(
                f"invoke_agent {agent}",
                self._nowhere if named else self._within(trace),
                self._api.SpanKind.INTERNAL,
                attributes,
                links=self._links(asked_by),
                start_time=began * A_MILLISECOND,
            )
        span.set_attributes({**ids(), "outlast.turn": turn})
        if code:
            self.fail(span, code)
        span.end(ended * A_MILLISECOND)

    def _links(self, traceparent: str) -> list[Any]:
        parent = parse(traceparent)
        if parent is None:
            return []
        api = self._api
        flags = api.TraceFlags(parent.flags)
        context = api.SpanContext(
            parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags
        )
        return [api.Link(context)]

    def fail(self, span: Any, code: str, message: str = "") -> None:
        """Mark a span as failed; the failure's message counts as content."""
        span.set_attribute("error.type", code)
        description = message if self.telemetry.content and message else None
        span.set_status(self._api.StatusCode.ERROR, description)


def is_of_an_sdk(provider: Any) -> bool:
    """Say whether a provider is an SDK's; those of the API itself do nothing."""
    return not type(provider).__module__.startswith(
        ("opentelemetry.trace", "opentelemetry.metrics")
    )


def ids() -> dict[str, Any]:
    """Return the ids of the current session, turn, call and so on, as attributes of a span."""
    others = {name: value for name, value in known().items() if name not in ("agent", "model")}
    return {f"outlast.{name}": value for name, value in others.items()}


def histogram(meter: Any, name: str, unit: str, buckets: list[Any]) -> Any:
    return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=buckets)
