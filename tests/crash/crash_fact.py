"""What must be the same wherever a worker was killed, and what may differ.

Each check takes a session that was disturbed and one that was left in peace, and gives
what is wrong. What an interruption may do to a call is read from its tool's policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from crash_agent import agents
from crash_book import Book
from crash_run import Story

from holdfast.core import record as r
from holdfast.core.fold import fold_all
from holdfast.core.lane import RUNNING, Lane
from holdfast.core.policy import Policy

DONE_BY = {
    "paid": "pay",
    "refunded": "refund",
    "noted": "note",
    "shipped": "ship",
    "looked": "consult",
}
"""The first word of each effect, and the tool that has it."""


class Outcome(NamedTuple):
    call_id: str
    attempt: int
    what: str
    value: Any = None


def compare(story: Story, undisturbed: Story) -> Iterator[str]:
    """Say what a kill did that it must not do."""
    yield from story.findings
    yield from recorded_work_ran_again(story)
    yield from tool_results_differ(story, undisturbed)
    yield from effects_differ(story, undisturbed)
    yield from model_calls_differ(story, undisturbed)
    yield from deliveries_differ(story, undisturbed)
    if story.outputs != undisturbed.outputs:
        yield f"the answers were {story.outputs}"


def recorded_work_ran_again(story: Story) -> Iterator[str]:
    """Hold the book against the log: what began, and what had an outcome by then."""
    begun: set[tuple[str, int]] = set()
    ended: dict[str, int] = {}
    for record in (entry.record for entry in story.entries):
        if isinstance(record, r.ToolStarted | r.ModelStarted):
            begun.add((record.call_id, record.attempt))
            if record.call_id in ended:
                yield f"{record.call_id} was begun again after its outcome"
        if outcome := outcome_of(record):
            if outcome.call_id in ended:
                yield f"{outcome.call_id} has two outcomes"
            ended[outcome.call_id] = outcome.attempt
    for start, times in Counter(story.starts).items():
        if times > 1:
            yield f"{start} happened {times} times"
        if start not in begun:
            yield f"{start} happened before it was recorded"
        if start.call_id not in ended:
            yield f"{start} happened and has no outcome"
        elif start.attempt > ended[start.call_id]:
            yield f"{start} happened although an earlier attempt had an outcome"


def tool_results_differ(story: Story, undisturbed: Story) -> Iterator[str]:
    """Only a call in flight may come to something else: to an unknown outcome, if it says so."""
    found, expected = tool_results(story), tool_results(undisturbed)
    for call_id, tool in tools_of(story).items():
        if call_id in cut_off(story) and on_interrupt(story, tool) == "report":
            expected[call_id] = ("interrupted", "crash")
    if found != expected:
        yield f"the tools came to {found} instead of {expected}"


def effects_differ(story: Story, undisturbed: Story) -> Iterator[str]:
    """Hold each effect between its bounds; without a kill in flight it happens once."""
    if story.seats != undisturbed.seats:
        yield f"the transactional tool left {story.seats} instead of {undisturbed.seats}"
    cut = {tools_of(story).get(call_id) for call_id in cut_off(story)}
    found, expected = effects(story), effects(undisturbed)
    for effect in found | expected:
        tool = DONE_BY[effect.split()[0]]
        least = most = 1
        if tool in cut and on_interrupt(story, tool) == "report":
            least = 0
        if tool in cut and on_interrupt(story, tool) == "rerun":
            most += story.kills
        if not least <= found[effect] <= most:
            yield f"{effect}: {found[effect]} times"


def model_calls_differ(story: Story, undisturbed: Story) -> Iterator[str]:
    """Only a model call in flight is paid for again, once for each kill that cut it off."""
    found, expected, cut = model_calls(story), model_calls(undisturbed), cut_off(story)
    for call_id in found | expected:
        most = expected[call_id] + cut[call_id]
        if not 1 <= found[call_id] <= most:
            yield f"{call_id} was paid for {found[call_id]} times, and {most} at most are right"


def deliveries_differ(story: Story, undisturbed: Story) -> Iterator[str]:
    records = [entry.record for entry in story.entries]
    settled = Counter(e.delivery_id for e in records if isinstance(e, r.DeliverySettled))
    yield from (f"{d} was settled {n} times" for d, n in settled.items() if n != 1)
    if delivered(story) != delivered(undisturbed):
        yield f"the deliveries came to {delivered(story)}"


# What a story says


def outcome_of(record: Any) -> Outcome | None:
    match record:
        case r.MessageCompleted():
            return Outcome(record.call_id, record.attempt, "answered")
        case r.ToolCompleted():
            return Outcome(record.call_id, record.attempt, "completed", record.value)
        case r.ToolFailed(again_at=0):
            return Outcome(record.call_id, record.attempt, "failed", record.error.code)
        case r.ToolInterrupted(final=True):
            return Outcome(record.call_id, record.attempt, "interrupted", record.reason)
    return None


def tool_results(story: Story) -> dict[str, tuple[str, Any]]:
    outcomes = [found for e in story.entries if (found := outcome_of(e.record))]
    return {o.call_id: (o.what, o.value) for o in outcomes if o.what != "answered"}


def tools_of(story: Story) -> dict[str, str]:
    records = [entry.record for entry in story.entries]
    return {e.call_id: e.tool for e in records if isinstance(e, r.ToolRequested)}


def cut_off(story: Story) -> Counter[str]:
    """Count how often each call, of a tool or of the model, was running at a takeover."""
    cut: Counter[str] = Counter()
    lane = Lane(session=story.deliveries[0].session_id)
    for entry in story.entries:
        if isinstance(entry.record, r.LaneTakenOver) and lane.turn:
            model, calls = lane.turn.model, lane.turn.calls.values()
            cut.update([model.call_id] if model and model.status == RUNNING else [])
            cut.update(call.call_id for call in calls if call.status == RUNNING)
        lane = fold_all(lane, (entry,))
    return cut


def effects(story: Story) -> Counter[str]:
    """Count the effects, without the keys, which differ from session to session."""
    return Counter(effect.split(" under ")[0] for effect in story.effects)


def model_calls(story: Story) -> Counter[str]:
    return Counter(start.call_id for start in story.starts if start.call_id not in tools_of(story))


def delivered(story: Story) -> list[tuple[str, str, str]]:
    return sorted((d.kind, d.state, d.outcome) for d in story.deliveries)


def on_interrupt(story: Story, tool: str) -> str:
    [agent] = [e.record.agent for e in story.entries if isinstance(e.record, r.SessionStarted)]
    return policies()[agent].tool(tool).on_interrupt


@cache
def policies() -> dict[str, Policy]:
    return {agent.name: agent.policy for agent in agents(Book("nowhere"))}
