"""Models of every provider, through pydantic-ai.

Makes the call and says whether the answer is whole. It retries nothing (the provider's
own retries are switched off) and sets no time limits: those are the caller's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from outlast.agents.agent import Agent
from outlast.agents.model.client import (
    AnswerCutOff,
    FinishedAnswer,
    KeepAlive,
    ModelClient,
    ModelFailure,
    ModelPiece,
    ModelRequest,
    ToolSpec,
)
from outlast.agents.model.error import classify
from outlast.agents.model.price import is_listed, listed_cost, listed_price
from outlast.agents.model.translation import StreamTranslator, read_parts, read_usage, render
from outlast.core.message import Message, ModelAnswer, ProviderPart, Text, UserMessage
from outlast.core.result import CallPrice, Usage
from outlast.core.view import View
from outlast.errors import InvalidDefinition, StoreFromTheFuture
from outlast.log_context import get_logger

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition

log = get_logger("outlast.agents")

EXTRAS = {"anthropic", "google", "openai"}

SCRIPTED = {"function", "test"}
"""The systems of pydantic-ai's own stand-ins for a model: they have no wire that could break."""


def clients_of(agent: Agent[Any, Any]) -> tuple[ModelClient, ...]:
    """Return the agent's models; a provider's is loaded when it is prepared, or first called."""
    return tuple(
        # By a method that pydantic-ai's models do not have: to import them here would take a
        # second.
        cast(ModelClient, model) if hasattr(model, "classify") else ProviderModel(model)
        for model in agent.models
    )


async def prepare(clients: Sequence[ModelClient], agent: str) -> None:
    """Build models that were given by their names, or say what is missing for that.

    One is enough: an agent does without the others, as it does while their providers are away.
    """
    missing: list[InvalidDefinition] = []
    for client in clients:
        try:
            if isinstance(client, ProviderModel):
                await client.ready()
        except InvalidDefinition as error:
            missing.append(error)
    if len(missing) == len(clients):
        why = "; ".join(error.message for error in missing)
        # The sentence says all; three tracebacks above it would hide it.
        raise InvalidDefinition(
            f"this worker cannot serve agent {agent}: {why}", agent=agent, **missing[0].details
        ) from missing[0].__cause__
    for each in missing:
        log.warning(
            "this worker serves agent %s without one of its models: %s", agent, each.message
        )


class AnswerFiltered(Exception):
    """The provider's filter kept the answer back."""


class PydanticAI:
    """The parts of pydantic-ai that are used."""

    def __init__(self) -> None:
        # Here, once, and not at the top of the file: the import takes a second or more, and
        # of all processes that define agents only those that call a model need it.
        from pydantic_ai import __version__
        from pydantic_ai.direct import model_request, model_request_stream
        from pydantic_ai.exceptions import ModelConnectionError, ModelTimeoutError, UserError
        from pydantic_ai.messages import InstructionPart, ModelMessagesTypeAdapter
        from pydantic_ai.models import Model, ModelRequestParameters, infer_model
        from pydantic_ai.tools import ToolDefinition

        self.version: str = __version__
        self.model_request = model_request
        self.model_request_stream = model_request_stream
        self.ModelConnectionError = ModelConnectionError
        self.ModelTimeoutError = ModelTimeoutError
        self.UserError = UserError
        self.InstructionPart = InstructionPart
        self.adapter = ModelMessagesTypeAdapter
        self.Model = Model
        self.ModelRequestParameters = ModelRequestParameters
        self.infer_model = infer_model
        self.ToolDefinition = ToolDefinition


library = cache(PydanticAI)


STILL_SPEAKING = KeepAlive()


