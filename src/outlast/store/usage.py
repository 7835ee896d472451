"""The topic `usage`: what models were used for, from rows that commits keep.

A row is of one session, agent, model, principal and day in UTC; `log.commit` adds to it in the same
transaction as the `usage.recorded` that it is about. When a session is erased, its rows are added
to those of all erased sessions, which have no session: totals outlive it. Nothing here reads a log.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from outlast.core.record import NO_USAGE, UsageSum
from outlast.core.usage import TreeUsage, UsageRow

UsageKey = Literal["session", "agent", "model", "tenant", "principal", "day"]


class UsageFilter(Struct, frozen=True, gc=False, kw_only=True):
    """Which usage is looked for: all, or that of one of these, on days since 1970 in UTC."""

    tenant: str | None = None
    session_id: str | None = None
    agent: str | None = None
    model: str | None = None
    principal: str | None = None
    since: int | None = None
    until: int | None = None


class UsageLine(Struct, frozen=True, gc=False, kw_only=True):
    """The usage with one `key`: a session, an agent, …, a day as 2099-01-31.

    `own` is that of model calls of this app, `remote` that of agents behind other servers, as they
    tell it. Of erased sessions the session is empty, and so is the model of remote agents.
    """

    key: str
    own: UsageSum = NO_USAGE
    remote: UsageSum = NO_USAGE

    @property
    def total(self) -> UsageSum:
        return self.own + self.remote


class UsageStore(Protocol):
    """Usage, added up without reading a log."""

    async def by(
        self,
        key: UsageKey | None,
        wanted: UsageFilter,
        *,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[UsageLine]:
        """Add up the usage that is wanted by a key, in its order, behind the key `after`.

        Without a key all of it is one line, or none if there is none.
        """
        ...

    async def tree(self, session_id: str) -> TreeUsage:
        """Return the usage of a session, and the total of it and all that it has started.

        Remote agents are in the total. Of a session that does not exist nothing is known.
        """
        ...

    async def rows(self, session_id: str) -> Sequence[UsageRow]:
        """Return all rows of a session, in no order."""
        ...
