from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from outlast.server import ServerSettings
from outlast.server.http_connection import MOST_CLOSED, ConnectionLimiter, HttpConnection
from outlast.server.principal import PRINCIPAL, Principal
from outlast.server.response_limit import SLICE, SMALL, ReaderStalled, SlicedSend, UnsentBytes

ADA = {"state": {PRINCIPAL: Principal("acme", "ada")}}
BOB = {"state": {PRINCIPAL: Principal("acme", "bob")}}
FOR_EVER = 3600.0


class Connection:
    """Takes as many slices as it is told to, then none until told again."""

    def __init__(self, takes: int) -> None:
        self.taken: list[dict[str, Any]] = []
        self._left = asyncio.Semaphore(takes)

    async def send(self, message: Any) -> None:
        await self._left.acquire()
        self.taken.append(message)

    def take(self, count: int) -> None:
        for _ in range(count):
            self._left.release()


def answer(size: int) -> dict[str, Any]:
    return {"type": "http.response.body", "body": bytes(size), "more_body": False}


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_an_answer_is_sent_in_slices_and_the_last_one_ends_it() -> None:
    connection = Connection(99)
    send = SlicedSend(ADA, connection.send, UnsentBytes(1, Time()), FOR_EVER)

    await send(answer(3 * SLICE + 1))
    await send({**answer(5), "more_body": True})

    assert [len(each["body"]) for each in connection.taken] == [SLICE, SLICE, SLICE, 1, 5]
    assert [each["more_body"] for each in connection.taken] == [True, True, True, False, True]


@pytest.mark.parametrize("size", [SLICE, SMALL])
async def test_answers_take_turns_also_while_the_system_takes_all_at_once(size: int) -> None:
    order: list[str] = []

    async def send_all(name: str) -> None:
        async def take(message: Any) -> None:
            order.append(name)

        send = SlicedSend(ADA, take, UnsentBytes(99 * SLICE, Time()), FOR_EVER)
        for _ in range(3 * SLICE // size):
            await send(answer(size))
        await send(answer(3 * SLICE))

    await asyncio.gather(send_all("ada's"), send_all("bob's"))

    assert order[::2] == ["ada's"] * (len(order) // 2)
    assert order[1::2] == ["bob's"] * (len(order) // 2)


async def test_over_the_bound_the_answer_that_stands_still_longest_is_ended() -> None:
    time = Time()
    unsent = UnsentBytes(6 * SLICE, time)
    still, reads, late, other = (Connection(1) for _ in range(4))

    async def begin(scope: Any, connection: Connection) -> asyncio.Task[None]:
        send = SlicedSend(scope, connection.send, unsent, FOR_EVER)
        task = asyncio.create_task(send(answer(3 * SLICE)))
        while not connection.taken:  # noqa: ASYNC110 - the loop has to turn, no more
            await asyncio.sleep(0)
        time.now += 1
        return task

    first = await begin(ADA, still)
    second = await begin(ADA, reads)
    reads.take(1)
    elsewhere = await begin(BOB, other)
    third = await begin(ADA, late)

    with pytest.raises(ReaderStalled):
        await first
    for connection in (reads, late, other):
        connection.take(9)
    await asyncio.gather(second, third, elsewhere)
    assert [len(each.taken) for each in (still, reads, late, other)] == [1, 3, 3, 3]


async def test_an_answer_is_ended_also_between_two_slices() -> None:
    unsent = UnsentBytes(4 * SLICE, Time())
    connections = [Connection(99), Connection(99)]
    sends = [SlicedSend(ADA, each.send, unsent, FOR_EVER) for each in connections]

    sending = (send(answer(3 * SLICE)) for send in sends)
    first, second = await asyncio.gather(*sending, return_exceptions=True)

    assert isinstance(first, ReaderStalled)
    assert second is None
    assert [len(each.taken) for each in connections] == [1, 3]


async def test_what_nobody_takes_is_given_up_however_small_it_is() -> None:
    for size in (1, 2 * SLICE):
        with pytest.raises(ReaderStalled):
            await SlicedSend({}, Connection(0).send, UnsentBytes(1, Time()), 0.01)(answer(size))


class Buffer:
    """The transport of a connection whose other side takes what it is told to."""

    is_idle = True

    def __init__(self) -> None:
        self.transport, self.size, self.is_ended = self, 100, False

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.is_ended = True

    close = abort


def test_a_connection_that_takes_nothing_of_a_whole_answer_is_ended() -> None:
    time = Time()
    settings = ServerSettings(port=0, reader_timeout=30, header_timeout=10)
    limiter = ConnectionLimiter(settings, 8, time)
    stuck, reads, done = Buffer(), Buffer(), Buffer()
    done.size = 0
    for each in (stuck, reads, done):
        limiter.add(cast("HttpConnection", each))
    for time.now in (0.0, 9.0, 29.0):
        limiter.end_stuck()
        limiter.end_idle()
        reads.size -= 1
    assert [each.is_ended for each in (stuck, reads, done)] == [False, False, True]
    time.now = 30.0
    limiter.end_stuck()
    assert [each.is_ended for each in (stuck, reads)] == [True, False]


def test_a_crowd_of_idle_connections_is_ended_little_by_little_and_the_oldest_first() -> None:
    time = Time()
    limiter = ConnectionLimiter(ServerSettings(port=0, header_timeout=10), 1000, time)
    crowd = [Buffer() for _ in range(120)]
    for each in crowd:
        each.size = 0
        limiter.add(cast("HttpConnection", each))
    time.now = 10.0

    ended = []
    for _ in range(3):
        limiter.end_idle()
        ended.append([each.is_ended for each in crowd].index(False) if len(limiter) else 120)

    assert ended == [MOST_CLOSED, 2 * MOST_CLOSED, 120]
    assert len(limiter) == 0
