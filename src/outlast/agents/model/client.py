"""The protocol of a model client: the one seam to every provider.

A client gives whole answers or says that it could not; it never retries, never
runs tools and never stores anything. Its caller owns timeouts and attempts.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from outlast.core.message import Part
from outlast.core.name import is_summary_call
from outlast.core.record import Failure
from outlast.core.result import CallPrice, Usage
from outlast.core.view import View


class ToolSpec(Struct, frozen=True, gc=False):
    """A tool as a model is told of it; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


class ModelRequest(Struct, frozen=True, gc=False, kw_only=True):
    """Everything that a model call depends on.

    `view.messages` is the conversation; `view.rendered` is the client's to fill with its own
    form of it, message by message, so that history is translated once. `output`, where given,
    is the tool by which the model gives its final answer; then it must call some tool. `tail` is
    told behind the conversation and is no part of it: it may be another with every call, and
    leaves what stands before it as it was, for a provider that caches the beginning of a request.
    """

    view: View
    call_id: str
    attempt: int
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output: ToolSpec | None = None
    settings: Mapping[str, Any] = {}
    tail: str = ""

    @property
    def is_summary(self) -> bool:
        """Whether it asks to sum up what a compaction leaves out of a conversation."""
        return is_summary_call(self.call_id)


class TextPiece(Struct, frozen=True, gc=False):
    """A piece of the answer's text; `part` is the index of the answer's part it belongs to."""

    part: int
    text: str


class ReasoningPiece(Struct, frozen=True, gc=False):
    """A piece of the model's reasoning; `part` is as in TextPiece."""

    part: int
    text: str


class ToolCallPiece(Struct, frozen=True, gc=False):
    """A call of a tool has begun in the answer; its arguments come with the FinishedAnswer."""

    part: int
    tool: str


class KeepAlive(Struct, frozen=True, gc=False):
    """A sign of life while nothing can be shown: long arguments are being written, say."""


class FinishedAnswer(Struct, frozen=True, gc=False):
    """The whole answer. Its parts are those announced by the pieces, in the same order.

    ToolCall parts have an empty `call_id`: the engine names calls. A client that knows what the
    call has cost gives it as `price`.
    """

    parts: tuple[Part, ...]
    usage: Usage = Usage()
    model: str = ""
    finish: str = ""
    price: CallPrice | None = None


ModelPiece = TextPiece | ReasoningPiece | ToolCallPiece | KeepAlive | FinishedAnswer


class ModelFailure(Struct, frozen=True, gc=False):
    """The meaning of an error.

    `transient` may pass by itself; `blocked` passes when somebody mends the cause (a rejected key,
    an unknown model, an unpaid bill); `recoverable` may be mended by another message (a refused
    input, a filter); `structural` cannot be mended.
    """

    kind: Literal["transient", "blocked", "recoverable", "structural"]
    error: Failure
    retry_after: int = 0


class AnswerCutOff(Exception):
    """The provider's stream ended before the answer did."""


class ModelClient(Protocol):
    """A model of any provider."""

    @property
    def name(self) -> str:
        """The model's name in records and listings."""
        ...

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        """Return the whole answer; raise AnswerCutOff if it is not whole."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        """Yield the answer piece by piece, ending with FinishedAnswer, or raise AnswerCutOff."""
        ...

    def classify(self, error: Exception) -> ModelFailure:
        """Return what an error that `request` or `stream` raised means."""
        ...

    async def close(self) -> None:
        """Close connections; the worker that used the model has stopped."""
        ...
