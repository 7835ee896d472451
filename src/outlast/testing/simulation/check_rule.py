"""Promises about an agent's rules: they are asked when they are due, once, and are heeded."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from outlast.agents.agent import Agent
from outlast.agents.rule import ReadBeforeWrite, SequentialDependency
from outlast.core import record as r
from outlast.core.message import ToolCall
from outlast.core.policy import FeedbackTrigger, Policy
from outlast.core.record import AnyRecord
from outlast.testing.simulation.evidence import SimulationEvidence, outcome_of

KINDS = ("reads", "writes")
LONG_AGO = 2**62


def rules_are_heeded(evidence: SimulationEvidence) -> Iterator[str]:
    is_steady = not evidence.jumps_of_store
    for name, session in evidence.talks.items():
        agent = evidence.agent(name)
        if agent.rules.is_empty:
            continue
        lanes: dict[str, HeededRules] = {}
        policies = HeededPolicies(agent)
        for entry in session.entries:
            lane = lanes.setdefault(entry.lane, HeededRules(agent.policy, is_steady))
            for wrong in (*lane.see(entry.record), *policies.see(entry.record, entry.lane)):
                yield f"{name}@{entry.offset} {entry.lane}: {wrong}"


class HeededRules:
    """The rules of one lane, counted anew from its log; time too, where it was steady."""

    def __init__(self, policy: Policy, is_steady: bool) -> None:
        self._policy = policy
        self._is_steady = is_steady
        self._triggers = {trigger.name: trigger for trigger in policy.feedback}
        self._calls = dict.fromkeys(self._triggers, 0)
        self._since = dict.fromkeys(self._triggers, 0)
        self._heard: set[str] = set()
        self._typed: set[str] = set()
        self._began = 0
        self._refusals = 0
        self._step = 0
        self._accepted = 0
        """The step of the turn whose answer was accepted."""

    def see(self, e: AnyRecord) -> Iterator[str]:
        """Take in one more record, and say what should not have been."""
        match e:
            case r.TurnStarted():
                self._began, self._refusals, self._accepted = e.since, 0, 0
            case r.StepStarted():
                yield from self._steps_on(e)
            case r.FeedbackGiven() | r.FeedbackSkipped():
                yield from self._hears(e)
            case r.CompletionAccepted():
                self._accepted = e.step
            case r.CompletionRefused():
                self._refusals += 1
                if e.number != self._refusals:
                    yield f"refusal {self._refusals} has the number {e.number}"
            case r.TurnCompleted() if self._policy.checkers and self._accepted != self._step:
                yield f"{e.turn} ended in step {self._step}, and its checkers had not agreed"
            case r.TurnFailed() if e.error.code == "COMPLETION_REFUSED":
                if self._refusals != self._policy.max_refusals + 1:
                    yield f"{e.turn} failed after {self._refusals} refusals"
            case r.ToolRequested(output=True):
                self._typed.add(e.call_id)
            case _ if (ended := outcome_of(e)) and ended[1] != "answered":
                if ended[0] not in self._typed:
                    self._calls = {name: count + 1 for name, count in self._calls.items()}

    def _steps_on(self, e: r.StepStarted) -> Iterator[str]:
        for name, trigger in self._triggers.items():
            is_due = 0 < trigger.calls <= self._calls[name]
            if e.step > 1 and is_due and name not in self._heard:
                yield f"{name} was not asked after {self._calls[name]} calls"
        self._step, self._heard = e.step, set()

    def _hears(self, e: r.FeedbackGiven | r.FeedbackSkipped) -> Iterator[str]:
        trigger = self._triggers[e.name]
        waited = e.since - max(self._since[e.name], self._began)
        if not is_due(trigger, self._calls[e.name], waited if self._is_steady else LONG_AGO):
            yield f"{e.name} was asked after {self._calls[e.name]} calls and {waited} ms"
        if e.name in self._heard:
            yield f"{e.name} was asked twice in step {e.step}"
        self._heard.add(e.name)
        self._calls[e.name], self._since[e.name] = 0, e.since


def is_due(trigger: FeedbackTrigger, calls: int, waited: int) -> bool:
    return 0 < trigger.calls <= calls or 0 < trigger.span <= waited


class HeededPolicies:
    """The calls that had succeeded when another was asked for, and whether that could run then."""

    def __init__(self, agent: Agent) -> None:
        rules = agent.rules.policies
        self._tools = agent.tools
        self._needed = {e.tool: e.needed for e in rules if isinstance(e, SequentialDependency)}
        self._reads_first = any(isinstance(e, ReadBeforeWrite) and not e.exists for e in rules)
        self._calls: dict[str, ToolCall] = {}
        self._asked: dict[str, str] = {}
        self._succeeded: set[str] = set()
        self._known: set[tuple[str, str]] = set()
        self._refused: set[str] = set()

    def see(self, e: AnyRecord, lane: str) -> Iterator[str]:
        """Take in one more record, and say what should not have been."""
        match e:
            case r.MessageCompleted():
                calls = (part for part in e.parts if isinstance(part, ToolCall))
                self._calls |= {call.call_id: call for call in calls}
            case r.ToolRequested() if not self._may_run(self._calls[e.call_id], lane):
                self._refused.add(e.call_id)
            case r.RequestOpened():
                self._asked[e.request_id] = e.call_id
            case r.RequestResolved() if e.args and (call_id := self._asked[e.request_id]):
                self._calls[call_id] = replace(self._calls[call_id], args=e.args)
            case r.ToolStarted() if e.call_id in self._refused:
                yield f"{e.call_id} runs {self._calls[e.call_id].tool}, and a policy forbids it"
            case r.ToolCompleted():
                call = self._calls[e.call_id]
                self._succeeded.add(call.tool)
                self._known |= {(lane, key) for kind in KINDS for key in self._keys(call, kind)}

    def _may_run(self, call: ToolCall, lane: str) -> bool:
        if not self._succeeded.issuperset(self._needed.get(call.tool, ())):
            return False
        writes = self._keys(call, "writes") if self._reads_first else ()
        return self._known.issuperset((lane, key) for key in writes)

    def _keys(self, call: ToolCall, kind: str) -> tuple[str, ...]:
        """Return the resources that a call reads or writes; none, if it cannot even be run."""
        try:
            tool = self._tools[call.tool]
            args = tool.arguments.parse(call.args)
            return tool.reads(args) if kind == "reads" else tool.writes(args)
        except Exception:  # noqa: BLE001 - a tool that is not there, or arguments that do not fit
            return ()
