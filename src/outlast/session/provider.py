"""Providers that do not answer, for operators: `app.providers`.

Owns how an outage is told and how one is probed at once. The breakers themselves are the engine's
(`engine/provider_breaker.py`).
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from outlast.core.breaker import Breaker, BreakerState
from outlast.core.instant import date_of
from outlast.core.record import Failure
from outlast.log.breaker import end_pause, list_breakers
from outlast.session.listing import check_sought
from outlast.store import Store

MOST_COUNTED = 100_000


class ProviderOutage(Struct, frozen=True, kw_only=True):
    """A model that does not answer an agent, `since` then, in so many `failures` in a row.

    `state`: "failing" (some calls wait for it), "open" (all calls do, and one of them asks from
    time to time) or "recovering" (it answers again, and those that wait go on in growing groups).
    `blocked`: time alone will not mend it. `waiting` counts the lanes that wait; the first of them
    asks at `next_try_at`. Another `deployment` asks for itself.
    """

    agent: str
    model: str
    address: str
    state: BreakerState
    since: datetime
    error: Failure
    failures: int
    blocked: bool
    next_try_at: datetime
    waiting: int
    deployment: str = ""


class ProviderControl:
    """The providers that do not answer the app's agents: `app.providers`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self, *, agent: str | None = None) -> Sequence[ProviderOutage]:
        """List the providers that do not answer, those that are away for longest first."""
        return tuple([await self._describe(each) for each in await self._find(agent)])

    async def try_now(self, *, agent: str | None = None) -> int:
        """Have the first in each line ask its provider now; return the number of lines."""
        found = await self._find(agent)
        for breaker in found:
            await end_pause(self._store, breaker.provider)
        return len(found)

    async def _find(self, agent: str | None) -> Sequence[Breaker]:
        agent = check_sought("agent", agent)
        found = await list_breakers(self._store)
        return [each for each in found if agent in (None, each.provider.agent)]

    async def _describe(self, breaker: Breaker) -> ProviderOutage:
        name = breaker.provider.name
        permits = await self._store.limit.permits(name=name, limit=MOST_COUNTED)
        return ProviderOutage(
            agent=breaker.provider.agent,
            model=breaker.provider.model,
            address=breaker.provider.address,
            state=breaker.state,
            since=date_of(breaker.since),
            error=breaker.error,
            failures=breaker.failures,
            blocked=breaker.blocked,
            next_try_at=date_of(breaker.next_at),
            waiting=len(permits),
            deployment=breaker.provider.deployment,
        )
