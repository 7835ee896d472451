"""Timers, deadlines, requests and schedules, while workers are killed and the clock jumps.

Nothing is waited for by the real clock: that jumps to where the test wants it. Whether a worker
leaves a lane alone is seen from the lane's fence once it has done something else since.
"""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from crash_agent import SHORT_ANSWER
from crash_gate import Gate
from crash_process import Process, Zygote
from crash_run import Scene, read_log, until_event
from crash_timer import HOUR
from known import known_as

from outlast import Outlast, Session
from outlast.core import record as r
from outlast.core.instant import milliseconds_at
from outlast.core.record import Entry
from outlast.errors import RequestClosed
from outlast.log.reader import Wakeups
from outlast.log.verify import verify
from outlast.testing.crash import When

MINUTE = HOUR // 60
SECOND = MINUTE // 60
DAY = 24 * HOUR
SWIFT = {"poll": 0.05}


async def kill(process: Process) -> None:
    process.signal(signal.SIGKILL)
    assert await process.until_exit() == -signal.SIGKILL


async def at_work_after(scene: Scene, instant: int, **order: Any) -> Process:
    """Have the clock jump, and a fresh worker start after that."""
    scene.clock.jump_to(instant)
    return await scene.worker(**SWIFT, **order)


async def leaves_alone(app: Outlast, session: Session[Any]) -> bool:
    """Say whether the worker has not touched a lane, though it has looked for work."""
    before = await session.info()
    probe: Session[Any] = await app.start("talker", "Speak!")
    await until_event(probe, "turn.started")
    after = await session.info()
    await probe.end("enough")
    return [lane.fence for lane in before.lanes] == [lane.fence for lane in after.lanes]


async def the(app: Outlast, session: Session[Any], kind: type[Any]) -> list[Entry]:
    return [e for e in await read_log(app.store, session.id) if isinstance(e.record, kind)]


def due(entry: Entry) -> int:
    return known_as(r.TimerSet, entry.record).due_at


async def until_record(app: Outlast, session: Session[Any], kind: type[Any]) -> Entry:
    """Wait for a record though the session may rest before."""
    with Wakeups(app.store, session.id) as wakeups:
        while not (found := await the(app, session, kind)):
            wakeups.clear()
            await wakeups.wait()
    return found[0]


@pytest.mark.parametrize("how", ["doze", "meet"])
async def test_a_timer_fires_once_and_never_early(scene: Scene, how: str) -> None:
    due_at = scene.clock.now() + HOUR
    async with scene.open() as app:
        worker = await scene.worker(**SWIFT)
        session: Session[Any] = await app.start("patient", f"{how} {due_at}")
        await until_record(app, session, r.SessionWaiting)
        due_at = due((await the(app, session, r.TimerSet))[0])
        for instant in (due_at - MINUTE, due_at - DAY, due_at - 30 * MINUTE):
            await kill(worker)
            worker = await at_work_after(scene, instant)
            assert await leaves_alone(app, session)
        await kill(worker)
        worker = await at_work_after(scene, due_at)

        assert (await session.wait()).output == "It is done."

        await kill(worker)
        for instant in (due_at - MINUTE, due_at + DAY):
            worker = await at_work_after(scene, instant)
            assert await leaves_alone(app, session)
            await kill(worker)
        [fired] = await the(app, session, r.TimerFired)
        assert fired.at >= due_at
        assert len(await the(app, session, r.TimerSet)) == 1
        assert scene.book.effects() == ["woke"]
        assert await verify(app.store, session.id) == []


async def test_a_clock_that_jumps_past_a_timer_of_a_living_worker_fires_it_once(
    scene: Scene,
) -> None:
    async with scene.open() as app:
        worker = await scene.worker(**SWIFT)
        session: Session[Any] = await app.start("patient", "doze -")
        await until_record(app, session, r.SessionWaiting)
        [timer] = await the(app, session, r.TimerSet)
        scene.clock.jump_to(due(timer) - DAY)
        assert await leaves_alone(app, session)

        scene.clock.jump_to(due(timer) + DAY)

        await until_record(app, session, r.TurnCompleted)
        scene.clock.jump_to(due(timer) - MINUTE)
        assert await leaves_alone(app, session)
        assert len(await the(app, session, r.TimerFired)) == 1
        assert scene.book.effects() == ["woke"]
        assert await verify(app.store, session.id) == []
        await worker.stop()


