"""A reader goes on when the server comes and goes, within its timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from client_scene import STORY, Hasty, far_away, poet
from client_wire import (
    END,
    EVENTS,
    HEAD,
    WHOLE,
    Ticking,
    a_client,
    an_event,
    chunk,
    shown,
    start_of,
)
from free_port import free_port
from http_scene import FAST, on_a_socket, teller
from stream_scene import talker
from stream_troupe import troupe
from webhook_receiver import Post, Reply

from outlast import Event, Outlast
from outlast.client import Client, RemoteSession
from outlast.core.event import encode
from outlast.errors import ServerUnavailable, UnknownSession
from outlast.server import ServerSettings


async def test_a_reader_goes_on_when_the_server_is_started_again(tmp_path: Path) -> None:
    store, settings = f"sqlite:///{tmp_path / 'restart.db'}", ServerSettings(port=free_port())
    async with Outlast([teller, poet], store=store, worker=FAST) as app:
        async with on_a_socket(app, settings) as (host, port):
            client = Client(f"http://{host}:{port}", clock=Hasty(), stream_timeout=None)
            await client.open()
            session = await client.start(poet, "A story, please")
            events = session.events()
            seen = [await anext(events)]
        rest = asyncio.create_task(read_on(events))
        waiting = asyncio.create_task(session.wait())
        async with on_a_socket(app, settings):
            seen += await rest
            assert (await waiting).output == STORY
            assert seen == [event async for event in (await app.session(session.id)).events()]
            await client.close()


async def read_on(events: Any) -> list[Event]:
    return [event async for event in events]


async def test_a_reader_goes_on_when_the_server_is_killed(tmp_path: Path) -> None:
    store, port = f"sqlite:///{tmp_path / 'kill.db'}", free_port()
    async with (
        Outlast([talker], store=store, worker=FAST) as app,
        troupe(["serve", "serve"], store, port) as (first, second),
        Client(f"http://127.0.0.1:{port}", stream_timeout=None) as client,
    ):
        await first.enter()
        session = await client.start(talker, "talk")
        seen: list[Event] = []
        async for event in session.events():
            seen.append(event)
            if len(seen) == 6:
                await first.kill()
                await second.enter()

        assert (await session.wait()).status == "completed"
        assert seen == [event async for event in (await app.session(session.id)).events()]


async def hang_and(session: RemoteSession[Any], act: Callable[[], Awaitable[None]]) -> None:
    """Read on until a tool hangs, do something to the wire, and read on."""
    async for event in session.events():
        if event.type == "tool.started":
            await act()


async def test_a_reader_loses_patience_with_a_server_that_is_gone() -> None:
    async with far_away(stream_timeout=0.05) as far:
        session: RemoteSession[Any] = await far.client.start("teller", "hang")

        async def close_the_way() -> None:
            far.wire.lets_nobody_through = True
            far.wire.cut()

        with pytest.raises(ServerUnavailable):
            await hang_and(session, close_the_way)
        with pytest.raises(ServerUnavailable):
            await session.wait()


@pytest.mark.parametrize("end", [b"", END])
async def test_a_server_that_only_hangs_up_is_not_asked_for_ever(end: bytes) -> None:
    def hang_up(post: Post) -> Reply:
        return Reply(raw=HEAD + end) if "/stream?" in post.path else shown(9, "running")

    async with a_client(hang_up, stream_timeout=0.05) as session:
        with pytest.raises(ServerUnavailable):
            await anext(session.events())


async def test_a_server_that_does_not_answer_in_time_is_not_asked_for_ever() -> None:
    clock = Ticking()

    def be_slow(post: Post) -> Reply:
        clock.passed += 40
        return Reply(raw=b"HTTP")

    async with a_client(be_slow, clock=clock, stream_timeout=60.0) as session:
        with pytest.raises(ServerUnavailable):
            await anext(session.events())
    assert clock.passed == 80


@pytest.mark.parametrize("follow", [False, True])
async def test_a_reader_who_gets_on_does_not_lose_patience(follow: bool) -> None:
    clock = Ticking()
    seen: list[int] = []

    def give_one(post: Post) -> Reply:
        if "/stream?" not in post.path:
            return shown(20, "idle" if seen[-1] == 20 else "running")
        clock.passed += 4
        offset = start_of(post) + 1
        line = chunk(encode(an_event(offset)) + b"\n")
        return Reply(raw=HEAD + line + (END if follow or offset == 20 else b""))

    async with a_client(give_one, clock=clock, stream_timeout=60.0) as session:
        async for event in session.events(follow=follow):
            seen.append(event.offset)
    assert seen == list(range(1, 21))


async def test_a_stream_that_had_lasted_was_no_failure_though_it_had_nothing_to_say() -> None:
    replies = [HEAD] * 30 + [WHOLE]
    clock = Ticking(step=6.0)
    async with a_client(lambda post: Reply(raw=replies.pop(0)), clock=clock) as session:
        assert [event async for event in session.events(follow=False)] == EVENTS


async def test_the_time_that_the_server_waited_for_a_result_is_not_held_against_it() -> None:
    clock = Ticking()
    result = Reply(200, (), b'{"status": "completed", "output": "done"}')
    replies = [Reply(raw=b"HTTP"), Reply(202, (), b'{"status": "running"}'), result]

    def wait_first(post: Post) -> Reply:
        clock.passed += 20
        return replies.pop(0)

    async with a_client(wait_first, clock=clock, stream_timeout=5.0) as session:
        assert (await session.wait()).output == "done"


async def test_a_session_that_is_erased_meanwhile_is_unknown() -> None:
    async with far_away() as far:
        session: RemoteSession[Any] = await far.client.start("teller", "hang")

        async def erase() -> None:
            far.wire.cut()
            await far.app.erase(session.id)

        with pytest.raises(UnknownSession):
            await hang_and(session, erase)


async def test_a_stream_is_refused_with_the_error_that_it_is() -> None:
    async with far_away() as far:
        with pytest.raises(UnknownSession):
            await anext(far.client.session("ses_none").events())
    html = Reply(200, (("content-type", "text/html"),), b"<html>welcome</html>")
    async with a_client(lambda post: html) as session:
        with pytest.raises(ServerUnavailable, match="not as an Outlast server"):
            await anext(session.events())
    nonsense = HEAD + chunk(b'{"hello": "world"}\n') + END
    async with a_client(lambda post: Reply(raw=nonsense)) as session:
        with pytest.raises(ServerUnavailable, match="cannot be read"):
            await anext(session.events())
