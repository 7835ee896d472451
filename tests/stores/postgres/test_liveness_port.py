"""The port at which a worker answers observers, and what strangers can do to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from outlast import WorkerSettings
from outlast.errors import InvalidDefinition
from outlast.stores.postgres.liveness_port import LivenessPort, join_address, listen, probe


@pytest.fixture
def port() -> Iterator[LivenessPort]:
    listening = LivenessPort("w1", "127.0.0.1:0")
    yield listening
    listening.close()


def address_of(port: LivenessPort) -> str:
    return join_address(port.host, port.port)


async def test_a_worker_answers_with_its_name(port: LivenessPort) -> None:
    assert await probe(address_of(port), "w1") == "answered"


async def test_the_answer_of_another_worker_says_nothing(port: LivenessPort) -> None:
    assert await probe(address_of(port), "w2") == "unknown"


async def test_a_port_that_was_closed_refuses(port: LivenessPort) -> None:
    port.close()
    assert await probe(address_of(port), "w1") == "refused"


async def test_a_port_that_accepts_and_is_silent_says_nothing() -> None:
    with listen("127.0.0.1", 0) as silent:
        assert await probe(join_address(*silent.getsockname()), "w1") == "unknown"


async def test_a_port_that_talks_without_end_says_nothing() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 100_000)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        address = join_address(*server.sockets[0].getsockname())
        assert await probe(address, "w1") == "unknown"


async def test_strangers_that_stay_and_say_nothing_keep_nobody_from_an_answer(
    port: LivenessPort,
) -> None:
    with ExitStack() as strangers:
        for _ in range(100):
            strangers.enter_context(socket.create_connection((port.host, port.port)))
        while await probe(address_of(port), "w1") != "answered":
            pass  # the strangers before it are answered one by one


def test_a_port_that_is_taken_is_named() -> None:
    with listen("127.0.0.1", 0) as taken:
        address = join_address(*taken.getsockname())
        with pytest.raises(InvalidDefinition, match=f"liveness_address {address} cannot"):
            LivenessPort("w1", address)


@pytest.mark.parametrize("address", ["7070", "host:port", "host:70700", "::1:7070", 7070])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidDefinition, match="liveness_address has to be HOST:PORT"):
        WorkerSettings(liveness_address=address)


@pytest.mark.parametrize("address", [":7070", "0.0.0.0:0", "[::1]:7070", "node-3.internal:7070"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert WorkerSettings(liveness_address=address).liveness_address == address