@pytest.mark.parametrize("how", ["inquire", "pay"])
async def test_a_request_expires_at_its_time_however_often_workers_die(
    scene: Scene, how: str
) -> None:
    async with scene.open() as app:
        worker = await scene.worker(**SWIFT)
        session: Session[Any] = await app.start("patient", f"{how} -")
        await until_record(app, session, r.SessionWaiting)
        [request] = await session.requests()
        assert request.expires_at
        expires_at = milliseconds_at(request.expires_at)
        for instant in (expires_at - MINUTE, expires_at - DAY):
            await kill(worker)
            worker = await at_work_after(scene, instant)
            assert await leaves_alone(app, session)
            assert [q.expires_at for q in await session.requests()] == [request.expires_at]
        await kill(worker)

        # It is too late, though nobody has noticed yet.
        scene.clock.jump_to(expires_at)
        with pytest.raises(RequestClosed):
            await answer(session, request.request_id, how)
        worker = await scene.worker(**SWIFT)
        await until_record(app, session, r.TurnCompleted)

        scene.clock.jump_to(expires_at - MINUTE)
        with pytest.raises(RequestClosed):
            await answer(session, request.request_id, how)
        [expired] = await the(app, session, r.RequestExpired)
        assert expired.at >= expires_at
        assert await the(app, session, r.RequestResolved) == []
        assert await verify(app.store, session.id) == []
        await worker.stop()


async def answer(session: Session[Any], request_id: str, how: str) -> None:
    if how == "pay":
        await session.answer(request_id, "approve")
    else:
        await session.answer(request_id, text="well")


@pytest.mark.parametrize("of", ["session", "message"])
async def test_a_crash_does_not_renew_a_deadline(zygote: Zygote, tmp_path: Path, of: str) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        async with scene.open() as app:
            worker = await scene.worker(**SWIFT)
            begun, words = scene.clock.now(), f"repeatable {gate.path}"
            limit: dict[str, Any] = {"deadline": timedelta(hours=1)}
            session: Session[Any] = await app.start(
                "slow", "Hello!", **(limit if of == "session" else {})
            )
            await session.wait()
            await session.send(words, **(limit if of == "message" else {}))
            await until_event(session, "tool.progress")
            await kill(worker)
            scene.clock.jump_to(begun + 2 * HOUR)

            worker = await scene.worker(**SWIFT)

            failed = await until_record(app, session, r.TurnFailed)
            assert known_as(r.TurnFailed, failed.record).error.code == "DEADLINE_EXCEEDED"
            assert scene.book.effects() == ["began repeatable"]
            assert await verify(app.store, session.id) == []
            await worker.stop()


@pytest.mark.parametrize("starts", ["errand", "clean"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_instant_of_a_schedule_fires_once_though_its_worker_is_killed_and_clocks_jump(
    zygote: Zygote, tmp_path: Path, when: When, starts: str
) -> None:
    scene = Scene(tmp_path, zygote)
    noon = (scene.clock.now() // HOUR + 2) * HOUR
    hourly = {"schedules": ["0 * * * *"], "starts": starts}
    is_run = starts == "clean"
    async with scene.open() as app:
        worker = await at_work_after(scene, noon - MINUTE, **hourly)
        await worker.until_said("a schedule was armed")
        await kill(worker)
        worker = await at_work_after(
            scene, noon, **hourly, dies_at="document.put:schedule", when=when
        )
        assert await worker.until_exit() == -signal.SIGKILL
        [fired] = await app.store.listing.sessions()
        session: Session[Any] = await app.session(fired.session_id)

        for instant in (noon - 30 * MINUTE, noon + SECOND, noon - SECOND, noon + 30 * MINUTE):
            worker = await at_work_after(scene, instant, **hourly)
            await leaves_alone(app, session)  # by then it has looked at the time
            if instant > noon:
                assert (await session.wait()).output == ("cleaned" if is_run else SHORT_ANSWER)
            await kill(worker)
        worker = await at_work_after(scene, noon + HOUR, **hourly)
        await worker.until_said("a schedule fired")

        scheduled = [info for info in await app.store.listing.sessions() if info.agent == starts]
        assert len(scheduled) == 2
        assert len(await the(app, session, r.TurnCompleted)) == 1
        await worker.stop()
