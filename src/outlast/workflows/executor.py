"""Executes one workflow's runs in one worker, for the engine: an executor without a model.

Owns what the engine asks of an executor and a workflow does not have: models, rules, compactions.
The body is run by `body.py`; its context (`context.py`) owns what a body can do.
"""

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, NoReturn

from outlast.agents.runtime.environment import ALONE, Environment
from outlast.agents.state.change_request import make
from outlast.clock import Clock
from outlast.core.action import CallModel, CheckCompletion, CompactContext, GiveFeedback, Start
from outlast.core.breaker import Provider
from outlast.core.budget_admission import CallEstimate
from outlast.core.lane import ArrivedReply, Lane, OpenCall, OpenRequest
from outlast.core.limit import Bound
from outlast.core.record import IdempotencyKey, StateChanged, StateChangeRequested
from outlast.core.result import (
    Answered,
    CallPrice,
    ChildContact,
    Compacted,
    CompletionChecked,
    FeedbackCollected,
    ModelFailed,
    SummaryLost,
    ToolEnd,
)
from outlast.core.slice import Slices, StateRecord
from outlast.core.view import View
from outlast.engine.call_tasks import CallTimeouts
from outlast.engine.executor import CallJournal, CallSlot, Hear, LaneModel
from outlast.log_context import get_logger
from outlast.workflows.body import BodyRunner
from outlast.workflows.workflow import Workflow

log = get_logger("outlast.workflows")

NO_MODEL = LaneModel(0, "", streams=False)
FOR_EVER = CallTimeouts(float("inf"))
"""For a body: its active time is bounded by the turn's."""


class WorkflowExecutor:
    """One workflow at work in one worker."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        deps: Any,
        clock: Clock,
        environment: Environment = ALONE,
    ) -> None:
        self.policy = workflow.policy
        self._workflow = workflow
        self._environment = environment
        self._runner = BodyRunner(workflow, deps, clock, environment)

    # The body

    def digests(self) -> dict[str, str]:
        return self._workflow.digests()

    def run_tool(
        self, call: OpenCall, start: Start, journal: CallJournal
    ) -> Coroutine[Any, Any, ToolEnd | None]:
        return self._runner.run(call, journal)

    def tool_timeouts(self, tool: str) -> CallTimeouts:
        return FOR_EVER

    def bounds_of_tool(self, call: OpenCall, lane: Lane) -> tuple[Bound, ...]:
        limit = self._workflow.limit
        return tuple(limit.named(f"workflow:{self._workflow.name}")) if limit else ()

    def key_of_tool(self, call: OpenCall, lane: Lane) -> IdempotencyKey | None:
        return None

    def note_of_tool(self, call: OpenCall, lane: Lane, slices: Slices) -> StateChanged | None:
        return None

    def slot_for(
        self, call: OpenCall, start: Start, tenant: str, tell: Callable[[], None]
    ) -> CallSlot | None:
        return None

    async def may_answer(self, lane: Lane, reply: ArrivedReply) -> bool:
        return True

    def misfit(self, call: OpenCall) -> str:
        return ""

    def output_of(self, text: str, output: str | None) -> str:
        return output or "null"

    def change_state(self, change: StateChangeRequested, slices: Slices) -> list[StateRecord]:
        return make(change, slices)

    async def contact_child(self, lane: Lane, child: OpenRequest) -> ChildContact:
        """Contact a remote child's server. Whatever keeps it from that, it is tried again."""
        assert child.remote is not None
        name, away = child.remote.agent, ChildContact(request_id=child.request_id)
        remote = self._environment.remotes.get(name)
        if remote is None:
            log.warning("a remote agent is not known here any more", extra={"remote": name})
            return away
        try:
            return await remote.contact(lane, child, self._environment.public_url)
        except Exception:  # what another server says can be anything
            log.exception("a remote agent could not be contacted", extra={"remote": name})
            return away

    # There is no model, and there are no rules

    def model_of(self, lane: Lane) -> LaneModel:
        return NO_MODEL

    def model_timeouts(self, lane: Lane) -> CallTimeouts:
        return FOR_EVER

    def estimate(
        self, lane: Lane, slices: Slices, view: View, joins: Sequence[str]
    ) -> Coroutine[Any, Any, CallEstimate]:
        self._refuse()

    def price(self, lane: Lane, input_tokens: int, output_tokens: int) -> CallPrice | None:
        return None

    def providers(self) -> Collection[Provider]:
        return ()

    def provider_of(self, lane: Lane, model: str = "") -> Provider | None:
        return None

    def bounds_of_model(self, lane: Lane, *, starts_turn: bool) -> tuple[Bound, ...]:
        return ()

    def cut_off(self, lane: Lane) -> ModelFailed:
        self._refuse()

    def timed_out(self, lane: Lane) -> ModelFailed:
        self._refuse()

    async def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Answered | ModelFailed:
        self._refuse()

    async def give_feedback(
        self, lane: Lane, slices: Slices, view: View, action: GiveFeedback, now: int
    ) -> FeedbackCollected:
        self._refuse()

    def needs_summary(self, slices: Slices, view: View, action: CompactContext) -> bool:
        self._refuse()

    def compact(self, slices: Slices, view: View, action: CompactContext) -> Compacted:
        self._refuse()

    async def sum_up(
        self, lane: Lane, slices: Slices, view: View, action: CompactContext, hear: Hear
    ) -> Compacted | SummaryLost:
        self._refuse()

    async def check_completion(
        self, lane: Lane, slices: Slices, view: View, action: CheckCompletion, now: int
    ) -> CompletionChecked:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError(f"the workflow {self._workflow.name} has no model")
