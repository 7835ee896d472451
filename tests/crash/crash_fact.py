"""What must be the same wherever a worker was killed, and what may differ.

Each check takes a session that was disturbed and one that was left in peace, and gives
what is wrong. What an interruption may do to a call is read from its tool's policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from crash_agent import agents
from crash_book import Start
from crash_run import Log, Story

from outlast.agents.subagent import with_subagents as relatives
from outlast.core import record as r
from outlast.core.event import type_of
from outlast.core.fold import fold_all
from outlast.core.lane import RUNNING, Lane
from outlast.core.name import is_summary_call
from outlast.core.policy import Policy
from outlast.testing.crash import CrashPoint

DONE_BY = {
    "paid": "pay",
    "refunded": "refund",
    "noted": "note",
    "shipped": "ship",
    "looked": "consult",
    "prepared": "prepare",
    "settled": "settle",
    "rested": "rest",
    "burned": "burn",
    "drafted": "use",
    "used": "use",
}
"""The first word of each effect, and the tool that has it."""


class Outcome(NamedTuple):
    call_id: str
    attempt: int
    what: str
    value: Any = None


def complaints(
    stories: Sequence[Story], plans: Sequence[Sequence[CrashPoint]], undisturbed: Story
) -> str:
    found = [
        f"killed {' and '.join(map(str, plan))}: {wrong}"
        for plan, story in zip(plans, stories, strict=True)
        for wrong in compare(story, undisturbed)
    ]
    return "\n".join(found)


def compare(story: Story, undisturbed: Story) -> Iterator[str]:
    """Say what a kill did that it must not do."""
    families = [[log.agent for log in each.logs] for each in (story, undisturbed)]
    if families[0] != families[1]:
        yield f"there are sessions of {families[0]} instead of {families[1]}"
        return
    for log, other in zip(story.logs, undisturbed.logs, strict=True):
        yield from (f"{log.agent}: {wrong}" for wrong in compare_logs(log, other))
    yield from effects_differ(story, undisturbed)
    if story.outputs != undisturbed.outputs:
        yield f"the answers were {story.outputs}"


def compare_logs(log: Log, undisturbed: Log) -> Iterator[str]:
    yield from log.findings
    yield from recorded_work_ran_again(log)
    yield from tool_results_differ(log, undisturbed)
    yield from model_calls_differ(log, undisturbed)
    yield from deliveries_differ(log, undisturbed)
    yield from waits_differ(log, undisturbed)


def recorded_work_ran_again(log: Log) -> Iterator[str]:
    """Hold the book against the log: what began, and what had an outcome by then."""
    begun: set[Start] = set()
    ended: dict[str, int] = {}
    for record in log.records:
        if isinstance(record, r.ToolStarted | r.ModelStarted | r.SummaryStarted):
            begun.add(Start(log.agent, record.call_id, record.attempt))
            if record.call_id in ended:
                yield f"{record.call_id} was begun again after its outcome"
        if outcome := outcome_of(record):
            if outcome.call_id in ended:
                yield f"{outcome.call_id} has two outcomes"
            ended[outcome.call_id] = outcome.attempt
    for start, times in Counter(log.starts).items():
        if times > may_begin(log, start):
            yield f"{start} happened {times} times"
        if start not in begun:
            yield f"{start} happened before it was recorded"
        if start.call_id not in ended:
            yield f"{start} happened and has no outcome"
        elif start.attempt > ended[start.call_id]:
            yield f"{start} happened although an earlier attempt had an outcome"


def may_begin(log: Log, start: Start) -> int:
    """Say how often an attempt may begin: once, or once with each answer if it only reads.

    That begins before the log says so, and a kill that takes the answer takes it along.
    """
    tool = tools_of(log).get(start.call_id, "")
    if start.attempt > 1 or not only_reads(log, tool):
        return 1
    return model_calls(log)[start.call_id.rpartition(".")[0]]


def tool_results_differ(log: Log, undisturbed: Log) -> Iterator[str]:
    """Only a call in flight may come to something else: to an unknown outcome, if it says so."""
    found, expected = tool_results(log), tool_results(undisturbed)
    for call_id, tool in tools_of(log).items():
        if call_id in cut_off(log) and on_interrupt(log, tool) == "report":
            expected[call_id] = ("interrupted", "crash")
    if found != expected:
        yield f"the tools came to {found} instead of {expected}"


def effects_differ(story: Story, undisturbed: Story) -> Iterator[str]:
    """Hold each effect between its bounds; without a kill in flight it happens once."""
    if story.seats != undisturbed.seats:
        yield f"the transactional tool left {story.seats} instead of {undisturbed.seats}"
    cut = {tools_of(log).get(call_id): log for log in story.logs for call_id in cut_off(log)}
    found, expected = effects(story), effects(undisturbed)
    for effect in found | expected:
        tool = DONE_BY[effect.split()[0]]
        least = most = expected[effect]
        said = on_interrupt(cut[tool], tool) if tool in cut else ""
        if said == "report":
            least = 0
        if said == "rerun":
            most += story.kills
        if not least <= found[effect] <= most:
            yield f"{effect}: {found[effect]} times"


def model_calls_differ(log: Log, undisturbed: Log) -> Iterator[str]:
    """Only a model call in flight is paid for again, once for each kill that cut it off."""
    found, expected, cut = model_calls(log), model_calls(undisturbed), cut_off(log)
    for call_id in found | expected:
        if is_summary_call(call_id) and not found[call_id]:
            continue  # what an interrupted call is told with is shorter than its result
        most = max(1, expected[call_id]) + cut[call_id]
        if not 1 <= found[call_id] <= most:
            yield f"{call_id} was paid for {found[call_id]} times, and {most} at most are right"


def deliveries_differ(log: Log, undisturbed: Log) -> Iterator[str]:
    settled = Counter(e.delivery_id for e in log.records if isinstance(e, r.DeliverySettled))
    yield from (f"{d} was settled {n} times" for d, n in settled.items() if n != 1)
    if delivered(log) != delivered(undisturbed):
        yield f"the deliveries came to {delivered(log)}"


def waits_differ(log: Log, undisturbed: Log) -> Iterator[str]:
    """Every wait begins once and ends once, a child is one of them, in whatever order."""
    yield from (f"{what} happened {times} times" for what, times in waits(log).items() if times > 1)
    if waits(log) != waits(undisturbed):
        yield f"the waits were {sorted(waits(log))} instead of {sorted(waits(undisturbed))}"


# What a story says


def outcome_of(record: Any) -> Outcome | None:
    match record:
        case r.UsageRecorded(estimated=False) if is_summary_call(record.call_id):
            return Outcome(record.call_id, record.attempt, "answered")
        case r.MessageCompleted():
            return Outcome(record.call_id, record.attempt, "answered")
        case r.ToolCompleted():
            return Outcome(record.call_id, record.attempt, "completed", record.value)
        case r.ToolFailed(again_at=0):
            return Outcome(record.call_id, record.attempt, "failed", record.error.code)
        case r.ToolInterrupted(final=True):
            return Outcome(record.call_id, record.attempt, "interrupted", record.reason)
    return None


def tool_results(log: Log) -> dict[str, tuple[str, Any]]:
    outcomes = [found for record in log.records if (found := outcome_of(record))]
    return {o.call_id: (o.what, o.value) for o in outcomes if o.what != "answered"}


def tools_of(log: Log) -> dict[str, str]:
    return {e.call_id: e.tool for e in log.records if isinstance(e, r.ToolRequested)}


def cut_off(log: Log) -> Counter[str]:
    """Count how often each call, of a tool or of the model, was running at a takeover."""
    cut: Counter[str] = Counter()
    lane = Lane(session=log.session_id)
    for entry in log.entries:
        if isinstance(entry.record, r.LaneTakenOver) and lane.turn:
            model, calls = lane.turn.model, lane.turn.calls.values()
            cut.update([lane.summary.call_id] if lane.summary else [])
            cut.update([model.call_id] if model and model.status == RUNNING else [])
            cut.update(call.call_id for call in calls if call.status == RUNNING)
        lane = fold_all(lane, (entry,))
    return cut


def effects(story: Story) -> Counter[str]:
    """Count the effects, without the keys, which differ from session to session."""
    return Counter(effect.split(" under ")[0] for effect in story.effects)


def model_calls(log: Log) -> Counter[str]:
    return Counter(start.call_id for start in log.starts if start.call_id not in tools_of(log))


def delivered(log: Log) -> list[tuple[str, str, str]]:
    """List what became of deliveries.

    That a child asks no longer may be news, or be known from the request's own end.
    """
    said = {("relay", "answered"): "heard", ("relay", "ignored"): "heard"}
    return sorted(
        (d.kind, d.state, said.get((d.kind, d.outcome), d.outcome)) for d in log.deliveries
    )


def waits(log: Log) -> Counter[tuple[str, ...]]:
    """Count what began to be waited for and what came of it, by the call and its own name."""
    found: Counter[tuple[str, ...]] = Counter()
    asked = {e.request_id: call_of(e) for e in log.records if isinstance(e, r.RequestOpened)}
    for e in log.records:
        match e:
            case r.RequestOpened(request_id=request_id):
                found["asked", *asked[request_id]] += 1
            case r.RequestResolved(request_id=request_id, how=how):
                found[how, *asked[request_id]] += 1
            case r.RequestExpired(request_id=request_id):
                found["expired", *asked[request_id]] += 1
            case r.TimerSet() | r.TimerFired() | r.ToolWaiting() | r.ToolWoken():
                found[type_of(e), e.call_id, e.name] += 1
            case (
                r.SubagentCalled()
                | r.SubagentCompleted()
                | r.SubagentFailed()
                | r.AuthorizationRequired()
                | r.AuthorizationCompleted()
                | r.AuthorizationFailed()
            ):
                found[type_of(e), e.call_id] += 1
    return found


def call_of(asked: r.RequestOpened) -> tuple[str, ...]:
    """Name a request by its call, and by the agent whose call it is where that is below."""
    return (asked.agent, asked.call_id, asked.tool, asked.name)


def on_interrupt(log: Log, tool: str) -> str:
    return policies()[log.agent].tool(tool).on_interrupt


def only_reads(log: Log, tool: str) -> bool:
    return policies()[log.agent].tool(tool).readonly


@cache
def policies() -> dict[str, Policy]:
    found = relatives(agents())
    return {name: agent.policy for name, agent in found.items()}
