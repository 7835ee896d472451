"""A worker is killed before and after every commit; nothing is lost, nothing done again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from crash_fact import compare
from crash_process import Zygote
from crash_run import Scene, Story, Talk, play
from crash_talk import approve_at_the_top, book_a_trip, say_nothing

from holdfast.testing.crash import CrashPoint, When

AT_ONCE = 10


async def play_all(
    zygote: Zygote, tmp_path: Path, agent: str, talk: Talk, plans: Sequence[Sequence[CrashPoint]]
) -> list[Story]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, plan: Sequence[CrashPoint]) -> Story:
        async with slots:
            return await play(Scene(tmp_path / str(number), zygote), agent, talk, plan)

    return await asyncio.gather(*(one(number, plan) for number, plan in enumerate(plans)))


def complaints(
    stories: Sequence[Story], plans: Sequence[Sequence[CrashPoint]], undisturbed: Story
) -> str:
    found = [
        f"killed {' and '.join(map(str, plan))}: {wrong}"
        for plan, story in zip(plans, stories, strict=True)
        for wrong in compare(story, undisturbed)
    ]
    return "\n".join(found)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("agent", ["travel", "rerunner"])
async def test_a_kill_at_any_commit_changes_only_what_was_in_flight(
    zygote: Zygote, tmp_path: Path, agent: str, when: When
) -> None:
    undisturbed = await play(Scene(tmp_path / "undisturbed", zygote), agent, book_a_trip)
    assert complaints([undisturbed], [[]], undisturbed) == ""

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(zygote, tmp_path, agent, book_a_trip, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3


@pytest.mark.parametrize("first", ["before", "after"])
@pytest.mark.parametrize("second", ["before", "after"])
async def test_two_kills_at_any_commits_change_only_what_was_in_flight(
    zygote: Zygote, tmp_path: Path, first: When, second: When
) -> None:
    undisturbed = await play(Scene(tmp_path / "undisturbed", zygote), "errand", say_nothing)
    assert complaints([undisturbed], [[]], undisturbed) == ""

    commits = range(1, undisturbed.commits + 1)
    plans = [[CrashPoint(n, first), CrashPoint(m, second)] for n in commits for m in commits]
    stories = await play_all(zygote, tmp_path, "errand", say_nothing, plans)

    assert complaints(stories, plans, undisturbed) == ""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_any_commit_of_three_levels_changes_only_what_was_in_flight(
    zygote: Zygote, tmp_path: Path, when: When
) -> None:
    scene = Scene(tmp_path / "undisturbed", zygote)
    undisturbed = await play(scene, "owner", approve_at_the_top)
    assert complaints([undisturbed], [[]], undisturbed) == ""
    assert [log.agent for log in undisturbed.logs] == ["clerk", "manager", "owner", "scout"]

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(zygote, tmp_path, "owner", approve_at_the_top, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert sum(story.kills for story in stories) >= undisturbed.commits - 3
