"""What fails on the way is done once, however often it has to be tried."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from client_scene import LOST, BadWire, Far, Hasty, answer, far_away
from free_port import free_port
from webhook_receiver import Post, Receiver, Reply

from outlast import Key, Receipt, Token
from outlast.client import Client, RemoteSession
from outlast.client.retry import LONGEST_PAUSE
from outlast.errors import (
    OutlastError,
    QueueFull,
    ServerUnavailable,
    SessionOver,
    StoreUnavailable,
    UnknownRequest,
    UnknownSession,
)

NOT_NOW = '{"error": {"code": "STORE_UNAVAILABLE", "message": "try again", "details": {}}}'
BAD_ANSWERS = {
    "the connection's end": LOST,
    "half an answer": answer(202, '{"session_id": "ses_')[:-5],
    "429": answer(429, NOT_NOW, retry_after="0"),
    "502": answer(502, "<html>Bad Gateway</html>"),
    "503": answer(503, NOT_NOW, retry_after="0"),
    "504": answer(504),
}

Send = Callable[[Client, RemoteSession[Any], str], Awaitable[Any]]

SENDERS: dict[str, Send] = {
    "start": lambda client, session, request: client.start("teller", "hi"),
    "send": lambda client, session, request: session.send("hi"),
    "deliver": lambda client, session, request: client.send(Token("mine"), "hi"),
    "deliver and start": lambda client, session, request: client.send(
        Token("another", "teller"), "hi"
    ),
    "prompt": lambda client, session, request: client.send(Key("teller", "key"), "hi"),
    "answer": lambda client, session, request: session.answer(request, "approve"),
}


async def deliveries(far: Far) -> int:
    """Count all that ever arrived."""
    found = 0
    for info in await far.app.sessions():
        events = (await far.app.session(info.session_id)).events(follow=False)
        found += len([event async for event in events if event.type == "delivery.queued"])
    return found


def bodies(wire: BadWire) -> list[dict[str, Any]]:
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in wire.requests]


async def test_what_is_sent_arrives_once_whatever_the_wire_says() -> None:
    async with far_away() as far:
        for (name, send), (what, bad) in product(SENDERS.items(), BAD_ANSWERS.items()):
            session: RemoteSession[Any] = await far.client.start(
                "teller", "refund", continuation_token="mine"
            )
            [request] = (await session.wait()).requests
            before = await deliveries(far)
            far.wire.instead, far.wire.requests = [bad, bad], []

            got = await send(far.client, session, request.request_id)

            receipt = got if isinstance(got, Receipt) else got.receipt
            assert await deliveries(far) == before + 1, (name, what)
            sent = bodies(far.wire)
            assert len(sent) == 3
            assert sent[0] == sent[1] == sent[2]
            assert sent[0]["dispatch_id"].startswith("dsp_")
            assert not receipt.duplicate, "nobody else had sent it"
            for session_id in {session.id, receipt.session_id}:
                await far.client.erase(session_id)


async def test_what_never_reached_the_server_is_sent_again_under_the_same_dispatch() -> None:
    async with far_away() as far:
        far.wire.passes_on = False
        far.wire.instead = [LOST, answer(503, NOT_NOW)]

        session: RemoteSession[Any] = await far.client.start("teller", "hi", dispatch_id="mine")

        assert [body["dispatch_id"] for body in bodies(far.wire)] == ["mine"] * 3
        assert session.receipt is not None
        assert not session.receipt.duplicate
        assert await deliveries(far) == 1


async def test_what_is_not_safe_to_do_twice_is_not_repeated_when_it_may_have_been_done() -> None:
    async with far_away() as far:
        session: RemoteSession[Any] = await far.client.start("teller", "fail")
        await session.wait()
        for act in (session.cancel, session.retry):
            for bad in (LOST, BAD_ANSWERS["503"], BAD_ANSWERS["504"]):
                far.wire.instead, far.wire.requests = [bad], []

                with pytest.raises(OutlastError, match="may have been done"):
                    await act()

                assert len(far.wire.requests) == 1
                await session.wait()


async def test_what_did_nothing_for_certain_is_repeated_though_it_is_not_safe() -> None:
    async with far_away() as far:
        session: RemoteSession[Any] = await far.client.start("teller", "fail")
        await session.wait()
        far.wire.passes_on, far.wire.requests = False, []
        far.wire.instead = [BAD_ANSWERS["429"]]
        await session.cancel()
        far.wire.instead = [BAD_ANSWERS["429"]]
        await session.retry()
        assert len(far.wire.requests) == 4


async def test_the_cancel_of_one_turn_is_repeated() -> None:
    async with far_away() as far:
        session: RemoteSession[Any] = await far.client.start("teller", "hang")
        async for event in session.events():
            if event.type == "tool.started":
                far.wire.instead = [LOST, BAD_ANSWERS["503"]]
                await session.cancel("enough", turn=event.turn)

        assert (await session.wait()).status == "cancelled"


@asynccontextmanager
async def answered(*replies: Reply, **options: Any) -> AsyncIterator[tuple[Client, list[Post]]]:
    """Open a client to somebody who gives these answers, one after the other."""
    left = list(replies)
    async with (
        Receiver(lambda post: left.pop(0)) as server,
        Client(f"http://127.0.0.1:{server.port}", **{"clock": Hasty(), **options}) as client,
    ):
        yield client, server.posts


def refusal(status: int, code: str, *headers: tuple[str, str]) -> Reply:
    error = {"code": code, "message": "no", "hint": "", "details": {}}
    return Reply(status, headers, json.dumps({"error": error}).encode())


RECEIPT = {"session_id": "ses_1", "delivery_id": "dlv_1", "lane": "main", "offset": 3}
ACCEPTED = Reply(202, (), json.dumps(RECEIPT).encode())
BUSY = refusal(503, "STORE_UNAVAILABLE")


async def test_an_end_that_an_earlier_try_had_done_is_no_error() -> None:
    over = refusal(409, "SESSION_OVER")
    async with answered(BUSY, over, over) as (client, _):
        await client.session("ses_1").end()
        with pytest.raises(SessionOver):
            await client.session("ses_1").end()


async def test_an_erasure_that_an_earlier_try_had_done_is_no_error() -> None:
    gone, limited = refusal(404, "UNKNOWN_SESSION"), refusal(429, "RATE_LIMITED")
    async with answered(BUSY, gone, limited, gone) as (client, _):
        await client.erase("ses_1")
        with pytest.raises(UnknownSession):  # the first try was refused: nobody erased it
            await client.erase("ses_1")


async def test_an_answer_is_tried_ten_times_more_while_its_session_is_not_found() -> None:
    unknown = refusal(404, "UNKNOWN_SESSION")
    async with answered(*[unknown] * 10, ACCEPTED, *[unknown] * 11) as (client, posts):
        receipt = await client.session("ses_1").answer("req_1", "approve")

        assert receipt.delivery_id == "dlv_1"
        assert len({post.json["dispatch_id"] for post in posts}) == 1
        with pytest.raises(UnknownSession):
            await client.session("ses_1").answer("req_1", "approve")
        assert len(posts) == 22


async def test_what_will_not_change_is_not_tried_again() -> None:
    refusals = [
        (refusal(404, "UNKNOWN_REQUEST"), UnknownRequest),
        (refusal(500, "STORE_ERROR"), OutlastError),
        (Reply(500, (), b"<html>oh no</html>"), ServerUnavailable),
        (Reply(404, (), b"<html>not found</html>"), ServerUnavailable),
        (Reply(200, (), b"<html>welcome</html>"), ServerUnavailable),
    ]
    for reply, kind in refusals:
        async with answered(reply) as (client, posts):
            with pytest.raises(kind):
                await client.session("ses_1").answer("req_1", "approve")
            assert len(posts) == 1


class Dated(Hasty):
    """Stands 60 ms before a certain second."""

    def now(self) -> int:
        return 1_445_412_480_000 - 60


async def test_the_server_says_how_long_to_wait_before_the_next_try() -> None:
    clock = Dated()
    until = ("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")
    async with answered(refusal(429, "QUEUE_FULL", until), ACCEPTED, clock=clock) as (client, _):
        began = clock.monotonic()
        await client.session("ses_1").send("hi")
        assert 0.06 <= clock.monotonic() - began < 30.0

    seconds = ("Retry-After", "1")
    async with answered(refusal(503, "STORE_FULL", seconds), ACCEPTED) as (client, _):
        began = clock.monotonic()
        await client.session("ses_1").send("hi")
        assert 1.0 <= clock.monotonic() - began < 30.0


async def test_nobody_waits_longer_than_patience_allows() -> None:
    later = ("Retry-After", "61")
    async with answered(refusal(429, "QUEUE_FULL", later)) as (client, posts):
        with pytest.raises(QueueFull):
            await client.session("ses_1").send("hi")
        assert len(posts) == 1

    async with answered(BUSY, retry_timeout=0.0, clock=None) as (client, posts):
        with pytest.raises(StoreUnavailable):
            await client.session("ses_1").send("hi")
        assert len(posts) == 1


async def test_a_server_that_is_not_there_is_said_to_be_unavailable() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with Client(url, "a-secret-token", clock=Hasty(), retry_timeout=0.02) as client:
        with pytest.raises(ServerUnavailable, match=f"{url} cannot be reached: no connection"):
            await client.sessions()


class Patient(Hasty):
    """Knows how long it was asked to wait, and does not."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def jitter(self, most: float) -> float:
        self.asked.append(most)
        return 0.0


async def test_the_pauses_between_tries_grow_up_to_a_limit_and_are_spread() -> None:
    clock = Patient()
    async with answered(*[BUSY] * 8, ACCEPTED, clock=clock) as (client, _):
        await client.session("ses_1").send("hi")
    assert clock.asked == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, LONGEST_PAUSE]
