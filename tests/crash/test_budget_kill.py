"""A worker is killed around what its calls reserve and spend; nothing is lost, nothing stays.

Three sessions of a tenant are at work at once under budgets of their own, of their principals, of
the tenant and of the day; one of them has children on two more levels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from crash_budget import Kill, run_tree
from crash_process import Zygote

AT_ONCE = 4
WIDE = ("go 1 2", "go 1", "go")
COMMITS = [Kill(at=at, when="before") for at in range(3, 60, 8)] + [
    Kill(at=at, when="after") for at in range(5, 60, 8)
]
MOMENTS = [
    Kill(moment="asked", nth=3),
    Kill(moment="asked", nth=9),
    Kill(moment="answering", nth=1),
    Kill(moment="answering", nth=10),
    Kill(moment="answered", nth=2),
    Kill(moment="answered", nth=8),
]


@pytest_asyncio.fixture
async def spenders() -> AsyncIterator[Zygote]:
    """A process that forks workers of the tree."""
    zygote = await Zygote.start("crash_budget")
    yield zygote
    await zygote.stop()


async def test_a_kill_around_a_call_leaves_nothing_reserved_and_no_usage_uncounted(
    spenders: Zygote, tmp_path: Path
) -> None:
    slots, killed = asyncio.Semaphore(AT_ONCE), 0

    async def play(number: int, kill: Kill) -> list[str]:
        nonlocal killed
        place = tmp_path / str(number)
        async with slots:
            ran = await run_tree(spenders, place, f"sqlite:///{place}.db", "acme", kill, WIDE)
        killed += ran.kills
        return [f"{kill}: {wrong}" for wrong in ran.complaints()]

    found = await asyncio.gather(*(play(*each) for each in enumerate([*COMMITS, *MOMENTS])))

    assert [wrong for each in found for wrong in each] == []
    assert killed > len([*COMMITS, *MOMENTS]) - 4


async def test_a_kill_around_a_call_on_postgres_leaves_nothing_reserved_either(
    spenders: Zygote, tmp_path: Path, postgres_url: str
) -> None:
    found: list[str] = []
    killed = 0
    kills = [*COMMITS[1::6], *MOMENTS[1::2]]
    for number, kill in enumerate(kills):  # one after the other: they share a store
        place, tenant = tmp_path / str(number), f"tenant-{number}"
        ran = await run_tree(spenders, place, postgres_url, tenant, kill, WIDE)
        found += [f"{kill}: {wrong}" for wrong in ran.complaints()]
        killed += ran.kills

    assert found == []
    assert killed > len(kills) - 2
