"""A sign-in, as a tool waits for it: it gets a token that can be used, or is parked.

The log keeps only the outcome. The token is looked up again in every run of the tool.
"""

from collections.abc import Sequence

import msgspec

from outlast.agents.runtime.durable_wait import WaitTracker
from outlast.agents.runtime.environment import TokenSource
from outlast.core.instant import Span
from outlast.core.name import quoted
from outlast.core.result import NewWait
from outlast.errors import AuthorizationError


async def require(
    waiting: WaitTracker,
    sign_ins: TokenSource,
    connection: str,
    *,
    scopes: Sequence[str],
    timeout: Span | None,
    instead_of: str,
) -> str:
    """Return a live token of the session's principal; else wait until they have signed in."""
    lane = waiting.lane
    account = sign_ins.of(connection, lane.tenant, lane.principal)
    # Before the token is looked up: a sign-in that was denied is an answer, and is not asked for
    # again.
    name = open_round(waiting, connection)
    with waiting.busy():
        grant = await account.live(instead_of)
    if grant and grant.covers(scopes):
        return grant.access_token
    if not lane.can_ask:
        raise AuthorizationError(f"nobody can be asked here to sign in to {connection}")
    if waiting.has_begun(name):
        raise waiting.stop_at(NewWait(name))
    waiting.check_new(name)
    # With those that were granted before, or another tool would lose what it has.
    wanted = (*(grant.scopes if grant else ()), *scopes)
    with waiting.busy():
        begun = await account.begin(wanted, timeout, waiting.journal.latest())
    raise waiting.stop_at(NewWait(name, authorization=begun))


def open_round(waiting: WaitTracker, connection: str) -> str:
    """Name the wait; a sign-in that was completed may not suffice any more, or not for all."""
    for name, known in waiting.rounds("authorization", quoted(connection)):
        if known is None:
            return name
        check(msgspec.json.decode(known, type=dict[str, str]), connection)
    raise AssertionError("there is always another round")


def check(came: dict[str, str], connection: str) -> None:
    """Say so if a sign-in was not completed."""
    if "denied" in came:
        raise AuthorizationError(f"the user did not allow the sign-in to {connection}")
    if "expired" in came:
        raise AuthorizationError(f"nobody signed in to {connection} in time")
    if "failed" in came:
        raise AuthorizationError(f"{connection} refused the sign-in: {came['failed']}")
