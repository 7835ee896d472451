"""The model clients: what an agent asks of a model, and the providers behind it.

The names here are for model clients of your own: `ModelClient` is what such a client has to do, the
others go into it and come out of it. `pydantic_ai.py` is the client for all known providers.
"""

from outlast.agents.model.client import (
    AnswerCutOff,
    FinishedAnswer,
    KeepAlive,
    ModelClient,
    ModelFailure,
    ModelPiece,
    ModelRequest,
    ReasoningPiece,
    TextPiece,
    ToolCallPiece,
    ToolSpec,
)
from outlast.core.message import (
    Message,
    ModelAnswer,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
    text_of,
)
from outlast.core.record import Failure
from outlast.core.result import CallPrice, Usage
from outlast.core.view import View

__all__ = [
    "AnswerCutOff",
    "CallPrice",
    "Failure",
    "FinishedAnswer",
    "KeepAlive",
    "Message",
    "ModelAnswer",
    "ModelClient",
    "ModelFailure",
    "ModelPiece",
    "ModelRequest",
    "ProviderPart",
    "Reasoning",
    "ReasoningPiece",
    "Text",
    "TextPiece",
    "ToolCall",
    "ToolCallPiece",
    "ToolOutput",
    "ToolOutputs",
    "ToolSpec",
    "Usage",
    "UserMessage",
    "View",
    "text_of",
]
