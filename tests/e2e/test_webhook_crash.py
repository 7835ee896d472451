"""A worker is killed after its receiver took an event, and before it could note that."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from mail import QUICK, SECRET, poet
from terminal import EXECUTABLE, environment
from webhook_receiver import Post, Receiver, Reply

from holdfast import Holdfast
from holdfast.clock import Clock
from holdfast.webhook import WebhookSettings, verify

MODULE = """
from mail import QUICK, SECRET, poet
from holdfast import Holdfast
from holdfast.webhook import WebhookSettings

settings = WebhookSettings(secret=SECRET, allow_private=True, poll=0.05)
app = Holdfast([poet()], worker=QUICK, webhooks=settings)
"""


class Later(Clock):
    """The time at which the dead worker's hold is over."""

    def now(self) -> int:
        return super().now() + 600_000


def new_app(path: Path, clock: Clock | None = None) -> Holdfast:
    return Holdfast(
        [poet()],
        store=f"sqlite:///{path / 'holdfast.db'}",
        worker=QUICK if clock else None,
        clock=clock,
        webhooks=WebhookSettings(secret=SECRET, allow_private=True, poll=0.05),
    )


def start_worker(path: Path) -> subprocess.Popen[bytes]:
    (path / "office.py").write_text(MODULE)
    shared = {"PYTHONPATH": str(Path(__file__).parent)}
    command = [EXECUTABLE, "worker", "office:app"]
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
            session = await app.start("poet", "one", callback_url=hook.url)
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
