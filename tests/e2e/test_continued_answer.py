"""An answer that was cut off and gone on with is the same whole text over HTTP."""

from __future__ import annotations

import httpx
from http_scene import HERE
from scene import agent, running

from outlast.agents.model.client import ModelRequest
from outlast.server.asgi import create
from outlast.testing.scripted import ScriptedReply, say


def reply(request: ModelRequest) -> ScriptedReply:
    if request.attempt == 1:
        return ScriptedReply(text="abcdef", chunks=6, cut_after=2, pace=0.001)
    return say("cdef")


async def test_an_answer_that_was_gone_on_with_is_whole_over_http() -> None:
    async with running(agent(reply)) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "abcdef"
        transport = httpx.ASGITransport(create(app, None), client=("127.0.0.1", 4711))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as http:
            result = (await http.get(f"/v1/sessions/{session.id}/result")).json()
            events = (await http.get(f"/v1/streams/sessions/{session.id}?offset=-1")).json()
        assert result["output"] == "abcdef"
        completed = [event for event in events if event["type"] == "message.completed"]
        assert [event["data"]["parts"] for event in completed] == [
            [{"kind": "text", "text": "abcdef"}]
        ]
