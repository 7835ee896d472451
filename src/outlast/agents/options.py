"""Settings of an agent that are rarely touched, in two groups.

`ModelOptions` says how its model is called, `Limits` how much a session of it may use. Both are
plain values: `Agent` checks them, so that a mistake is told with the agent's definition.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from outlast.agents.budget import Budget
from outlast.agents.limit import Limit
from outlast.agents.model.price import NO_OWN_PRICES, Prices
from outlast.agents.subagent import MAX_DEPTH
from outlast.core.instant import Span
from outlast.core.policy import OnPartial


class ModelOptions(Struct, frozen=True, kw_only=True):
    """How an agent's models are called: each of them, if there are several.

    Attributes:
        settings: Passed to the provider: `temperature`, `max_tokens`, …
        stream: Ask for answers in pieces.
        timeout: Time for a whole answer.
        idle_timeout: Time between two pieces of an answer.
        max_attempts: Tries of one call after transient failures, the first included. Then the next
            model is asked; without one the session waits for the provider.
        provider_patience: How long the session waits and tries again, counted from the first
            failure, before its turn fails; 0 fails it at once.
        on_partial: An answer that was cut off is continued ("continue") or begun anew ("restart").
        limit: Bounds the calls of the model, by all agents that name it.
        prices: Prices of models that `genai-prices` does not know, and whether calls of unknown
            price may be made.
    """

    settings: Mapping[str, Any] | None = None
    stream: bool = True
    timeout: Span = 600.0
    idle_timeout: Span = 120.0
    max_attempts: int = 4
    provider_patience: Span = 24 * 3600.0
    on_partial: OnPartial = "continue"
    limit: Limit | None = None
    prices: Prices = NO_OWN_PRICES


class Limits(Struct, frozen=True, kw_only=True):
    """How much a session of an agent may use.

    Attributes:
        max_steps: Model calls in a turn; then it fails.
        turn_timeout: Active time of a turn; waiting does not count.
        max_corrections: How often in a turn the model is asked to correct arguments or an answer.
        max_refusals: How often completion checkers may send an answer back; then the turn fails.
        max_crashes: Crashes during one call after which its turn fails, so that it does not take
            down one worker after another.
        max_depth: How many sessions may stand below the first.
        queue: The queue of its sessions, unless their start names another.
        turn_budget: The budget of each turn.
        turns: Bounds the turns of all its sessions that run at once, or start in a period.
    """

    max_steps: int = 50
    turn_timeout: Span = 3600.0
    max_corrections: int = 3
    max_refusals: int = 3
    max_crashes: int = 10
    max_depth: int = MAX_DEPTH
    turns: Limit | None = None
    queue: str = ""
    turn_budget: Budget | None = None


DEFAULT_MODEL_OPTIONS = ModelOptions()
DEFAULT_LIMITS = Limits()
