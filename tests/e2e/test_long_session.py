"""A long session over a real connection, against a provider that refuses what is too long."""

from __future__ import annotations

from pathlib import Path

import pytest
from scene import running, the

from outlast import Agent, ContextPolicy, tool
from outlast.agents.model.pydantic_ai import ProviderModel
from outlast.log.verify import verify
from outlast.testing.provider_server import ErrorStatus, ReceivedCall, WireServer, openai_model
from outlast.testing.provider_wire import WireReply, call, reply, words

WINDOW = 3_000
FIRST = "The first instruction: always be kind."


class NarrowProvider(WireServer):
    """Counts the tokens of a request, reports them, and refuses more than its window."""

    def __init__(self) -> None:
        super().__init__(otherwise=self._judge)
        self.accepted: list[str] = []
        self.refused = 0

    def _judge(self, received: ReceivedCall) -> WireReply | ErrorStatus:
        text = str(received.body["messages"])
        tokens = len(text) // 4
        if tokens > WINDOW:
            self.refused += 1
            return ErrorStatus(400, code="context_length_exceeded")
        self.accepted.append(text)
        if received.body["messages"][-1]["role"] == "tool" or "You sum up" in text:
            return reply(words("Done."), input_tokens=tokens)
        return reply(call("look", "{}"), input_tokens=tokens)


@tool(readonly=True)
async def look() -> str:
    return "x" * 1_500


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def converse(
    store: str, context: ContextPolicy | None, turns: int
) -> tuple[NarrowProvider, int]:
    async with NarrowProvider() as server:
        model = ProviderModel(openai_model(server))
        async with running(
            a := Agent("a", model, tools=[look], context=context), store=store
        ) as app:
            session = await app.start(a, FIRST)
            await session.wait()
            for number in range(turns):
                result = await (await session.send(f"message {number}")).result()
                assert (result.output, result.error) == ("Done.", None)
            done = len(await the(session, "compaction.completed"))
            assert await verify(app.store, session.id) == []
    return server, done


async def test_a_request_that_a_provider_refuses_as_too_long_is_made_shorter_and_again(
    store: str,
) -> None:
    server, done = await converse(store, None, 12)

    assert server.refused == done > 0
    assert all(FIRST in text for text in server.accepted)


async def test_with_a_policy_a_provider_has_nothing_to_refuse(store: str) -> None:
    policy = ContextPolicy(max_tokens=WINDOW * 2 // 3, summarize=True)
    server, done = await converse(store, policy, 12)

    assert server.refused == 0 < done
    assert all(FIRST in text for text in server.accepted if "You sum up" not in text)
