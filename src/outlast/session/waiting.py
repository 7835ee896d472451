"""The wait of a session as one answer, when it rests, and how a process that waits is told.

Reads the folds of a session's lanes and of its children's. Knows nothing of surfaces: the handle,
the server and the client ask, and `OutageNotices` writes what they hear to the log of the process.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Literal, get_args

from msgspec import Struct

from outlast.core.breaker import is_line
from outlast.core.instant import date_of, date_or_none, rfc3339
from outlast.core.lane import CODE, PROVIDER, Lane
from outlast.core.record import Failure
from outlast.core.visible import visible_line
from outlast.log.breaker import list_breakers
from outlast.log.explain import read_state
from outlast.log.explain.owner import serves
from outlast.log_context import get_logger
from outlast.store import LaneInfo, SessionInfo, Store

log = get_logger("outlast.session")

WaitKind = Literal[
    "provider",
    "code",
    "request",
    "authorization",
    "queue",
    "budget",
    "limit",
    "key",
    "callback",
    "event",
    "timer",
    "children",
    "worker",
]
"""The kinds of waits, in the words of `session.waiting`; `worker`: one that takes the lane up."""

KINDS: tuple[WaitKind, ...] = get_args(WaitKind)
"""Of several waits the first is told: those that people can end, then those that end alone."""

CHILDREN = "children"
CODE_HINT = "start a worker whose code has it, or give its successor an alias: @tool(aliases=[…])"
MOST_LANES = 100
MOST_CHILDREN = 100
DEEPEST = 5
"""How many lanes, children and levels of these are looked at."""

BEFORE_A_TURN = frozenset({"queue", "limit", "timer", "budget"})
"""The waits of a turn that has not begun, too."""
IN_A_TURN = frozenset({"running", "sleeping"})
AT_REST = frozenset({"idle", "waiting", "completed", "failed", "ended"})


class WaitingFor(Struct, frozen=True, kw_only=True, gc=False):
    """What a session, or a child of it, waits for.

    Attributes:
        kind: "provider", "request", "timer", …
        session_id: The session that waits: this one or a child.
        agent: Its agent.
        lane: Its lane.
        since: When the wait began; for a provider, its first failure.
        next_try_at: When the provider is asked again, or when the wait ends by itself; None if that
            is under way, or something has to come first.
        error: The provider's last failure, with a `hint` of what to mend; for "code" it names the
            tool that no worker has.
        blocked: Time alone does not end the wait; somebody has to mend the cause.
    """

    kind: WaitKind
    session_id: str
    agent: str
    lane: str
    since: datetime | None = None
    next_try_at: datetime | None = None
    error: Failure | None = None
    blocked: bool = False


async def read_waiting(
    store: Store, info: SessionInfo, lane: str | None = None
) -> WaitingFor | None:
    """Return what a session waits for, or one lane of it; None if it is at work or idle."""
    found = [wait async for wait in waits_of(store, info, lane)]
    return first_of(found)


async def waits_of(
    store: Store, info: SessionInfo, lane: str | None = None, depth: int = 0
) -> AsyncIterator[WaitingFor]:
    ours = [each for each in info.lanes if lane in (None, each.lane) and not info.over]
    for each in [each for each in ours if each.turn or each.queued][:MOST_LANES]:
        state = await read_state(store, info.session_id, each.lane)
        outage = await provider_wait(store, info, each, state)
        for wait in [outage] if outage else lane_waits(info, each, state):
            inner = None
            if wait.kind == CHILDREN and depth < DEEPEST:
                inner = await child_wait(store, info, depth + 1)
            yield inner or wait


async def child_wait(store: Store, info: SessionInfo, depth: int) -> WaitingFor | None:
    """Return what the children of a session wait for, if one of them does."""
    found: list[WaitingFor] = []
    for status in ("sleeping", "waiting"):
        for child in await children_of(store, info, status):
            found += [wait async for wait in waits_of(store, child, depth=depth)]
    return first_of(found)


async def children_of(store: Store, info: SessionInfo, status: str) -> Sequence[SessionInfo]:
    return await store.listing.sessions(
        tenant=info.tenant, parent=info.session_id, status=status, limit=MOST_CHILDREN
    )


def first_of(waits: Sequence[WaitingFor]) -> WaitingFor | None:
    order = {kind: number for number, kind in enumerate(KINDS)}
    return min(waits, key=lambda wait: (order[wait.kind], *age(wait)), default=None)


def age(wait: WaitingFor) -> tuple[datetime, str]:
    """Order waits, the longest first."""
    return wait.since or datetime.max.replace(tzinfo=UTC), wait.session_id


def lane_waits(info: SessionInfo, lane: LaneInfo, state: Lane) -> list[WaitingFor]:
    """Return what a lane waits for but its provider; nothing, while a worker is at it."""
    # It is at work: what the fold says it waited for is of the past.
    if lane.worker:
        return []
    is_in_line = not BEFORE_A_TURN.isdisjoint(state.waiting)
    if not (is_in_line or (state.turn and state.waiting)) or is_ready(lane, info.seen_at):
        return [wait_of("worker", info, lane, since=lane.ready_at)] if lane.ready_at else []
    since = date_of(state.turn.since) if state.turn else None
    return [
        wait_of(kind, info, lane, since=since, next_try_at=lane.ready_at)
        if kind != CODE
        else code_wait(info, lane, state)
        for kind in KINDS
        if kind in state.waiting
    ]


def code_wait(info: SessionInfo, lane: LaneInfo, state: Lane) -> WaitingFor:
    """Return a lane's wait for a worker whose code has the tools of its calls."""
    calls = state.turn.calls.values() if state.turn else ()
    vanished = [call for call in calls if call.awaits_code]
    if misfit := next((call for call in vanished if call.mismatch and not call.vanished), None):
        return wait_of(
            CODE,
            info,
            lane,
            since=date_or_none(misfit.mismatched_since),
            next_try_at=lane.ready_at,
            error=misfit.mismatch,
            blocked=True,
        )
    names = ", ".join(dict.fromkeys(call.tool for call in vanished))
    since = min((call.vanished for call in vanished), default=0)
    error = Failure("UNKNOWN_TOOL", f"no worker that looked has {names}", CODE_HINT)
    return wait_of(
        CODE,
        info,
        lane,
        since=date_or_none(since),
        next_try_at=lane.ready_at,
        error=error,
        blocked=True,
    )


