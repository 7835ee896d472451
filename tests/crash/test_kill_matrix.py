"""A worker is killed before and after every commit; nothing is lost, nothing done again."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_fact import complaints
from crash_process import Zygote
from crash_run import Log, Scene, play, play_all
from crash_talk import anchor_it, approve_at_the_top, book_a_trip, say_nothing

from outlast.core import record as r
from outlast.core.event import type_of
from outlast.testing.crash import CrashPoint, When


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("agent", ["travel", "rerunner"])
async def test_a_kill_at_any_commit_changes_only_what_was_in_flight(
    zygote: Zygote, tmp_path: Path, agent: str, when: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, agent, book_a_trip)
    assert complaints([undisturbed], [[]], undisturbed) == ""

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(scene, agent, book_a_trip, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_session_is_anchored_once_wherever_its_worker_is_killed(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, "errand", anchor_it)

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 1)]
    stories = await play_all(scene, "errand", anchor_it, plans)

    for story in [undisturbed, *stories]:
        [log] = story.logs
        assert not log.findings
        assert sum(isinstance(record, r.SessionRekeyed) for record in log.records) == 1
    assert sum(story.kills for story in stories) >= len(plans) - 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_session_that_stays_with_a_deployment_goes_on_where_it_is_moved_after_any_kill(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path, zygote, pin="session")
    undisturbed = await play(scene, "errand", say_nothing)

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 1)]
    stories = await play_all(scene, "errand", say_nothing, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert all(story.kills for story in stories)


@pytest.mark.parametrize("first", ["before", "after"])
@pytest.mark.parametrize("second", ["before", "after"])
async def test_two_kills_at_any_commits_change_only_what_was_in_flight(
    zygote: Zygote, tmp_path: Path, first: When, second: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, "errand", say_nothing)
    assert complaints([undisturbed], [[]], undisturbed) == ""

    commits = range(1, undisturbed.commits + 1)
    plans = [[CrashPoint(n, first), CrashPoint(m, second)] for n in commits for m in commits]
    stories = await play_all(scene, "errand", say_nothing, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert all(story.kills for story in stories)
    assert sum(story.kills for story in stories) > len(plans)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_any_commit_of_three_levels_changes_only_what_was_in_flight(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, "owner", approve_at_the_top)
    assert complaints([undisturbed], [[]], undisturbed) == ""
    assert [log.agent for log in undisturbed.logs] == ["clerk", "manager", "owner", "scout"]

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(scene, "owner", approve_at_the_top, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_any_commit_of_an_outage_tells_readers_nothing_twice(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, "refused", say_nothing)
    # Where it is slow to say that it waits, a session may find the provider back at once.
    at_once = ("provider.unavailable", "provider.available", "session.waiting")
    parked = (at_once[0], "session.waiting", at_once[1], "session.resumed", at_once[2])
    assert told_of_waits(undisturbed.logs[0]) in (parked, at_once)

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(scene, "refused", say_nothing, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert {told_of_waits(story.logs[0]) for story in stories} <= {parked, at_once}
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_any_commit_of_an_agent_with_rules_changes_nothing_that_they_said(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, "ruled", say_nothing)
    assert complaints([undisturbed], [[]], undisturbed) == ""
    assert said_by_rules(undisturbed.logs[0]) == [
        ("tool.denied", "t1.s1.c1"),
        ("feedback.skipped", 1, "quiet"),
        ("feedback.given", 2, "hurry"),
        ("feedback.skipped", 2, "quiet"),
        ("completion.refused", 3, 1),
        ("feedback.skipped", 4, "quiet"),
        ("completion.accepted", 5, ("is_paid",)),
    ]

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(scene, "ruled", say_nothing, plans)

    assert complaints(stories, plans, undisturbed) == ""
    for story in stories:
        assert said_by_rules(story.logs[0]) == said_by_rules(undisturbed.logs[0])
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_any_commit_of_a_compaction_changes_nothing_that_was_done(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, "endless", say_nothing)
    assert complaints([undisturbed], [[]], undisturbed) == ""
    assert compactions(undisturbed.logs[0]) >= 2

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(scene, "endless", say_nothing, plans)

    assert complaints(stories, plans, undisturbed) == ""
    for story in stories:
        # What an interrupted call is told with is shorter than its result.
        assert 1 <= compactions(story.logs[0]) <= compactions(undisturbed.logs[0])
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3


def compactions(log: Log) -> int:
    return sum(isinstance(record, r.CompactionCompleted) for record in log.records)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_any_commit_of_an_agent_with_a_plan_goes_on_from_its_last_milestone(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path, zygote)
    undisturbed = await play(scene, "planning", say_nothing)
    assert complaints([undisturbed], [[]], undisturbed) == ""
    assert milestones(undisturbed.logs[0]) == ["write it down", "pay"]

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(scene, "planning", say_nothing, plans)

    assert complaints(stories, plans, undisturbed) == ""
    for story in stories:
        assert milestones(story.logs[0]) == milestones(undisturbed.logs[0])
        assert restarts(story.logs[0]) == restarts_due(story.logs[0])
    assert sum(len(restarts(story.logs[0])) for story in stories) > 3
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3


def milestones(log: Log) -> list[str]:
    return [record.title for record in log.records if isinstance(record, r.MilestoneReached)]


def restarts(log: Log) -> list[int]:
    """Return where contexts began anew, by the record that follows."""
    places = enumerate(log.records)
    return [place + 1 for place, record in places if isinstance(record, r.ContextRestarted)]


def restarts_due(log: Log) -> list[int]:
    """Return the model calls that are the first after a crash, once there is a milestone."""
    found: list[int] = []
    has_milestone = has_crashed = False
    for place, record in enumerate(log.records):
        match record:
            case r.MilestoneReached():
                has_milestone = True
            case r.LaneTakenOver(graceful=False):
                has_crashed = True
            case r.ModelStarted():
                found += [place] if has_milestone and has_crashed else []
                has_crashed = False
    return found


def said_by_rules(log: Log) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for record in log.records:
        match record:
            case r.ToolDenied(call_id=call_id):
                found.append((type_of(record), call_id))
            case r.FeedbackGiven(step=step, name=name) | r.FeedbackSkipped(step=step, name=name):
                found.append((type_of(record), step, name))
            case r.CompletionRefused(step=step, number=number):
                found.append((type_of(record), step, number))
            case r.CompletionAccepted(step=step, checkers=checkers):
                found.append((type_of(record), step, checkers))
    return found


def told_of_waits(log: Log) -> tuple[str, ...]:
    """Return what readers hear of the provider, and of where the session waits."""
    told = r.ProviderUnavailable | r.ProviderAvailable | r.SessionWaiting | r.SessionResumed
    return tuple(type_of(record) for record in log.records if isinstance(record, told))