class ProviderModel:
    """A model by its name (`"openai:gpt-5.2"`), or any `Model` of pydantic-ai.

    Connections do not outlive their event loop: one that is given by name is built once for each
    loop, and a `Model` is entered there, which renews the connections that it made itself. One
    with an HTTP client of its owner's keeps that.
    """

    def __init__(self, model: str | Model) -> None:
        self._given = model
        self._built: Model | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entered: asyncio.AbstractEventLoop | None = None
        self._building = Lock()

    @property
    def name(self) -> str:
        return self._given if isinstance(self._given, str) else self._given.model_id

    @property
    def address(self) -> str:
        """Where the provider is, as far as that is known; without what may be secret in it."""
        model = self._built or self._given
        return "" if isinstance(model, str) else plain_address(getattr(model, "base_url", "") or "")

    @property
    def can_stream(self) -> bool:
        """Whether the model gives its answers in pieces; if not, it is asked for whole ones."""
        return isinstance(self._given, str) or can_stream(self._given)

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        """Return the whole answer; raise AnswerCutOff if it is not whole."""
        model = await self.ready()
        response = await library().model_request(
            model,
            messages(request),
            model_settings=settings(request.settings),
            model_request_parameters=parameters(request),
        )
        return finished(response, model)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        """Give the answer piece by piece, ending with Finished, or raise AnswerCutOff."""
        model = await self.ready()
        announcer = StreamTranslator()
        async with library().model_request_stream(
            model,
            messages(request),
            model_settings=settings(request.settings),
            model_request_parameters=parameters(request),
        ) as stream:
            try:
                async for event in stream:
                    # Some events say nothing that is shown, but that the model is at work.
                    for piece in tuple(announcer.announce(event)) or (STILL_SPEAKING,):
                        yield piece
            # It is a ModelConnectionError as well, and means something else.
            except library().ModelTimeoutError:
                raise
            except library().ModelConnectionError as error:
                raise AnswerCutOff("the connection broke during the answer") from error
            answer = finished(stream.get(), model)
        for piece in announcer.complete(answer.parts):
            yield piece
        yield answer

    async def is_priced(self) -> bool:
        """Say whether the list of prices has the model."""
        return is_listed(await self.ready())

    def list_price(self, used: Usage) -> CallPrice | None:
        """Return what tokens cost by the list of prices; None before the model is loaded."""
        return listed_cost(self._built, used) if self._built else None

    def classify(self, error: Exception) -> ModelFailure:
        """Say what an error that `request` or `stream` raised means."""
        return classify(error, secrets(self._built))

    async def close(self) -> None:
        """Close the model's connections, unless its owner has entered it too."""
        if built := self._built:
            self._built = None
            await built.__aexit__(None, None, None)

    async def ready(self) -> Model:
        """Return the model, built in a thread: the loop has other lanes to serve meanwhile."""
        loop = asyncio.get_running_loop()
        if self._built is None or self._loop is not loop:
            model = await asyncio.to_thread(self._build, loop)
            # Entered on the loop, not in the thread that has built it: its connections belong to
            # this loop.
            if self._entered is not loop:
                self._entered = loop
                await model.__aenter__()
            return model
        return self._built

    def _build(self, loop: asyncio.AbstractEventLoop) -> Model:
        # Two lanes may ask for it at once, each in a thread.
        with self._building:
            if self._built is None or self._loop is not loop:
                self._built, self._loop, self._entered = build(self._given), loop, None
            return self._built


def plain_address(url: str) -> str:
    """Return the host of a URL: who asks it, and how, may be secret."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.hostname}{port}" if parts.hostname else ""


def can_stream(model: Model) -> bool:
    """Say whether a model, and every model that it stands for, has a way to stream."""
    return all(
        type(each).request_stream is not library().Model.request_stream
        and getattr(each, "stream_function", True) is not None
        for each in models_of(model)
    )


def models_of(model: Model) -> list[Model]:
    """Return the models that one stands for: those that it falls back to or wraps, or itself."""
    inner = [*getattr(model, "models", ()), *filter(None, [getattr(model, "wrapped", None)])]
    return [found for each in inner for found in models_of(each)] or [model]


def build(model: str | Model) -> Model:
    """Return the model of that name; say what is missing if there is none."""
    try:
        return library().infer_model(model)
    except ImportError as error:
        raise InvalidDefinition(
            f"the model {model!r} needs a package that is not installed: {remedy(error)}",
            model=model,
        ) from error
    except library().UserError as error:
        raise InvalidDefinition(
            f"the model {model!r} cannot be used: {plain(error)}{provider_missing(model)}",
            model=model,
        ) from None


def plain(error: Exception) -> str:
    """Return what is missing, without the library's advice on how to use itself instead."""
    return str(error).partition(" To try Pydantic AI without")[0]