async def provider_wait(
    store: Store, info: SessionInfo, lane: LaneInfo, state: Lane
) -> WaitingFor | None:
    """Return a lane's wait for its provider, also while that is being asked again."""
    outage, model = state.outage, state.turn.model if state.turn else None
    if outage is None or model is None:
        return None
    # A model that is being asked is not `parked`: it has no next try before this one has failed.
    awaited = 0
    if model.parked:
        awaited = model.not_before or await next_probe(store, info.session_id, lane.lane)
    next_try = date_of(awaited)
    is_ahead = info.seen_at is None or next_try > info.seen_at
    return wait_of(
        PROVIDER,
        info,
        lane,
        since=date_of(outage.since),
        next_try_at=next_try if awaited and is_ahead else None,
        error=outage.error,
        blocked=outage.blocked,
    )


async def next_probe(store: Store, session_id: str, lane: str) -> int:
    """Return when the first in line asks the provider that a lane stands in line for; 0: now."""
    permits = await store.limit.permits(session_id)
    lines = {each.name for each in permits if each.lane == lane and is_line(each.name)}
    breakers = await list_breakers(store) if lines else []
    return next((each.next_at for each in breakers if each.provider.name in lines), 0)


def wait_of(kind: WaitKind, info: SessionInfo, lane: LaneInfo, **facts: object) -> WaitingFor:
    return WaitingFor(
        kind=kind,
        session_id=info.session_id,
        agent=info.agent,
        lane=lane.lane,
        **facts,  # type: ignore[arg-type]
    )


# While a process waits


class IdleWorkerCheck:
    """Looks for workers once, when a lane of the session is ready and has no owner."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_looked = False

    async def look(self, info: SessionInfo) -> None:
        ready = [lane for lane in info.lanes if is_ready(lane, info.seen_at) and not lane.worker]
        if self._has_looked or not ready:
            return
        self._has_looked = True
        workers = await self._store.work.workers()
        if not any(serves(worker, lane) for worker in workers for lane in ready):
            log.warning(
                "no worker serves this session; it is waited for until one does",
                extra={"session": info.session_id, "agent": info.agent, "workers": len(workers)},
            )


class OutageWatch:
    """Looks for lanes of a session, and of its children, that wait for a provider.

    What a look costs beyond the session's row, which is given: nothing, unless a lane rests for
    its provider (one read as that begins, and one for each look while it is asked) or for its
    children (one query for all of them).
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str], WaitingFor] = {}

    async def look(self, info: SessionInfo) -> tuple[WaitingFor, ...]:
        """Return the waits for a provider that there are now, the longest first."""
        found: dict[tuple[str, str], WaitingFor] = {}
        async for session, lane in self._suspects(info, 0):
            key = session.session_id, lane.lane
            wait = self._known.get(key)
            # The fold is read when the wait begins, and then only while the provider is being
            # asked.
            if wait is None or PROVIDER not in lane.wait:
                state = await read_state(self._store, *key)
                wait = await provider_wait(self._store, session, lane, state)
            if wait:
                found[key] = wait
        self._known = found
        return tuple(sorted(found.values(), key=age))

    async def _suspects(
        self, info: SessionInfo, depth: int
    ) -> AsyncIterator[tuple[SessionInfo, LaneInfo]]:
        for lane in () if info.over else info.lanes:
            # A lane whose worker asks the provider again sleeps on, and is listed with no wait. A
            # newer message may have begun another turn: the outage goes on behind that.
            is_asking = lane.status == "sleeping" and not lane.wait
            is_known = (info.session_id, lane.lane) in self._known
            if PROVIDER in lane.wait or is_asking or is_known:
                yield info, lane
        if depth < DEEPEST and any(CHILDREN in lane.wait for lane in info.lanes):
            for child in await children_of(self._store, info, "sleeping"):
                async for found in self._suspects(child, depth + 1):
                    yield found


