"""A worker is killed after somebody was told of an event, and before it could note that."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

from terminal import EXECUTABLE, environment
from webhook_receiver import Post, Receiver, Reply
from webhook_setup import QUICK, SECRET, poet

from outlast import Event, Outlast, Webhook
from outlast.clock import Clock
from outlast.integration.outbox import WebhookSettings, verify

MODULE = """
from webhook_setup import QUICK, SECRET, poet
from outlast import Outlast
from outlast.integration.outbox import WebhookSettings

settings = WebhookSettings(secret=SECRET, allow_private=True, poll=0.05)
app = Outlast([poet()], worker=QUICK, webhooks=settings)
"""


class Later(Clock):
    """The time at which the dead worker's hold is over."""

    def now(self) -> int:
        return super().now() + 600_000


def new_app(path: Path, clock: Clock | None = None) -> Outlast:
    return Outlast(
        [poet()],
        store=f"sqlite:///{path / 'outlast.db'}",
        worker=QUICK if clock else None,
        clock=clock,
        webhooks=WebhookSettings(secret=SECRET, allow_private=True, poll=0.05),
    )


def start_worker(path: Path, module: str = MODULE, **more: str) -> subprocess.Popen[bytes]:
    (path / "setup.py").write_text(module)
    shared = {"PYTHONPATH": str(Path(__file__).parent), **more}
    command = [EXECUTABLE, "worker", "setup:app"]
    return subprocess.Popen(
        command, cwd=path, env=environment(None) | shared, stdout=subprocess.DEVNULL
    )


async def test_an_event_that_was_taken_when_its_worker_died_comes_again_and_none_is_lost(
    tmp_path: Path,
) -> None:
    workers: list[subprocess.Popen[bytes]] = []

    def kill_at_the_second(post: Post) -> Reply:
        if len(hook.posts) == 2:
            os.kill(workers[0].pid, signal.SIGKILL)
        return Reply()

    async with Receiver(kill_at_the_second) as hook:
        async with new_app(tmp_path) as app:
            session = await app.start("poet", "one", webhook=Webhook(hook.url))
            for message in ("two", "three", "four"):
                await session.send(message)
        workers.append(start_worker(tmp_path))
        await hook.until(2)
        assert workers[0].wait(30) == -signal.SIGKILL
        assert len(hook.posts) == 2

        async with new_app(tmp_path, Later()):
            await hook.until(4)

    seen = [post.id for post in hook.posts]
    assert seen[1] in seen[2:]
    offsets = [int(each.rpartition("-")[2]) for each in hook.ids]
    assert offsets == sorted(offsets)
    said = {post.id: post.json["output"] for post in hook.posts}
    assert list(said.values()) == ["verse 1", "verse 3", "verse 5", "verse 7"]
    for post in hook.posts[:2]:
        verify(SECRET, post.headers, post.body)


WATCHED = (
    MODULE
    + """
import os
import signal
from pathlib import Path

TOLD = Path("told")


@app.hook("turn.completed")
def watch(event):
    with TOLD.open("a") as told:
        told.write(f"{event.session_id} {event.offset}\\n")
    if os.environ.get("DIES") and len(TOLD.read_text().splitlines()) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
"""
)


def told_in(path: Path) -> list[tuple[str, int]]:
    lines = (path / "told").read_text().splitlines()
    return [(line.split()[0], int(line.split()[1])) for line in lines]


async def test_an_observer_whose_worker_died_before_its_note_is_told_again_and_of_all(
    tmp_path: Path,
) -> None:
    done = asyncio.Event()

    async def watch(event: Event) -> None:
        with (tmp_path / "told").open("a") as told:
            told.write(f"{event.session_id} {event.offset}\n")
        if len(set(told_in(tmp_path))) == 4:
            done.set()

    starter = new_app(tmp_path)
    starter.hook("turn.completed")(watch)
    async with starter as app:
        session = await app.start("poet", "one")
        for message in ("two", "three", "four"):
            await session.send(message)
        worker = start_worker(tmp_path, WATCHED, DIES="1")
        assert await asyncio.to_thread(worker.wait, 30) == -signal.SIGKILL
        assert len(told_in(tmp_path)) == 2

    later = new_app(tmp_path, Later())
    later.hook("turn.completed")(watch)
    async with later as app:
        await done.wait()
        session = await app.session(session.id)
        ended = [e.offset async for e in session.events() if e.type == "turn.completed"]

    told = told_in(tmp_path)
    assert told[1] in told[2:]
    assert list(dict.fromkeys(told)) == [(session.id, offset) for offset in ended]
