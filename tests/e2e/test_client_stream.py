"""A reader over a bad wire sees what one without a wire sees: no gap, nothing twice."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from client_scene import STORY, Hasty, far_away, poet
from client_wire import (
    END,
    EVENTS,
    FIRST,
    HEAD,
    SECOND,
    WHOLE,
    a_client,
    chunk,
    shown,
    start_of,
    stream,
)
from webhook_receiver import Answers, Post, Receiver, Reply

from outlast.client import Client
from outlast.core.event import encode


async def test_a_stream_cut_at_any_byte_goes_on_without_a_gap_or_a_repeat() -> None:
    cuts: list[int] = []
    visits: list[Post] = []

    def cut(post: Post) -> Reply:
        visits.append(post)
        whole = stream(post)
        return Reply(raw=whole[: cuts.pop(0)] if cuts else whole)

    async with a_client(cut) as session:
        assert [event async for event in session.events(follow=False)] == EVENTS
        length = len(stream(visits[0]))
        for position in range(1, length):
            cuts, visits = [position], []
            assert [event async for event in session.events(follow=False)] == EVENTS, position
            assert len(visits) == 2, position
        assert length > 300


async def test_a_stream_that_ends_within_a_line_was_cut_whatever_the_connection_says() -> None:
    visits: list[Post] = []

    def end_early(post: Post) -> Reply:
        visits.append(post)
        line = encode(EVENTS[0]) + b"\n"
        whole = HEAD + chunk(line) + chunk(encode(EVENTS[1])[:20]) + chunk(b"")
        return Reply(raw=whole if len(visits) == 1 else stream(post))

    async with a_client(end_early) as session:
        assert [event async for event in session.events(follow=False)] == EVENTS
    assert [start_of(visit) for visit in visits] == [0, EVENTS[0].offset]


async def test_what_a_server_gives_again_is_not_given_again() -> None:
    whole = HEAD + chunk(b"".join(encode(event) + b"\n" for event in EVENTS)) + chunk(b"")
    async with a_client(lambda post: Reply(raw=whole)) as session:
        events = session.events(after=2, follow=False)
        assert [event async for event in events] == EVENTS[1:]


@pytest.mark.parametrize(
    "replies",
    [
        # After a part of it was given, before anything was, and twice in a row.
        [HEAD + FIRST + END, shown(9, "running"), HEAD + SECOND + END, shown(5)],
        [HEAD + END, shown(2, "running"), WHOLE, shown(5)],
        [
            HEAD + END,
            shown(0, "queued"),
            HEAD + END,
            shown(5),
            WHOLE,
            shown(5),
        ],
        # The session came to rest between the cut and the question.
        [HEAD + FIRST + END, shown(5), HEAD + SECOND + END, shown(5)],
        # The log's last records are hidden from this reader.
        [WHOLE, shown(7), HEAD + END],
    ],
)
async def test_an_end_of_a_stream_that_a_proxy_made_up_is_not_believed(
    replies: list[bytes | Reply],
) -> None:
    left = list(replies)

    def answers(post: Post) -> Reply:
        reply = left.pop(0)
        assert isinstance(reply, bytes) == ("/stream?" in post.path)
        return Reply(raw=reply) if isinstance(reply, bytes) else reply

    async with a_client(answers) as session:
        assert [event async for event in session.events()] == EVENTS
    assert left == []


async def test_what_is_answered_while_reading_is_read_on() -> None:
    async with far_away() as far:
        session = await far.client.start("teller", "refund")
        types: list[str] = []
        async for event in session.events():
            types.append(event.type)
            if event.type == "session.waiting" and "request.resolved" not in types:
                for request in await session.requests():
                    await session.answer(request.request_id, "approve")

        assert "turn.completed" in types


async def test_a_live_stream_is_read_whole_over_connections_that_do_not_last() -> None:
    async with far_away() as far:
        session = await far.client.start(poet, "A story, please")
        far.wire.cut_after = [250, 700, 1, 900, 251, 600, 1200, 40, 800, 1300] * 3
        far.wire.cut()

        seen = [event async for event in session.events()]

        assert seen == [event async for event in (await far.app.session(session.id)).events()]
        assert "".join(e.data["text"] for e in seen if e.type == "message.delta") == STORY
        assert len(far.wire.cut_after) < 25


class Mute(Receiver):
    """Says something, and then nothing more, without hanging up. Knows when it was left."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.left = asyncio.Event()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        await super()._serve_one(reader, writer, number)
        await reader.read()
        self.left.set()
        return False


async def test_whoever_stops_reading_hangs_up() -> None:
    async with (
        Mute(lambda post: Reply(raw=HEAD + FIRST)) as server,
        Client(f"http://127.0.0.1:{server.port}", clock=Hasty()) as client,
    ):
        async with aclosing(client.session("ses_1").events()) as events:
            assert await anext(events) == EVENTS[0]
        async with asyncio.timeout(60):
            await server.left.wait()


async def test_a_stream_without_a_sign_of_life_is_taken_for_lost() -> None:
    replies = [HEAD + FIRST, HEAD + SECOND + END]
    async with Mute(lambda post: Reply(raw=replies.pop(0))) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with Client(url, clock=Hasty(), silence=0.05) as client:
            events = client.session("ses_1").events(follow=False)
            assert [event async for event in events] == EVENTS
