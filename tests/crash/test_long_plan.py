"""A long plan goes on from where it was, however often its worker is killed.

Here is a short one with few kills; `make chaos ARGS="--plans"` has fifty steps and twenty kills.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from crash_long import run_long
from crash_process import Zygote

STEPS, KILLS = 12, 3


@pytest_asyncio.fixture
async def long_zygote() -> AsyncIterator[Zygote]:
    zygote = await Zygote.start("crash_long")
    yield zygote
    await zygote.stop()


async def test_no_done_step_is_done_again_however_often_the_worker_is_killed(
    long_zygote: Zygote, tmp_path: Path, postgres_url: str
) -> None:
    async def play(name: str, url: str, resume: str, seed: int) -> list[str]:
        place = tmp_path / f"{name}-{resume}"
        place.mkdir()
        url = url or f"sqlite:///{place}/long.db"
        ran = await run_long(long_zygote, place, url, resume, STEPS, KILLS, seed)  # type: ignore[arg-type]
        return [*ran.complaints(KILLS)]

    found = await asyncio.gather(
        play("sqlite", "", "milestone", 1),
        play("sqlite", "", "transcript", 2),
        play("postgres", postgres_url, "milestone", 3),
    )

    assert [*found] == [[], [], []]
