"""Classifies errors of model calls: try again, wait until it is mended, or give up.

Errors are told apart by the names of their classes and by their HTTP status, so that
nothing of a provider's library has to be imported to classify one. What is written
down of an error never holds a key: see `redact`.

Not every case is obvious:

- An exhausted quota is `blocked` although it comes as a 429: waiting does not help, paying does.
- A model that a worker cannot build is `blocked`: a package or a key is missing where it runs.
- An unexpected error is `recoverable`: it is a bug, here or in a provider's
  library, so trying again would fail again and cost again, but the session is sound.
- A part that this process cannot read is `recoverable`: a newer worker can.
"""

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from outlast.agents.model.client import ModelClient, ModelFailure
from outlast.core import codec
from outlast.core.message import storable
from outlast.core.record import Failure

_failures = msgspec.msgpack.Decoder(ModelFailure)

Kind = Literal["transient", "blocked", "recoverable", "structural"]

# From the particular to the general: the first class that an error is an instance of decides.
MEANINGS: tuple[tuple[str, Kind, str], ...] = (
    ("AnswerCutOff", "transient", "ANSWER_CUT_OFF"),
    ("AnswerFiltered", "recoverable", "CONTENT_FILTERED"),
    ("ContentFilterError", "recoverable", "CONTENT_FILTERED"),
    ("ModelQuotaExceededError", "blocked", "QUOTA_EXCEEDED"),
    ("ModelAuthenticationError", "blocked", "CREDENTIALS_REJECTED"),
    ("ModelNotFoundError", "blocked", "MODEL_NOT_FOUND"),
    ("ModelContextWindowExceededError", "recoverable", "CONTEXT_WINDOW_EXCEEDED"),
    ("ModelRateLimitError", "transient", "RATE_LIMITED"),
    ("ModelUnavailableError", "transient", "MODEL_UNAVAILABLE"),
    ("ModelServerError", "transient", "PROVIDER_FAILED"),
    ("ModelTimeoutError", "transient", "MODEL_TIMEOUT"),
    ("ModelRequestTimeout", "transient", "MODEL_TIMEOUT"),
    ("ModelConnectionError", "transient", "PROVIDER_UNREACHABLE"),
    ("ModelRequestRejectedError", "recoverable", "REQUEST_REJECTED"),
    ("ModelAPIError", "transient", "PROVIDER_FAILED"),
    ("UnexpectedModelBehavior", "transient", "ANSWER_UNREADABLE"),
    ("UserError", "recoverable", "INVALID_DEFINITION"),
    ("InvalidDefinition", "blocked", "MODEL_NOT_BUILT"),
    ("StoreCorrupt", "structural", "STORE_CORRUPT"),
    ("StoreFromTheFuture", "recoverable", "STORE_FROM_THE_FUTURE"),
    ("TimeoutException", "transient", "MODEL_TIMEOUT"),  # httpx
    ("TransportError", "transient", "PROVIDER_UNREACHABLE"),  # httpx
    ("TimeoutError", "transient", "MODEL_TIMEOUT"),
    ("ConnectionError", "transient", "PROVIDER_UNREACHABLE"),
)
UNFORESEEN: tuple[Kind, str] = ("recoverable", "MODEL_CALL_FAILED")

PASSES = "nothing has to be done: {model} is asked again by itself"
# What mends a failure, as the operator reads it. `{key}` and `{model}` are named by `hint_of`.
HINTS: Mapping[str, str] = {
    "CREDENTIALS_REJECTED": "give the workers a key that may use {model}: {key}",
    "MODEL_NOT_FOUND": "have the agent name a model that its provider has, instead of {model}",
    "QUOTA_EXCEEDED": "raise the quota for {model}, or pay what is open there: {key}",
    "MODEL_NOT_BUILT": "install and set what {model} needs where the workers run",
    "RATE_LIMITED": "raise the rate that the provider of {model} allows, or wait",
    "PROVIDER_UNREACHABLE": "see whether the workers reach the provider of {model}",
    "MODEL_UNAVAILABLE": PASSES,
    "PROVIDER_FAILED": PASSES,
    "MODEL_TIMEOUT": PASSES,
    "ANSWER_CUT_OFF": PASSES,
    "ANSWER_UNREADABLE": PASSES,
}
KEYS: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "cohere": "CO_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "google": "GOOGLE_API_KEY",
    "groq": "GROQ_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "xai": "XAI_API_KEY",
}
"""The variables that the providers' keys are read from, unless the app gives them."""