def code_of(outages: Sequence[WaitingFor]) -> str:
    """Return the code of the error for which a provider is waited for; empty, if none is."""
    error = outages[0].error if outages else None
    return error.code if error else ""


class OutageNotices:
    """Tells the log of this process once that a session waits for a provider, and when it goes on.

    Several children with the same trouble are one warning: it is told by agent and error code.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._told: set[tuple[str, str]] = set()

    @property
    def are_open(self) -> bool:
        """Whether an outage was told, and not its end."""
        return bool(self._told)

    def tell(self, outages: Sequence[WaitingFor]) -> None:
        """Log what is new since the last time."""
        for wait in outages:
            key = wait.agent, wait.error.code if wait.error else ""
            if key not in self._told:
                self._told.add(key)
                log.warning("%s", sentence(wait, self._session_id), extra=facts(wait))
        # Not one by one: children whose waits end and begin would fill the log.
        if self._told and not outages:
            self._told.clear()
            extra = {"session": self._session_id}
            log.info("session %s waits for no provider any more", self._session_id, extra=extra)


def facts(wait: WaitingFor) -> dict[str, object]:
    return {
        "session": wait.session_id,
        "agent": wait.agent,
        "lane": wait.lane,
        "code": wait.error.code if wait.error else "",
    }


def sentence(wait: WaitingFor, session_id: str = "") -> str:
    """Return a wait in words, with whose it is; nothing in it can pass for a line of its own."""
    whose = f"session {wait.session_id} (agent {wait.agent})"
    if session_id and session_id != wait.session_id:
        whose = f"session {session_id} waits for its child {wait.session_id} (agent {wait.agent}),"
        return visible_line(f"{whose} which waits for {in_words(wait)}")
    return visible_line(f"{whose} waits for {in_words(wait)}")


WORDS: dict[WaitKind, str] = {
    "provider": "its provider",
    "code": "a worker whose code has its tool",
    "request": "an answer to what it has asked",
    "authorization": "somebody to sign in",
    "queue": "its turn in its queue",
    "budget": "a budget that others have reserved or spent",
    "limit": "a place under a limit",
    "key": "a call that has its idempotency key",
    "callback": "a call from outside",
    "event": "an event that is sent to it",
    "timer": "a timer",
    "children": "its children",
    "worker": "a worker that takes it up",
}


def in_words(wait: WaitingFor) -> str:
    """Return what is waited for, with error, since when, and when it goes on or is tried."""
    words = [WORDS[wait.kind]]
    if wait.since:
        words.append(f"since {rfc3339(wait.since)}")
    text = " ".join(words)
    if wait.error:
        text += f": {wait.error.code}: {wait.error.message.removesuffix('.')}"
    if wait.next_try_at:
        verb = "it is tried again at" if wait.kind in (PROVIDER, CODE) else "until"
        text += f"; {verb} {rfc3339(wait.next_try_at)}"
    elif wait.kind == PROVIDER:
        text += "; it is tried again soon"
    if wait.error and wait.error.hint:
        text += f"; to mend it: {wait.error.hint}"
    return text


# When a session rests: nothing moves in it before something arrives


def is_at_rest(info: SessionInfo) -> bool:
    """Say whether nothing of the session is queued, ready or running."""
    return all(rests(lane, info.seen_at) for lane in info.lanes)


def needs_somebody(info: SessionInfo, name: str) -> bool:
    """Say whether a lane rests in a turn that needs a human, while others work.

    A message that another lane is about to take may end the whole session.
    """
    own = [lane for lane in info.lanes if lane.lane == name]
    others = [lane for lane in info.lanes if lane.lane != name and lane.status not in IN_A_TURN]
    is_waiting = any(lane.status == "waiting" for lane in own)
    return is_waiting and all(rests(lane, info.seen_at) for lane in (*own, *others))


def rests(lane: LaneInfo, now: datetime | None) -> bool:
    # Messages behind a turn that needs a human do not move until it does.
    queued = lane.queued and lane.status != "waiting"
    return lane.status in AT_REST and not (lane.worker or queued or is_ready(lane, now))


def is_ready(lane: LaneInfo, now: datetime | None) -> bool:
    """Say whether a worker could go on with a lane."""
    return lane.ready_at is not None and (now is None or lane.ready_at <= now)
