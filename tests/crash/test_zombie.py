"""Workers that are dead and do not know it, and workers that are dead and do not look it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crash_agent import SPEECH
from crash_gate import Gate
from crash_process import DEADLINE, Zygote
from crash_run import Scene, read_log, until_event

from outlast import Outlast, Session
from outlast.log.verify import verify
from outlast.store import LaneInfo

SHORT_LEASE = 3.0
PROMPTLY = 15.0
"""Half of a lease, and far more than the death watch takes."""


async def main_lane(app: Outlast, session: Session[Any]) -> LaneInfo:
    info = await app.store.listing.session(session.id)
    assert info is not None
    return info.lanes[0]


@pytest.mark.parametrize(
    ("agent", "message", "in_the_middle", "answer"),
    [
        ("slow", "careful", "tool.progress", "It is done."),
        ("talker", "", "message.delta", SPEECH),
    ],
    ids=["of a tool", "of an answer"],
)
async def test_a_worker_stopped_past_its_lease_in_the_middle_adds_nothing_when_it_wakes(
    zygote: Zygote, tmp_path: Path, agent: str, message: str, in_the_middle: str, answer: str
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            zombie = await scene.worker(lease=SHORT_LEASE)
            session: Session[Any] = await app.start(agent, f"{message} {gate.path}")
            await until_event(session, in_the_middle)
            zombie.signal(signal.SIGSTOP)
            before = await main_lane(app, session)
            heir = await scene.worker(lease=SHORT_LEASE)
            result = await session.wait()
            log = await read_log(app.store, session.id)
            effects = scene.book.effects()

            gate.open()
            zombie.signal(signal.SIGCONT)
            await zombie.until_said("a lane was taken over by another worker")
            await zombie.stop()

            after = await main_lane(app, session)
            assert result.output == answer
            assert await read_log(app.store, session.id) == log
            assert scene.book.effects() == effects
            assert after.fence > before.fence
            assert await verify(app.store, session.id) == []
            await heir.stop()


async def test_a_worker_that_was_buried_alive_is_refused_at_its_next_commit(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            buried = await scene.worker()
            session: Session[Any] = await app.start("slow", f"careful {gate.path}")
            await until_event(session, "tool.progress")
            with closing(sqlite3.connect(scene.database, isolation_level=None)) as database:
                database.execute("DELETE FROM outlast_workers")
            heir = await scene.worker()
            result = await session.wait()
            log = await read_log(app.store, session.id)

            gate.open()
            await buried.until_said("a lane was taken over by another worker")

            assert result.output == "It is done."
            assert await read_log(app.store, session.id) == log
            assert scene.book.effects() == ["began careful"]
            assert await verify(app.store, session.id) == []
            await buried.stop()
            await heir.stop()


async def test_a_worker_stopped_past_its_lease_carries_on_if_nobody_took_its_place(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            worker = await scene.worker(lease=SHORT_LEASE)
            session: Session[Any] = await app.start("slow", f"repeatable {gate.path}")
            await until_event(session, "tool.progress")
            [info] = await app.store.work.workers()
            worker.signal(signal.SIGSTOP)
            async with asyncio.timeout(DEADLINE):
                while await app.store.work.workers():  # noqa: ASYNC110 - a lease ends without a word
                    await asyncio.sleep(0.05)
            gate.open()
            worker.signal(signal.SIGCONT)

            assert (await session.wait()).output == "It is done."
            assert [w.worker for w in await app.store.work.workers()] == [info.worker]
            types = [event.type async for event in session.events(follow=False)]
            assert types.count("tool.started") == 1
            assert "tool.interrupted" not in types
            await worker.stop()


async def test_a_worker_whose_forked_child_outlives_it_is_seen_as_dead_at_once(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            parent = await scene.worker()
            session: Session[Any] = await app.start("parent", f"beget {gate.path}")
            await until_event(session, "tool.progress")
            heir = await scene.worker()
            await heir.until_said("at work")
            parent.signal(signal.SIGKILL)

            async with asyncio.timeout(PROMPTLY):
                result = await session.wait()

            [child] = [effect.split()[1] for effect in scene.book.effects()]
            os.kill(int(child), 0)  # it lives
            assert result.output == "It is done."
            await heir.stop()
