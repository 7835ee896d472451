"""Which calls may begin, where a limit allows only so many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from outlast.core.limit import Bound
from outlast.store.commit import Refused


class PermitRequest(Struct, frozen=True, gc=False, kw_only=True):
    """A call's wish to begin, made by the lane's owner; `bounds` in the order to take them in."""

    session_id: str
    lane: str
    worker: str
    fence: int
    call_id: str
    bounds: tuple[Bound, ...]


class Permit(Struct, frozen=True, gc=False):
    """Whether a call may begin. If not, when to ask again; None: when its lane gets ready."""

    granted: bool
    again_at: int | None = None


class PermitInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A call that holds a permit under a limit, or waits for one with so many ahead of it."""

    name: str
    session_id: str
    lane: str
    call_id: str
    held: bool
    ahead: int = 0


class Permits(Protocol):
    """The limits' places, and the queues for them."""

    async def acquire(self, wishes: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        """Let calls begin as far as their limits allow.

        A call that may begin holds its permits until a commit frees them, whoever owns its
        lane by then; asked again, it is granted again. One that may not is in the line of
        the first limit that has no place, once, and keeps the permits of those before it.
        Tenants take turns: first comes whose tenant would have the fewest permits under the
        limit with it, and of one tenant who asked first. A permit that is given back makes the
        lanes ready whose calls have a place then. A wish by anybody but the lane's owner is
        refused as `lease_lost`.
        """
        ...

    async def pass_by(self, patience: int) -> int:
        """Pass by calls that do not come for their places; return how many.

        Those that have a place, or were told a time to ask again, and have not asked for longer
        than `patience` are in no line until they do; their lanes are ready. So are those of who
        has a place by that.
        """
        ...

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        """Return who holds permits and who waits for some, by limit, in their order."""
        ...
