"""The envoy of a remote agent: an agent here that asks it, once, for a tool.

What a tool asks another agent is done by a session of its own. Where that agent is elsewhere, the
session is its envoy's, whose only call asks it as a model's would: what holds for children and
for calls of remote agents holds for both, and nothing else is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.agents.agent import Agent
from outlast.agents.model.client import FinishedAnswer, ModelFailure, ModelRequest, Said
from outlast.agents.model.error import classify
from outlast.agents.options import Limits, ModelOptions
from outlast.core.message import Text, ToolCall, ToolOutputs, UserMessage, text_of
from outlast.core.record import Failure

if TYPE_CHECKING:
    from outlast.integration.remote.agent import RemoteAgent

ANY_DEPTH = 1_000_000
"""Whoever asks the envoy has looked at how deep that is, and whom the envoy asks will look, too."""


def envoy_of(remote: RemoteAgent) -> Agent[Any, Any]:
    """Return the agent that asks a remote one, whose answers are JSON, and passes these on."""
    envoy: Agent[Any, Any] = Agent(
        remote.name,
        ProxyModel(remote.name),
        output_type=Any,
        model_options=ModelOptions(stream=False),
        subagents=[remote],
        limits=Limits(max_depth=ANY_DEPTH),
    )
    envoy.output_type = remote.output_type or Any  # no model is told of it: it needs no schema
    return envoy


class RemoteFailure(Exception):
    """The remote agent has failed, or could not be asked: a code, and what happened."""


class ProxyModel:
    """What an envoy has for a model: says there what it was told here, and here what it heard."""

    name = "messenger"

    def __init__(self, tool: str) -> None:
        self._tool = tool

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        message = request.view.messages[-1]
        if isinstance(message, ToolOutputs):
            return FinishedAnswer((Text(heard(message)),))
        assert isinstance(message, UserMessage)
        if not all(isinstance(part, Text) for part in message.content):
            raise RemoteFailure(
                f"INVALID_MESSAGE: {self._tool} is elsewhere: it is told words only"
            )
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
        """There is no connection to let go of."""


def heard(told: ToolOutputs) -> str:
    """Return what the remote agent has answered."""
    [result] = told.results
    if result.failed:
        raise RemoteFailure(result.text)
    return result.text