def provider_missing(model: str | Model) -> str:
    """Say what a name without a provider looks like with one."""
    if not isinstance(model, str) or not model or ":" in model:
        return ""
    return f'; name its provider too, as in "openai:{model}"'


def remedy(error: ImportError) -> str:
    """Return what to install, of our own extras where we have one."""
    found = re.search(r"pydantic-ai-slim\[([\w-]+)\]", str(error))
    if found is None:
        return str(error)
    extra = found.group(1)
    if extra in EXTRAS:
        return f"install Outlast with its extra {extra!r}"
    return f"pip install 'pydantic-ai-slim[{extra}]'"


def secrets(model: Model | None) -> tuple[str, ...]:
    """Return the key that a model sends, as far as its client shows it."""
    client = getattr(getattr(model, "provider", None), "client", None)
    keys = (getattr(client, name, None) for name in ("api_key", "auth_token"))
    return tuple(key for key in keys if isinstance(key, str) and key)


def history(view: View) -> list[ModelMessage]:
    """Return the conversation as pydantic-ai's messages, each of them translated once."""
    for message in view.messages[len(view.rendered) :]:
        view.rendered.append(translate(message))
    return list(view.rendered)


def messages(request: ModelRequest) -> list[ModelMessage]:
    """Return all that the model is told, the tail last.

    It is a user's part: providers move a system's part to the front, before what they cache.
    """
    told = history(request.view)
    return [*told, translate(UserMessage((Text(request.tail),)))] if request.tail else told


def translate(message: Message) -> ModelMessage:
    plain = render(message)
    try:
        return library().adapter.validate_python([plain])[0]
    except ValueError as error:
        if not (wrote := writers(message)):
            raise
        # Its digest was right, so it is as it was written, by a pydantic-ai that knew more kinds.
        raise StoreFromTheFuture(
            f"an answer holds a part that pydantic-ai {', '.join(wrote)} wrote and"
            f" {library().version} cannot read; upgrade pydantic-ai",
            wrote=wrote,
        ) from error


def writers(message: Message) -> list[str]:
    """Return the versions of pydantic-ai that wrote parts of a message down."""
    parts = message.parts if isinstance(message, ModelAnswer) else ()
    return sorted({part.version for part in parts if isinstance(part, ProviderPart)})


def settings(given: Mapping[str, Any]) -> ModelSettings:
    # Providers' clients retry by themselves: our own tries would be multiplied, and none of theirs
    # is in the log.
    return cast("ModelSettings", {**given, "max_retries": 0})


def parameters(request: ModelRequest) -> ModelRequestParameters:
    """Return what the model is told beside the conversation."""
    instructions = [library().InstructionPart(request.instructions)] if request.instructions else []
    return library().ModelRequestParameters(
        function_tools=[definition(tool) for tool in request.tools],
        output_tools=[definition(request.output, output=True)] if request.output else [],
        output_mode="tool" if request.output else "text",
        allow_text_output=request.output is None,
        instruction_parts=instructions,
    )


def definition(tool: ToolSpec, output: bool = False) -> ToolDefinition:
    return library().ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json_schema=dict(tool.schema),
        kind="output" if output else "function",
    )


def finished(response: ModelResponse, model: Model) -> FinishedAnswer:
    """Return the answer if it is whole.

    A stream that ends early raises nothing, and some clients make up a finish reason for it:
    only the one that the provider itself sent, in the details, proves that nothing is missing.
    """
    reason = (response.provider_details or {}).get("finish_reason")
    if response.finish_reason == "content_filter" and not (reason and response.parts):
        refusal = (response.provider_details or {}).get("refusal") or "no reason was given"
        raise AnswerFiltered(f"the provider's filter kept the answer back: {refusal}")
    # A stand-in has no wire that breaks, and gives no reason either.
    is_scripted = all(each.system in SCRIPTED for each in models_of(model))
    if response.state != "complete" or not (reason or is_scripted):
        raise AnswerCutOff("the answer ended before the provider said that it was over")
    (plain,) = library().adapter.dump_python([response], mode="json")
    return FinishedAnswer(
        parts=read_parts(plain, library().version),
        usage=read_usage(response.usage),
        model=response.model_name or model.model_name,
        finish=response.finish_reason or reason or "",
        price=listed_price(response, model.model_name),
    )
