"""Sessions that take their workers down: how many they cost, and what they come to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from crash_agent import MAX_DEATHS
from crash_process import DEADLINE
from crash_ruled import Weighed, Weight
from crash_run import Scene
from psycopg.sql import SQL, Identifier

from outlast import Session
from outlast.core.message import MAX_MESSAGE
from outlast.log.verify import verify
from outlast.stores.postgres.url import read_url

MIB = 1024 * 1024
LARGE = "0123456789abcdef" * MIB
"""16 MiB."""


@asynccontextmanager
async def replaced_workers(scene: Scene, **order: Any) -> AsyncIterator[list[int]]:
    """Have one worker after the other, each started when the one before is gone.

    Pauses of lanes are over at once.
    """
    exits: list[int] = []

    async def work() -> None:
        while True:
            exits.append(await (await scene.worker(**order)).until_exit())

    tasks = [asyncio.create_task(work()), asyncio.create_task(end_pauses(scene))]
    try:
        yield exits
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in scene.processes:
            process.signal(signal.SIGKILL)


async def end_pauses(scene: Scene) -> None:
    """End the pause of every lane, for as long as there is one."""
    if scene.url:
        await end_pauses_on_postgres(scene.url)
    else:
        await jump_past_pauses(scene)


async def jump_past_pauses(scene: Scene) -> None:
    async with scene.open() as app:
        while True:
            lanes = await app.store.listing.lanes()
            now = scene.clock.now()
            until = [
                int(lane.claimable_at.timestamp() * 1000) for lane in lanes if lane.claimable_at
            ]
            if any(at > now for at in until):
                scene.clock.jump_to(max(until) + 1)
            await asyncio.sleep(0.05)


async def end_pauses_on_postgres(url: str) -> None:
    """Do the same where the server's clock alone counts: move what it is compared with."""
    place = read_url(url)
    over = SQL("UPDATE {} SET claimable_at = 1 WHERE claimable_at > 1").format(
        Identifier(place.schema, "lanes")
    )
    async with await psycopg.AsyncConnection.connect(place.direct, autocommit=True) as connection:
        while True:
            await connection.execute(over)
            await asyncio.sleep(0.05)


async def test_a_readonly_tool_that_takes_its_worker_down_costs_one_more_answer_at_most(
    scene: Scene,
) -> None:
    async with scene.open() as app, asyncio.timeout(DEADLINE), replaced_workers(scene) as exits:
        session: Session[Any] = await app.start("deadly", "Go!")
        result = await session.wait()

        assert result.error is not None
        assert result.error.code == "NO_PROGRESS"
        asked = [start for start in scene.book.starts() if start.call_id == "t1.s1"]
        ran = [start for start in scene.book.starts() if start.call_id == "t1.s1.c1"]
        assert len(asked) <= 2
        assert len(ran) == len(exits) == MAX_DEATHS + 1
        assert await verify(app.store, session.id) == []


async def test_a_checker_that_takes_its_worker_down_costs_a_few_of_them_and_one_answer(
    scene: Scene,
) -> None:
    async with scene.open() as app, asyncio.timeout(DEADLINE), replaced_workers(scene) as exits:
        session: Session[Any] = await app.start("deadly_rule", "Go!")
        result = await session.wait()

        assert result.error is not None
        assert result.error.code == "WORKERS_LOST"
        starts = scene.book.starts()
        assert len([start for start in starts if start.call_id == "t1.s1"]) == 1
        assert len([start for start in starts if start.call_id == "t1"]) == MAX_DEATHS
        assert len(exits) == MAX_DEATHS
        assert await verify(app.store, session.id) == []


async def test_a_session_too_large_for_its_workers_costs_a_few_of_them_and_fails(
    scene: Scene,
) -> None:
    assert len(LARGE) < MAX_MESSAGE
    async with scene.open() as app, asyncio.timeout(DEADLINE):
        session: Session[Any] = await app.start("reader", LARGE)
        for _ in range(2):
            await session.send(LARGE)
        other: Session[Any] = await app.start("reader", "Hello!")
        async with replaced_workers(scene, memory=32 * MIB) as exits:
            result = await session.wait()

            assert result.error is not None
            assert result.error.code == "WORKERS_LOST"
            failed = [e async for e in session.events(follow=False) if e.type == "turn.failed"]
            assert [e.data["error"]["code"] for e in failed] == ["WORKERS_LOST"] * 3
            # The second and the third turn cost one more each.
            assert len(exits) == MAX_DEATHS + 2
            assert (await other.wait()).output == "I have read it."
            assert await verify(app.store, session.id) == []


async def test_a_change_of_state_that_takes_its_worker_down_costs_a_few_of_them_and_is_refused(
    scene: Scene,
) -> None:
    async with scene.open() as app, asyncio.timeout(DEADLINE), replaced_workers(scene) as exits:
        session: Session[Any] = await app.start("reader", "Read!")
        assert (await session.wait()).output == "I have read it."

        result = await (await session.mutate().dispatch(Weighed(5))).result()

        assert result.error is not None
        assert result.error.code == "WORKERS_LOST"
        assert len(exits) == MAX_DEATHS
        await session.mutate(Weight).append(Weight(5))
        again = await (await session.send("Read on!")).result()
        assert again.output == "I have read it."
        assert await session.query(Weight).all() == [Weight(5)]
        assert len(exits) == MAX_DEATHS
        assert await verify(app.store, session.id) == []
