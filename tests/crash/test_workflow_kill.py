"""The worker of a workflow is killed at its commits: what it did is known, and undone once.

Here are some of the points; every commit of other workflows is in tests/workflows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from crash_flow import run_flow
from crash_process import Zygote

from outlast.testing.crash import CrashPoint, When

AT_ONCE = 6
POINTS: list[tuple[int, When]] = [
    *((number, "before") for number in range(3, 40, 6)),
    *((number, "after") for number in range(6, 40, 12)),
]
ON_POSTGRES: list[tuple[int, When]] = [(5, "after"), (26, "before")]


@pytest_asyncio.fixture
async def flow_zygote() -> AsyncIterator[Zygote]:
    zygote = await Zygote.start("crash_flow")
    yield zygote
    await zygote.stop()


async def test_a_kill_at_a_commit_of_a_workflow_repeats_nothing_and_undoes_all_in_reverse(
    flow_zygote: Zygote, tmp_path: Path, postgres_url: str
) -> None:
    slots, killed = asyncio.Semaphore(AT_ONCE), 0

    async def play(commit: int, when: When, url: str = "") -> list[str]:
        nonlocal killed
        point = CrashPoint(commit, when)
        async with slots:
            place = tmp_path / f"{'postgres' if url else 'sqlite'}-{commit}-{when}"
            ran = await run_flow(flow_zygote, place, url, point)
        killed += ran.was_killed
        return [f"{point}: {complaint}" for complaint in ran.complaints()]

    found = await asyncio.gather(*(play(*point) for point in POINTS))
    for point in ON_POSTGRES:  # one after the other: they share a store
        found.append(await play(*point, url=postgres_url))

    assert [complaint for each in found for complaint in each] == []
    assert killed > len(POINTS) // 2
