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
    """How an agent's models are called, each of them where it has several.

    `settings` go to the provider as they are. An answer is streamed unless `stream` is False. A
    call has `timeout` in all and may be silent for `idle_timeout`. One that fails by a passing
    fault is made `max_attempts` times; then the agent's next model is asked. Where there is none
    left, the session waits for the provider and tries again from time to time, for
    `provider_patience` since the first failure; with 0 the turn fails instead. An answer that a
    crash cut off is continued, or begun anew with `on_partial="restart"`. `limit` holds for all
    agents that name the same model. `prices` says what calls cost whose price `genai-prices` does
    not know, and whether one of unknown price may be made.
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

    A turn has at most `max_steps` model calls and `turn_timeout` in all, and an answer that does
    not fit the `output_type` is sent back `max_corrections` times; one that a completion checker
    refuses is sent back `max_refusals` times, then the turn fails. A call that was under way in
    `max_crashes` crashes ends its turn, so that it cannot take down one worker after the other.
    At most `max_depth` sessions stand below the first. `turns` bounds the turns that run at once,
    or start in a while, in all sessions of the agent. Its sessions stand in the `queue` of that
    name, unless their start names another. Each turn has the `turn_budget`.
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
