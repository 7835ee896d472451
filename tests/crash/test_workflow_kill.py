"""The worker of a workflow is killed at its commits: what it did is known, and undone once.

Some of the points are tried each time, the others too by `make chaos`. Every commit of other
workflows is in tests/workflows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest_asyncio
from crash_flow import run_flow
from crash_process import Zygote

from outlast.testing.crash import CrashPoint, When

AT_ONCE = 6
LAST = 90
"""No run has more commits than that; the points behind its last are no kills."""
EVERY = "OUTLAST_EVERY_KILL" in os.environ
ALL: list[tuple[int, When]] = [
    (number, when) for number in range(2, LAST) for when in get_args(When)
]
SOME: list[tuple[int, When]] = [
    *((number, "before") for number in range(3, 60, 4)),
    *((number, "after") for number in range(6, 90, 14)),
]
POINTS = ALL if EVERY else SOME
ON_POSTGRES: list[tuple[int, When]] = ALL if EVERY else [(9, "after"), (33, "before")]


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
    for commit, when in ON_POSTGRES:  # one after the other: they share a store
        found.append(await play(commit, when, postgres_url))

    assert [complaint for each in found for complaint in each] == []
    assert killed > len(POINTS) // 2
