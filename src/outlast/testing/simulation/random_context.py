"""How much of a session its agents' models are sent, and how much their provider takes: by chance.

Both are so little that sessions meet them soon.
"""

from msgspec.structs import replace

from outlast.agents.context.policy import ContextPolicy
from outlast.agents.model.client import FinishedAnswer, ModelRequest
from outlast.core.compaction import BYTES_PER_TOKEN, bytes_of
from outlast.core.message import text_of
from outlast.core.result import Usage
from outlast.testing.simulation.random_answer import chance_of

WINDOWS = (None, 400, 800)
"""How many tokens the provider of a simulation takes."""


def random_context(seed: int, agent: str) -> ContextPolicy | None:
    """Return no policy, or one with any of the steps of a compaction."""
    chance = chance_of(seed, "context of", agent)
    if chance.random() < 0.3:
        return None
    return ContextPolicy(
        max_tokens=chance.choice([500, 500, 800, None]),
        target=chance.choice([0.3, 0.5]),
        summarize=chance.random() < 0.6,
        superseded=chance.random() < 0.5,
        clear=chance.random() < 0.5,
        keep_results=chance.choice([0, 1, 3]),
        max_result=chance.choice([200, 300, None]),
    )


def random_window(seed: int) -> int | None:
    """Return how many tokens a request may have."""
    return chance_of(seed, "window").choice(WINDOWS)


def tokens_of(request: ModelRequest) -> int:
    """Count a request as its provider does."""
    return sum(map(bytes_of, request.view.messages)) // BYTES_PER_TOKEN


def as_counted(answer: FinishedAnswer, request: ModelRequest) -> FinishedAnswer:
    """Return an answer with the usage that its provider reports."""
    said = sum(len(text_of((part,))) for part in answer.parts) // BYTES_PER_TOKEN + 1
    return replace(answer, usage=Usage(tokens_of(request), said))