LONGEST_WAIT = 3600
"""Seconds for which a provider is believed that asks to be left alone: one that names a day would
otherwise use up the patience of all its sessions, and never be asked again."""
LONGEST_MESSAGE = 1000

SECRETS = (
    re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',}]+"),
    re.compile(
        r"(?i)\b((?:x-)?api[-_]?key|authorization)[\"']?\s*[:=]\s*[\"']?(?!\.\.\.)[^\s\"',}]+"
    ),
    re.compile(r"\b(sk|pk|rk|gsk|xai|key)-[\w*.\-]{4,}"),
    re.compile(r"\b(AIza)[\w\-]{20,}"),
)


def classify_error(client: ModelClient, error: Exception) -> ModelFailure:
    """Have a client say what an error means. If it cannot, that is told too: it is others' code."""
    try:
        # What others' code returns goes into the log: it has to be readable there.
        return codec.proven(client.classify(error), _failures)
    except Exception as wrong:  # noqa: BLE001 - a client's own
        found = classify(error)
        message = redact(
            f"{in_words(error)}; {type(client).__name__}.classify gave no ModelFailure: {wrong}"
        )
        return replace(found, error=Failure(found.error.code, message))


def classify(error: Exception, secrets: Iterable[str] = ()) -> ModelFailure:
    """Return what an error means, in words that hold none of the secrets."""
    if isinstance(error, ExceptionGroup):
        return mildest([classify(each, secrets) for each in error.exceptions])
    kind, code = meaning(error)
    said = in_words(error)
    if code == UNFORESEEN[1] and said != type(error).__name__:
        said = f"{type(error).__name__}: {said}"  # nobody else says what it is
    message = redact(said, secrets)
    return ModelFailure(kind, Failure(code, message), wait_of(error) if kind == "transient" else 0)


def hint_of(code: str, model: str) -> str:
    """Return what mends a failure of a model that is waited for."""
    provider = model.partition(":")[0].partition("-")[0]
    variable = KEYS.get(provider)
    key = f"{variable}, unless the app gives it another" if variable else "the one the app gives it"
    return HINTS.get(code, "").format(model=model, key=key)


def mildest(failures: list[ModelFailure]) -> ModelFailure:
    """Return the failure of several models that leaves the most hope, and the shortest wait."""
    order = ("transient", "blocked", "recoverable", "structural")
    return min(failures, key=lambda failure: (order.index(failure.kind), failure.retry_after))


def meaning(error: Exception) -> tuple[Kind, str]:
    names = {each.__name__ for each in type(error).__mro__}
    found = next(((kind, code) for name, kind, code in MEANINGS if name in names), UNFORESEEN)
    status = getattr(error, "status_code", None)
    if status == 410 and "ModelHTTPError" in names:  # a model that has been retired
        return "blocked", "MODEL_NOT_FOUND"
    # The library has a class for most statuses; these are the ones for which it has none.
    if isinstance(status, int) and "ModelHTTPError" in names and found[1] == "PROVIDER_FAILED":
        waits = status in (408, 409, 425) or status >= 500
        return found if waits else ("recoverable", "REQUEST_REJECTED")
    return found


def wait_of(error: Exception) -> int:
    """Return how long the provider asked to wait, in milliseconds."""
    seconds = getattr(error, "retry_after", None)
    if not isinstance(seconds, int | float) or not seconds > 0:  # NaN is not over 0 either
        return 0
    return ceil(min(seconds, LONGEST_WAIT) * 1000)


def in_words(error: Exception) -> str:
    """Return what happened: the provider's own words, where it sent any."""
    said = words_of(getattr(error, "body", None)) or str(error) or type(error).__name__
    status = getattr(error, "status_code", None)
    return f"the provider answered {status}: {said}" if isinstance(status, int) else said


def words_of(body: Any) -> str:
    """Return the message in an error's body, wherever the provider keeps it."""
    while isinstance(body, Mapping):
        body = body.get("error") or body.get("message")
    return body if isinstance(body, str) else ""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without the secrets, and without anything else that looks like one.

    A provider's text may hold half a character (a lone surrogate), which no log can keep.
    """
    text = storable(text)
    # The known ones first: a pattern might leave a part of one standing.
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    for pattern in SECRETS:
        text = pattern.sub(r"\1 [redacted]", text)
    return text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + "…"
