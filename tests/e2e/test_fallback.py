"""Two providers on loopback: where the first cannot be had, the turn goes on with the second."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fallback_process import poet, worker_process
from scene import FAST, the, until

from outlast import Agent, ModelOptions, Outlast
from outlast.core.message import ModelAnswer, text_of
from outlast.log.verify import verify
from outlast.testing.provider_server import (
    ConnectionReset,
    ErrorStatus,
    WireServer,
    openai_model,
    reply,
    words,
)

POEM = "Waves come and go."


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ErrorStatus(503), "MODEL_UNAVAILABLE"),
        (ErrorStatus(401), "CREDENTIALS_REJECTED"),
        (ErrorStatus(404, code="model_not_found"), "MODEL_NOT_FOUND"),
        (ErrorStatus(429, headers={"Retry-After": "600"}), "RATE_LIMITED"),
        (ConnectionReset(), "PROVIDER_UNREACHABLE"),
    ],
    ids=["503", "401", "404", "429", "reset"],
)
async def test_the_second_provider_answers_where_the_first_does_not(
    fault: ErrorStatus | ConnectionReset, code: str
) -> None:
    async with WireServer(fault) as first, WireServer(reply(words(POEM))) as second:
        models = [openai_model(first, "first"), openai_model(second, "second")]
        agent = Agent("poet", models, model_options=ModelOptions(max_attempts=1))
        async with Outlast([agent], store="memory://", worker=FAST) as app:
            session = await app.start("poet", "A poem, please")

            assert (await session.wait()).output == POEM
            [left] = await the(session, "model.switched")
            assert (left.data["left"], left.data["model"]) == ("openai:first", "openai:second")
            assert left.data["error"]["code"] == code
            assert len(first.requests) == len(second.requests) == 1
            assert second.requests[0].body["model"] == "second"


async def test_an_answer_that_is_cut_off_twice_is_begun_anew_by_the_second_provider(
    store: str,
) -> None:
    gates = asyncio.Event(), asyncio.Event()
    cuts = [reply(words("Half", " a"), hold=2, cut=2, gate=gate) for gate in gates]
    async with WireServer(*cuts) as first, WireServer(reply(words(POEM[:9], POEM[9:]))) as second:
        models = [openai_model(first, "first"), openai_model(second, "second")]
        agent = Agent("poet", models, model_options=ModelOptions(max_attempts=2))
        async with Outlast([agent], store=store, worker=FAST) as app:
            session = await app.start("poet", "A poem, please")
            for number, gate in enumerate(gates, 1):
                await until(session, "message.delta", number)
                gate.set()

            assert (await session.wait()).output == POEM
            aborted = await the(session, "message.aborted")
            assert [(e.attempt_id, e.data.get("kept", False)) for e in aborted] == [
                ("t1.s1#1", True),  # the same model went on with it
                ("t1.s1#1", False),
                ("t1.s1#2", False),
            ]
            [whole] = await the(session, "message.completed")
            assert "".join(part["text"] for part in whole.data["parts"]) == POEM
            [said] = [each for each in await session.history() if isinstance(each, ModelAnswer)]
            assert text_of(said.parts) == POEM
            assert await verify(app.store, session.id) == []
        assert "Half" in str(first.requests[1].body)
        assert "Half" not in str(second.requests[0].body)


async def test_a_worker_killed_between_switch_and_answer_leaves_the_fallback_to_the_next(
    tmp_path: Path, postgres_url: str
) -> None:
    stores = (f"sqlite:///{tmp_path / 'outlast.db'}", postgres_url)
    half, rest = reply(words(POEM[:9], POEM[9:]), hold=2), reply(words(POEM[9:]))
    async with (
        WireServer(ErrorStatus(401), ErrorStatus(401)) as first,
        WireServer(half, half, rest, rest) as second,
        AsyncExitStack() as stack,
    ):
        agent = poet(first.url, second.url)
        async with worker_process(first.url, second.url, *stores) as process:
            for store in stores:
                app = Outlast([agent], store=store, worker=None)
                session = await (await stack.enter_async_context(app)).start("poet", "A poem")
                await until(session, "message.delta")
            process.kill()
            await process.wait()

        for store in stores:
            async with Outlast([agent], store=store) as app:
                [found] = await app.sessions()
                session = await app.session(found.session_id)
                assert (await session.wait()).output == POEM
                started = await until(session, "model.started", 3, internals=True)
                assert started.data["model"] == "openai:second"
                assert len(await the(session, "model.switched")) == 1
                assert await verify(app.store, session.id) == []
        assert (len(first.requests), len(second.requests)) == (2, 4)
