"""A worker that is asked to stop hands over what it has, and nothing is counted against it.

The agents here give a call one attempt: were a stop to cost one, their turns would fail.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from crash_agent import SPEECH
from crash_gate import Gate
from crash_process import Zygote
from crash_run import Scene, read_log, until_event

from outlast import Session
from outlast.core.record import LaneTakenOver, ModelStarted
from outlast.log.verify import verify

AT_ONCE = 0.0


async def test_a_graceful_stop_in_mid_tool_costs_no_attempt_and_another_worker_carries_on(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            first = await scene.worker(grace=AT_ONCE)
            session: Session[Any] = await app.start("impatient", f"repeatable {gate.path}")
            await until_event(session, "tool.progress")
            await first.stop()
            second = await scene.worker()

            result = await session.wait()

            assert (result.status, result.output) == ("completed", "It is done.")
            assert scene.book.effects() == ["began repeatable", "began repeatable"]
            assert await verify(app.store, session.id) == []
            await second.stop()


async def test_a_kill_in_mid_tool_does_cost_an_attempt(zygote: Zygote, tmp_path: Path) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            first = await scene.worker()
            session: Session[Any] = await app.start("impatient", f"repeatable {gate.path}")
            await until_event(session, "tool.progress")
            first.signal(signal.SIGKILL)
            second = await scene.worker()

            result = await session.wait()

            assert result.status == "failed"
            assert result.error is not None
            assert result.error.code == "NO_PROGRESS"
            await second.stop()


async def test_a_graceful_stop_waits_for_a_tool_that_ends_in_time(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            first = await scene.worker(grace=30.0)
            session: Session[Any] = await app.start("slow", f"careful {gate.path}")
            await until_event(session, "tool.progress")
            first.signal(signal.SIGTERM)
            gate.open()
            await first.until_exit()
            second = await scene.worker()

            result = await session.wait()

            assert result.output == "It is done."
            assert [event.type async for event in session.events()].count("tool.completed") == 1
            await second.stop()


async def test_a_graceful_stop_in_mid_stream_costs_no_attempt_and_the_answer_is_whole(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    async with scene.open() as app:
        first = await scene.worker(grace=AT_ONCE)
        session: Session[Any] = await app.start("hasty", "Speak!")
        await until_event(session, "message.delta")
        await first.stop()
        second = await scene.worker()

        result = await session.wait()

        records = [entry.record for entry in await read_log(app.store, session.id)]
        assert (result.status, result.output) == ("completed", SPEECH)
        assert any(isinstance(e, LaneTakenOver) and e.graceful for e in records)
        assert [e.attempt for e in records if isinstance(e, ModelStarted)] == [1, 2]
        assert await verify(app.store, session.id) == []
        await second.stop()
