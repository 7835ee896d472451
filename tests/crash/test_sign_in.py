"""Somebody comes back from signing in before, while and after processes are killed, and twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_fact import complaints
from crash_process import Process, Zygote
from crash_run import Scene, play, play_all, read_log, until_event
from crash_signer import SIGNED
from oauth_provider import Remote, brought, provider_process

from outlast import Outlast, Receipt, Session
from outlast.core import record as r
from outlast.log.verify import verify
from outlast.testing.crash import CrashPoint, When

HELD = 60_000
"""Milliseconds after which what a dead process held is free again."""


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with provider_process() as found:
        yield found


def hub(remote: Remote) -> dict[str, Any]:
    return {name: value for name, value in remote.settings().items() if name != "tls"}


async def visit(remote: Remote, session: Session[Any]) -> dict[str, str]:
    """Say yes at the service; return what is brought back from there."""
    async for event in session.events():
        if event.type == "authorization.required":
            return brought(await remote.visit(event.data["url"]))
    raise AssertionError("nobody was asked to sign in")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_any_commit_costs_no_second_sign_in(
    remote: Remote, zygote: Zygote, tmp_path: Path, when: When
) -> None:
    async def sign_in_twice(app: Outlast, session: Session[Any]) -> list[Receipt[Any]]:
        back = await visit(remote, session)
        endings = [await app.connections.complete("hub", **back) for _ in range(2)]
        assert endings == ["completed", "used"]
        return []

    scene = Scene(tmp_path, zygote, hub(remote))
    undisturbed = await play(scene, "signer", sign_in_twice)
    assert complaints([undisturbed], [[]], undisturbed) == ""
    assert undisturbed.outputs == (SIGNED,)

    plans = [[CrashPoint(n, when)] for n in range(1, undisturbed.commits + 2)]
    stories = await play_all(scene, "signer", sign_in_twice, plans)

    assert complaints(stories, plans, undisturbed) == ""
    assert sum(story.kills for story in stories) >= undisturbed.commits - 1


# Whoever takes them in is killed


class Reception:
    """A session that waits for a sign-in, and the processes that take somebody in."""

    def __init__(self, scene: Scene, remote: Remote, app: Outlast, session: Session[Any]) -> None:
        self.scene = scene
        self.remote = remote
        self.app = app
        self.session = session

    async def take_in(self, back: dict[str, str], **order: Any) -> Process:
        return await self.scene.run("take_in", back=back, **order)

    async def ending(self, back: dict[str, str]) -> str:
        process = await self.take_in(back)
        assert await process.until_exit() == 0, process.said
        return process.said[-1]

    async def check_the_end(self) -> None:
        """See that the sign-in was completed once, and that what it gave is good."""
        worker = await self.scene.worker()
        await until_event(self.session, "turn.completed")
        await worker.stop()
        records = [entry.record for entry in await read_log(self.app.store, self.session.id)]
        for kind in (r.AuthorizationRequired, r.AuthorizationCompleted, r.ToolCompleted):
            assert sum(isinstance(record, kind) for record in records) == 1
        drafted, used = self.scene.book.effects()
        assert drafted == "drafted"
        assert await self.remote.user(used.removeprefix("used under ")) == 200
        assert await verify(self.app.store, self.session.id) == []


async def wait_for_somebody(scene: Scene, app: Outlast) -> Session[Any]:
    """Have a session wait for a sign-in, and its worker killed in the meantime."""
    worker = await scene.worker()
    session: Session[Any] = await app.start("signer", "Go!", principal="ada")
    await until_event(session, "session.waiting")
    worker.signal(signal.SIGKILL)
    await worker.until_exit()
    return session


@pytest.mark.parametrize(
    ("dies_at", "when", "ending", "exchanges"),
    [
        ("document.put:hold", "after", "completed", 1),
        ("document.put:grant", "before", "again", 2),  # what the code was good for is lost
        ("document.put:grant", "after", "completed", 1),
        ("log.admit", "before", "completed", 1),
        ("log.admit", "after", "used", 1),
        ("document.delete:pending sign-in", "before", "used", 1),
        ("document.delete:pending sign-in", "after", "used", 1),
        ("document.delete:hold", "before", "used", 1),
    ],
)
async def test_who_was_being_taken_in_when_the_process_died_comes_again(
    remote: Remote,
    zygote: Zygote,
    tmp_path: Path,
    dies_at: str,
    when: When,
    ending: str,
    exchanges: int,
) -> None:
    scene = Scene(tmp_path, zygote, hub(remote))
    async with scene.open() as app:
        session = await wait_for_somebody(scene, app)
        desk = Reception(scene, remote, app, session)
        back, before = await visit(remote, session), await remote.calls("token")
        dead = await desk.take_in(back, dies_at=dies_at, when=when)
        assert await dead.until_exit() == -signal.SIGKILL
        scene.clock.jump_to(scene.clock.now() + HELD)

        assert await desk.ending(back) == ending
        assert await remote.calls("token") == before + exchanges
        if ending == "again":
            assert await desk.ending(back) == "again"
            assert await desk.ending(await visit(remote, session)) == "completed"

        assert await desk.ending(back) == "used"
        await desk.check_the_end()


async def test_a_process_that_dies_with_a_token_in_the_air_costs_one_more_visit(
    remote: Remote, zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote, hub(remote))
    async with scene.open() as app:
        session = await wait_for_somebody(scene, app)
        desk = Reception(scene, remote, app, session)
        back = await visit(remote, session)
        await remote.say(holds=True)
        first = await desk.take_in(back)
        await remote.until_held()
        second = await desk.take_in(back)  # the same again, while the first is under way
        await second.until_said("here")
        first.signal(signal.SIGKILL)
        assert await first.until_exit() == -signal.SIGKILL
        await remote.say(holds=False)
        scene.clock.jump_to(scene.clock.now() + HELD)

        assert await second.until_exit() == 0
        assert second.said[-1] == "again"
        assert await desk.ending(await visit(remote, session)) == "completed"
        await desk.check_the_end()


async def test_who_comes_back_twice_at_once_is_taken_in_once_though_the_worker_dies(
    remote: Remote, zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote, hub(remote))
    async with scene.open() as app:
        session = await wait_for_somebody(scene, app)
        desk = Reception(scene, remote, app, session)
        back, before = await visit(remote, session), await remote.calls("token")
        await remote.say(holds=True)
        both = [await desk.take_in(back) for _ in range(2)]
        await remote.until_held()
        await remote.say(holds=False)

        assert [await process.until_exit() for process in both] == [0, 0]
        assert sorted(process.said[-1] for process in both) == ["completed", "used"]
        assert await remote.calls("token") == before + 1
        await desk.check_the_end()
