"""Errors over a real wire: what each means, and that nobody tries again behind our back."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port
from pydantic_ai import exceptions as ai
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from outlast import Agent, Outlast, WorkerSettings
from outlast.agents.model.client import AnswerCutOff, ModelFailure, ModelRequest
from outlast.agents.model.error import MEANINGS, hint_of
from outlast.agents.model.pydantic_ai import AnswerFiltered, ProviderModel, finished
from outlast.core.message import Text, UserMessage
from outlast.core.view import View
from outlast.errors import InvalidDefinition, StoreCorrupt, StoreFromTheFuture
from outlast.testing.provider_server import (
    KEY,
    ConnectionReset,
    ErrorStatus,
    WireServer,
    anthropic_model,
    openai_model,
    reply,
    responses_model,
    words,
)
from outlast.testing.scripted import ScriptedModel, say

BUILDERS = {"chat": openai_model, "messages": anthropic_model, "responses": responses_model}
every_protocol = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
Builder = Callable[[WireServer], Any]


def hello() -> ModelRequest:
    view = View()
    view.messages.append(UserMessage((Text("Hello"),)))
    return ModelRequest(view=view, call_id="call", attempt=1)


async def asked(model: ProviderModel) -> None:
    await model.request(hello())


async def streamed(model: ProviderModel) -> None:
    async for _ in model.stream(hello()):
        pass


both_ways = pytest.mark.parametrize("ask", [asked, streamed])
Ask = Callable[[ProviderModel], Any]


async def failure_of(model: ProviderModel, ask: Ask = asked) -> ModelFailure:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the tests say which
        await ask(model)
    return model.classify(caught.value)


@every_protocol
@both_ways
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_an_error_that_may_pass_is_transient_and_was_tried_once(
    build: Builder, ask: Ask, status: int
) -> None:
    async with WireServer(ErrorStatus(status), reply(words("Hi"))) as server:
        failure = await failure_of(ProviderModel(build(server)), ask)
    assert failure.kind == "transient"
    assert len(server.requests) == 1


@every_protocol
@both_ways
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_request_that_the_provider_rejects_is_recoverable(
    build: Builder, ask: Ask, status: int
) -> None:
    async with WireServer(ErrorStatus(status, "too long by half")) as server:
        failure = await failure_of(ProviderModel(build(server)), ask)
    assert failure.kind == "recoverable"
    assert failure.error.message == f"the provider answered {status}: too long by half"
    assert len(server.requests) == 1


@every_protocol
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "CREDENTIALS_REJECTED"),
        (403, "CREDENTIALS_REJECTED"),
        (404, "MODEL_NOT_FOUND"),
        (410, "MODEL_NOT_FOUND"),
    ],
)
async def test_rejected_credentials_and_unknown_models_wait_until_somebody_mends_them(
    build: Builder, status: int, code: str
) -> None:
    async with WireServer(ErrorStatus(status)) as server:
        failure = await failure_of(ProviderModel(build(server)))
    assert (failure.kind, failure.error.code) == ("blocked", code)
    assert len(server.requests) == 1


async def test_an_exhausted_quota_is_somebodys_to_mend_although_it_is_a_429() -> None:
    async with WireServer(ErrorStatus(429, code="insufficient_quota")) as server:
        failure = await failure_of(ProviderModel(openai_model(server)))
    assert (failure.kind, failure.error.code) == ("blocked", "QUOTA_EXCEEDED")


async def test_an_unpaid_bill_is_somebodys_to_mend() -> None:
    async with WireServer(ErrorStatus(402, "no credit")) as server:
        failure = await failure_of(ProviderModel(openai_model(server)))
    assert (failure.kind, failure.error.code) == ("blocked", "QUOTA_EXCEEDED")


async def test_a_conversation_too_long_for_the_model_is_recoverable() -> None:
    async with WireServer(ErrorStatus(400, code="context_length_exceeded")) as server:
        failure = await failure_of(ProviderModel(openai_model(server)))
    assert (failure.kind, failure.error.code) == ("recoverable", "CONTEXT_WINDOW_EXCEEDED")


@every_protocol
@both_ways
async def test_retry_after_in_seconds_is_kept(build: Builder, ask: Ask) -> None:
    async with WireServer(ErrorStatus(429, headers={"Retry-After": "17"})) as server:
        failure = await failure_of(ProviderModel(build(server)), ask)
    assert failure.retry_after == 17_000


async def test_retry_after_as_a_date_is_kept() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    async with WireServer(ErrorStatus(503, headers={"Retry-After": later})) as server:
        failure = await failure_of(ProviderModel(anthropic_model(server)))
    assert 3_500_000 < failure.retry_after <= 3_600_000


async def test_nobody_is_made_to_wait_for_more_than_an_hour() -> None:
    async with WireServer(ErrorStatus(429, headers={"Retry-After": "9" * 30})) as server:
        failure = await failure_of(ProviderModel(openai_model(server)))
    assert failure.retry_after == 3600 * 1000


@pytest.mark.parametrize("nonsense", ["soon", "-5", "inf"])
async def test_a_retry_after_that_makes_no_sense_is_none(nonsense: str) -> None:
    async with WireServer(ErrorStatus(429, headers={"Retry-After": nonsense})) as server:
        failure = await failure_of(ProviderModel(openai_model(server)))
    assert (failure.kind, failure.retry_after) == ("transient", 0)


@every_protocol
@both_ways
async def test_a_connection_reset_before_the_answer_is_transient(build: Builder, ask: Ask) -> None:
    async with WireServer(ConnectionReset(), reply(words("Hi"))) as server:
        failure = await failure_of(ProviderModel(build(server)), ask)
    assert (failure.kind, failure.error.code) == ("transient", "PROVIDER_UNREACHABLE")
    assert len(server.requests) == 1


@both_ways
async def test_a_refused_connection_is_transient(ask: Ask) -> None:
    provider = OpenAIProvider(base_url=f"http://127.0.0.1:{free_port()}/v1", api_key=KEY)
    model = ProviderModel(OpenAIChatModel("gpt-wire", provider=provider))
    failure = await failure_of(model, ask)
    assert (failure.kind, failure.error.code) == ("transient", "PROVIDER_UNREACHABLE")


async def test_a_silent_provider_times_out() -> None:
    async with WireServer(reply(words("Hi"), hold=0)) as server:
        model = ProviderModel(openai_model(server))
        request = ModelRequest(
            view=hello().view, call_id="call", attempt=1, settings={"timeout": 0.05}
        )
        with pytest.raises(Exception) as caught:  # noqa: PT011 - `classify` says what it is
            async for _ in model.stream(request):
                pass
    failure = model.classify(caught.value)
    assert (failure.kind, failure.error.code) == ("transient", "MODEL_TIMEOUT")


async def test_a_filtered_answer_is_recoverable() -> None:
    async with WireServer(reply(stop="content_filter")) as server:
        failure = await failure_of(ProviderModel(openai_model(server)), streamed)
    assert (failure.kind, failure.error.code) == ("recoverable", "CONTENT_FILTERED")


def test_a_refusal_is_no_answer_cut_off() -> None:
    refused = ModelResponse(
        parts=[], provider_details={"refusal": "I cannot help"}, finish_reason="content_filter"
    )
    with pytest.raises(AnswerFiltered, match="I cannot help"):
        finished(refused, FallbackModel("test"))


def test_an_answer_that_waits_for_more_is_not_whole() -> None:
    paused = ModelResponse(
        [TextPart("Hi")], provider_details={"finish_reason": "pause_turn"}, state="suspended"
    )
    with pytest.raises(AnswerCutOff):
        finished(paused, FallbackModel("test"))


@every_protocol
@pytest.mark.parametrize(
    "echo", ["Authorization: Bearer {}", "bad key {}", '{{"x-api-key": "{}"}}']
)
async def test_what_is_said_of_an_error_holds_no_key(build: Builder, echo: str) -> None:
    async with WireServer(ErrorStatus(401, echo.format(KEY))) as server:
        failure = await failure_of(ProviderModel(build(server)))
    assert KEY not in failure.error.message
    assert "redacted" in failure.error.message


async def test_a_key_that_looks_like_nothing_is_hidden_too() -> None:
    async with WireServer(ErrorStatus(401, "no user has the key hunter22")) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="hunter22")
        model = ProviderModel(OpenAIChatModel("gpt-wire", provider=provider))
        failure = await failure_of(model)
    assert failure.error.message.endswith("no user has the key [redacted]")


@pytest.mark.parametrize(
    "told",
    [
        "Incorrect API key provided: sk-proj-Abc123_xyz.",
        "headers: {'Authorization': 'Bearer Abc123_xyz'}",
        'sent "x-api-key": "Abc123_xyz"',
        "https://example.com/?api_key=Abc123_xyz failed",
        "AIzaSyA0123456789abcdefAbc123_xyz is no key",
    ],
)
def test_whatever_looks_like_a_key_is_hidden(told: str) -> None:
    message = ProviderModel("test").classify(ValueError(told)).error.message
    assert "Abc123_xyz" not in message
    assert "[redacted]" in message


async def test_of_several_models_that_failed_the_one_with_most_hope_decides() -> None:
    async with WireServer(
        ErrorStatus(401), ErrorStatus(429, headers={"Retry-After": "3"})
    ) as server:
        both = FallbackModel(openai_model(server), anthropic_model(server))
        failure = await failure_of(ProviderModel(both))
    assert (failure.kind, failure.retry_after) == ("transient", 3000)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), "transient"),
        (ConnectionResetError(), "transient"),
        (AnswerCutOff("cut"), "transient"),
        (ai.ModelAPIError("m", "gone"), "transient"),
        (ai.ModelRequestTimeout("m", 3), "transient"),
        (ai.UnexpectedModelBehavior("nonsense"), "transient"),
        (ai.ContentFilterError("filtered"), "recoverable"),
        (ai.UserError("no such setting"), "recoverable"),
        (InvalidDefinition("no such model"), "blocked"),
        (StoreCorrupt("not what was stored"), "structural"),
        (StoreFromTheFuture("too new"), "recoverable"),
        (KeyError("a bug"), "recoverable"),
    ],
)
def test_every_error_means_something(error: Exception, kind: str) -> None:
    failure = ProviderModel("test").classify(error)
    assert failure.kind == kind
    assert failure.error.code
    assert failure.error.message


def test_an_error_that_nobody_foresaw_is_named_by_its_type() -> None:
    assert ProviderModel("test").classify(KeyError("k")).error.message == "KeyError: 'k'"
    assert ProviderModel("test").classify(KeyError()).error.message == "KeyError"


def test_of_everything_that_is_waited_for_it_is_said_what_mends_it() -> None:
    awaited = {code for _, kind, code in MEANINGS if kind in ("transient", "blocked")}
    assert {code for code in awaited if not hint_of(code, "openai:gpt-5.2")} == set()


def test_an_error_of_httpx_itself_is_transient() -> None:
    import httpx
    import httpx2

    for library in (httpx, httpx2):
        for error in (library.ConnectError("no"), library.ReadTimeout("late")):
            assert ProviderModel("test").classify(error).kind == "transient"


def test_an_error_inside_a_stream_means_the_same_as_before_it() -> None:
    overloaded = ai.ModelHTTPError.for_category(
        ai.ModelOverloadedError, status_code=529, model_name="m", in_stream=True
    )
    failure = ProviderModel("test").classify(overloaded)
    assert (failure.kind, failure.error.code) == ("transient", "MODEL_UNAVAILABLE")


def test_the_errors_of_pydantic_ai_still_have_the_names_by_which_they_are_known() -> None:
    names = {name for name, _, _ in MEANINGS if name.startswith("Model")}
    assert {name for name in names if not hasattr(ai, name)} == set()


@pytest.mark.parametrize("name", ["nonsense", "nobody:gpt-5", ""])
async def test_a_model_that_nobody_knows_is_an_invalid_definition(name: str) -> None:
    model = ProviderModel(name)
    with pytest.raises(InvalidDefinition) as caught:
        await model.request(hello())
    assert model.classify(caught.value).kind == "blocked"
    assert ('as in "openai:nonsense"' in str(caught.value)) == (name == "nonsense")


@pytest.mark.parametrize("name", ["openai:gpt-5.2", "anthropic:claude-opus-4-5"])
async def test_a_missing_key_is_an_invalid_definition(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    model = ProviderModel(name)
    with pytest.raises(InvalidDefinition, match="API_KEY") as caught:
        await model.request(hello())
    message = model.classify(caught.value).error.message
    assert "Provider(api_key=...)` to use the" in message
    assert "Pydantic AI" not in message


async def test_a_worker_that_cannot_have_a_model_says_so_and_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    store = f"sqlite:///{tmp_path}/outlast.db"
    agents = [Agent("poet", "openai:gpt-5.2"), Agent("clerk", ScriptedModel([say("Hello!")]))]
    async with Outlast(agents, store=store, worker=None) as app:
        waiting = await app.start("poet", "A poem!")

    with pytest.raises(InvalidDefinition, match=r"cannot serve agent poet: .*API_KEY") as refused:
        await Outlast(agents, store=store).open()
    assert refused.value.details["agent"] == "poet"
    trace = "".join(traceback.format_exception(refused.value))
    assert trace.count("Traceback") == 1, trace

    only = WorkerSettings(agents=("clerk",))
    async with Outlast(agents, store=store, worker=only) as app:
        assert (await (await app.start("clerk", "Hi")).wait()).output == "Hello!"
        assert (await (await app.session(waiting.id)).info()).status == "queued"


@pytest.mark.parametrize(
    ("name", "package", "remedy"),
    [
        ("anthropic:claude-opus-4-5", "anthropic", "install Outlast with its extra 'anthropic'"),
        ("openai:gpt-5.2", "openai", "install Outlast with its extra 'openai'"),
        ("google:gemini-3-pro", "google.genai", "install Outlast with its extra 'google'"),
        ("groq:llama", "groq", "pip install 'pydantic-ai-slim[groq]'"),
    ],
)
def test_a_missing_extra_is_named(name: str, package: str, remedy: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "from outlast.agents.model.pydantic_ai import build\n"
        "from outlast.errors import InvalidDefinition\n"
        "try:\n"
        f"    build({name!r})\n"
        "except InvalidDefinition as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert remedy in found.stdout
