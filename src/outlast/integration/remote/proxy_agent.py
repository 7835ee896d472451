"""The proxy of a remote agent: an agent of this app that asks it, once, on behalf of a tool.

A tool that asks an agent starts a session of its own for that. If the agent is remote, it is a
session of the proxy, whose only call asks the remote agent. So children and calls of remote agents
need no third mechanism beside them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.agents.agent import Agent
from outlast.agents.model.client import FinishedAnswer, ModelFailure, ModelRequest, Said
from outlast.agents.model.error import classify
from outlast.agents.options import Limits, ModelOptions
from outlast.agents.subagent import AbandonedChild
from outlast.agents.tool import Tool
from outlast.core.event import Event
from outlast.core.message import Text, ToolCall, ToolOutputs, UserMessage, text_of
from outlast.core.record import Failure

if TYPE_CHECKING:
    from outlast.integration.remote.agent import RemoteAgent

ANY_DEPTH = 1_000_000
"""The depth is checked by the tool that asks, and again by the remote agent."""


def proxy_for(remote: RemoteAgent) -> Agent[Any, Any]:
    """Return an agent whose sessions ask a remote one, and pass its answers on."""
    proxy: Agent[Any, Any] = Agent(
        remote.name,
        ProxyModel(remote.name),
        output_type=Any,
        model_options=ModelOptions(stream=False),
        subagents=[JsonRemoteAgent(remote)],
        limits=Limits(max_depth=ANY_DEPTH),
    )
    proxy.output_type = remote.output_type or Any  # no model sees it, so it needs no schema
    return proxy


class JsonRemoteAgent:
    """A remote agent whose answers are JSON text of their values."""

    def __init__(self, remote: RemoteAgent) -> None:
        self.name = remote.name
        self._remote = remote

    def as_tool(self) -> Tool:
        return self._remote.as_json_tool()

    def proxy(self) -> Agent[Any, Any]:
        return self._remote.proxy()

    def events(self, session_id: str, after: int, *, follow: bool) -> AsyncIterator[Event]:
        return self._remote.events(session_id, after, follow=follow)

    async def cancel(self, child: AbandonedChild) -> None:
        await self._remote.cancel(child)


class RemoteFailure(Exception):
    """The remote agent has failed, or could not be asked: a code, and what happened."""


class ProxyModel:
    """The model of a proxy: it calls its one tool with the message, and repeats the answer."""

    name = "proxy"

    def __init__(self, tool: str) -> None:
        self._tool = tool

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        message = request.view.messages[-1]
        if isinstance(message, ToolOutputs):
            return FinishedAnswer((Text(answer_in(message)),))
        assert isinstance(message, UserMessage)
        if not all(isinstance(part, Text) for part in message.content):
            raise RemoteFailure(f"INVALID_MESSAGE: {self._tool} is remote: it takes text only")
        args = msgspec.json.encode({"message": text_of(message.content)}).decode()
        return FinishedAnswer((ToolCall("", self._tool, args),))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Said]:
        yield await self.request(request)

    def classify(self, error: Exception) -> ModelFailure:
        if not isinstance(error, RemoteFailure):
            return classify(error)
        code, _, message = str(error).partition(": ")
        return ModelFailure("recoverable", Failure(code, message))

    async def close(self) -> None:
        """There is no connection to close."""


def answer_in(outputs: ToolOutputs) -> str:
    """Return what the remote agent has answered."""
    [result] = outputs.results
    if result.failed:
        raise RemoteFailure(result.text)
    return result.text
