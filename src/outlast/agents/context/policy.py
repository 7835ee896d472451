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
    """How much of a session the model is sent. The log stays whole, and so does its history.

    A request that would have `max_tokens` is made shorter first, to `target` of that: then what was
    read again later is dropped (`superseded`: of tools with `reads=`), old results are cleared
    (`clear`, but for the last `keep_results`), and the oldest messages are left out, or with
    `summarize` summed up by the model. A result of more than `max_result` bytes is told by its
    beginning and its end; all of it, and what was cleared, is read with the tool `read_result`.
    A request that the provider finds too long is made shorter whatever this says, and made again.
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
