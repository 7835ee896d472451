"""`Agent(context=ContextPolicy(…))`: how much of a session its model is sent.

Owns the settings. When they say that it is too much is decided in `core/compaction.py`; what is
left out then is planned in `plan.py`.
"""

from typing import Any

from msgspec import Struct

from outlast.core.policy import UNBOUNDED
from outlast.core.setting import count_of
from outlast.errors import InvalidDefinition

LEAST_TOKENS = 500
LEAST_RESULT = 200


class ContextPolicy(Struct, frozen=True, kw_only=True):
    """How much of a session the model is sent. The log and the history stay whole.

    A request that would reach `max_tokens` is first shortened to `target` of that, in this order:
    results that were read again later are dropped (`superseded`, for tools with `reads=`), old
    results are cleared (`clear`, except the last `keep_results`), and the oldest messages are left
    out, or with `summarize` summed up by the model. A result of more than `max_result` bytes is
    always cut to its beginning and its end; the model can read cut and cleared results with the
    tool `read_result`. A request that the provider finds too long is shortened whatever this policy
    says, and made again.
    """

    max_tokens: int | None = None
    target: float = 0.5
    summarize: bool = False
    superseded: bool = True
    clear: bool = True
    keep_results: int = 3
    max_result: int | None = 64 * 1024

    @property
    def most_tokens(self) -> int:
        return UNBOUNDED if self.max_tokens is None else self.max_tokens

    @property
    def longest_result(self) -> int:
        return UNBOUNDED if self.max_result is None else self.max_result


ON_OVERFLOW = ContextPolicy(max_result=None)
"""Of an agent that says nothing: only what a provider finds too long is made shorter."""


def checked_context(agent: str, given: Any) -> ContextPolicy | None:
    """Return a context policy, if it can be kept."""
    if given is None:
        return None
    if not isinstance(given, ContextPolicy):
        raise InvalidDefinition(
            f"context of agent {agent} is a ContextPolicy(max_tokens=…), not {given!r}", agent=agent
        )
    if given.max_tokens is not None:
        count_of("max_tokens of ContextPolicy", given.max_tokens, least=LEAST_TOKENS)
    if given.max_result is not None:
        count_of("max_result of ContextPolicy", given.max_result, least=LEAST_RESULT)
    count_of("keep_results of ContextPolicy", given.keep_results, least=0)
    share: Any = given.target
    if not isinstance(share, int | float) or not 0.1 <= share <= 0.9:
        raise InvalidDefinition(
            f"target of ContextPolicy is a share from 0.1 to 0.9, not {given.target!r}", agent=agent
        )
    return given
