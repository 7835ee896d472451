"""The topic `limit`: permits for calls, where a limit allows only so many at once.

A call asks for its permits by `acquire` and returns them with a commit (`Commit.frees`).
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from outlast.core.limit import Bound
from outlast.store.commit import Refused


class PermitRequest(Struct, frozen=True, gc=False, kw_only=True):
    """A call that asks to begin, through its lane's owner. `bounds` are acquired in this order.

    Where it has to wait, it stands as if it had asked `ahead` milliseconds earlier, later if that
    is negative; what it said first stays, as long as it waits.
    """

    session_id: str
    lane: str
    worker: str
    fence: int
    call_id: str
    bounds: tuple[Bound, ...]
    ahead: int = 0


class Permit(Struct, frozen=True, gc=False):
    """Says whether a call may begin. If not, when to ask again; None: when its lane gets ready."""

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


class LineInfo(Struct, frozen=True, gc=False, kw_only=True):
    """The calls of one limit: how many hold a permit and wait, and since when the oldest waits."""

    name: str
    held: int
    waiting: int
    oldest_at: int | None = None


def end_of_names(start: str) -> str:
    """Return the first name behind all that begin so, in the order of their characters."""
    return start[:-1] + chr(ord(start[-1]) + 1) if start else ""


class LimitStore(Protocol):
    """The permits of all limits, and the queues for them."""

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        """Grant permits to calls as far as their limits allow.

        A call that may begin holds its permits until a commit frees them, even if its lane has
        another owner by then; asked again, it is granted again. A call that may not begin waits
        once in the queue of the first limit that is full, and keeps the permits of the limits
        before it. Tenants take turns: the next permit goes to the tenant that would then hold the
        fewest under the limit, and within a tenant to the call that asked first, with what each
        is `ahead`. A permit that is
        returned makes the lanes ready whose calls can have it. A request by a worker that does not
        own the lane is refused as `lease_lost`.
        """
        ...

    async def resize(self, name: str, concurrency: int) -> int:
        """Let so many calls at once hold a permit under a limit, whatever those that wait asked.

        Makes the lanes ready whose calls hold a permit or can have one now. Returns how many calls
        wait, with those that can have one.
        """
        ...

    async def skip_stale(self, timeout: int, line: str = "") -> int:
        """Skip waiting calls that could have a permit and do not ask for it; return how many.

        A call that could be granted its permit, or was told when to ask again, and has not asked
        for more than `timeout` milliseconds leaves the queue until it asks again. So does, under
        limits whose names begin with `line`, a call that holds its permit while its lane has been
        ready for as long, and has no owner. Its lane is made ready, and so are the lanes of the
        calls that can have a permit now.
        """
        ...

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        """Return the calls that hold permits or wait for one, by limit, in their order."""
        ...

    async def lines(self, start: str) -> Sequence[LineInfo]:
        """Count the calls under each limit whose name begins so and that has any, by name."""
        ...
