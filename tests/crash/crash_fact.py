"""What must be the same whenever and wherever a worker is killed, and what may differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from crash_run import Story
from holdfast.core import record as r
from holdfast.core.fold import fold_all
from holdfast.core.lane import RUNNING, Lane
from holdfast.core.record import Entry

NOT_REPEATED = {"pay", "refund"}
"""The tools of the scenarios that say nothing about interruptions."""


class Outcome(NamedTuple):
    call_id: str
    attempt: int
    what: str
    value: Any = None


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
        case r.ToolDenied():
            return Outcome(record.call_id, 0, "denied", record.reason)
    return None


def outcomes(story: Story) -> list[Outcome]:
    return [found for e in story.entries if (found := outcome_of(e.record))]


def tool_facts(story: Story) -> dict[str, tuple[str, Any]]:
    return {o.call_id: (o.what, o.value) for o in outcomes(story) if o.what != "answered"}


def settled(story: Story) -> Counter[str]:
    records = [e.record for e in story.entries]
    return Counter(e.delivery_id for e in records if isinstance(e, r.DeliverySettled))


def delivered(story: Story) -> list[tuple[str, str, str]]:
    return sorted((d.kind, d.state, d.outcome) for d in story.deliveries)


def in_flight(story: Story) -> dict[str, str]:
    """Return the tool calls that were running at a takeover, with their tools."""
    cut: dict[str, str] = {}
    lane = Lane(session=story.deliveries[0].session_id)
    for entry in story.entries:
        taken = isinstance(entry.record, r.LaneTakenOver) and not entry.record.graceful
        if taken and lane.turn:
            calls = lane.turn.calls.values()
            cut |= {call.call_id: call.tool for call in calls if call.status == RUNNING}
        lane = fold_all(lane, (entry,))
    return cut


# Each yields what is wrong.


def compare(story: Story, undisturbed: Story) -> Iterator[str]:
    """Hold a disturbed session against one that was left in peace."""
    yield from story.findings
    yield from nothing_recorded_ran_again(story)
    yield from only_calls_in_flight_differ(story, undisturbed)
    yield from nothing_is_repeated_silently(story, undisturbed)
    yield from every_delivery_is_settled_once(story, undisturbed)
    if story.outputs != undisturbed.outputs:
        yield f"the answers were {story.outputs}"


def nothing_recorded_ran_again(story: Story) -> Iterator[str]:
    ended = Counter(outcome.call_id for outcome in outcomes(story))
    yield from (f"{call} has {n} outcomes" for call, n in ended.items() if n > 1)
    last = {outcome.call_id: outcome.attempt for outcome in outcomes(story)}
    for start, times in Counter(story.starts).items():
        if times > 1:
            yield f"{start} began {times} times"
        if start.attempt > last[start.call_id]:
            yield f"{start} began although {last[start.call_id]} had an outcome"
    yield from started_unrecorded(story)


def started_unrecorded(story: Story) -> Iterator[str]:
    """Whatever began had been recorded as begun, and nothing began after its outcome."""
    begun: set[tuple[str, int]] = set()
    over: set[str] = set()
    for record in (e.record for e in story.entries):
        if isinstance(record, r.ToolStarted | r.ModelStarted):
            begun.add((record.call_id, record.attempt))
            if record.call_id in over:
                yield f"{record.call_id} was begun again after its outcome"
        if found := outcome_of(record):
            over.add(found.call_id)
    yield from (f"{start} is not in the log" for start in set(story.starts) - begun)


def only_calls_in_flight_differ(story: Story, undisturbed: Story) -> Iterator[str]:
    cut = in_flight(story)
    found, expected = tool_facts(story), tool_facts(undisturbed)
    for call_id, tool in cut.items():
        if tool in NOT_REPEATED and call_id in found and story_reports(story, call_id):
            expected[call_id] = ("interrupted", "crash")
    if found != expected:
        yield f"the tools came to {found} instead of {expected}"


def story_reports(story: Story, call_id: str) -> bool:
    """Whether the agent of this story leaves an interrupted call of that tool alone."""
    started = next(e.record for e in story.entries if isinstance(e.record, r.SessionStarted))
    return started.agent != "rerunner"


def nothing_is_repeated_silently(story: Story, undisturbed: Story) -> Iterator[str]:
    if story.seats != undisturbed.seats:
        yield f"the transactional tool left {story.seats}"
    model_calls = len([s for s in story.starts if ".c" not in s.call_id])
    expected = len([s for s in undisturbed.starts if ".c" not in s.call_id])
    if model_calls > expected + story.kills:
        yield f"{model_calls} model calls were paid instead of {expected}"
    cut = in_flight(story)
    reported = {call for call, tool in cut.items() if tool in NOT_REPEATED}
    for effect, times in Counter(story.effects).items():
        verb = effect.split()[0]
        allowed = 1 + (story.kills if may_repeat(verb, story) else 0)
        if times > allowed:
            yield f"{effect}: {times} times"
    missing = set(normal(undisturbed)) - set(normal(story))
    if not missing or (story_reports(story, "") and reported):
        return
    yield f"never happened: {missing}"


def may_repeat(verb: str, story: Story) -> bool:
    """Whether an effect is of a tool that may run again: never money, never a found parcel."""
    return verb in ("noted", "looked") or not story_reports(story, "")


def normal(story: Story) -> Iterator[str]:
    """Give the effects without what differs from session to session."""
    return (effect.split(" under ")[0] for effect in story.effects)


def every_delivery_is_settled_once(story: Story, undisturbed: Story) -> Iterator[str]:
    yield from (f"{d} was settled {n} times" for d, n in settled(story).items() if n != 1)
    if delivered(story) != delivered(undisturbed):
        yield f"the deliveries came to {delivered(story)}"


def types_of(entries: tuple[Entry, ...]) -> list[str]:
    return [type(entry.record).__name__ for entry in entries]
