"""What Holdfast asks of a database, in sentences.

A store keeps the logs of sessions and the indexes beside them, lets one worker at a
time own a lane, and never shows what it could still take back. Every method is
atomic: it happens whole or not at all, and what it returned has happened.
`holdfast.testing.StoreContract` holds any implementation to these sentences.

Instants are milliseconds since the epoch. An arrival is an entry that somebody other
than a lane's owner added: the session's start, a delivery, a cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from msgspec import Struct

from holdfast.core.index import NO_CHANGES, Index
from holdfast.core.limit import Bound
from holdfast.core.record import FORMAT, AnyRecord, Entry, NewOutlet
from holdfast.errors import HoldfastError, QueueFull

NO_LIMITS: Mapping[str, int] = {}
WAIT_THEIR_TURN = ("message", "retry")
"""The kinds of deliveries that wait in a lane's queue; the others are taken ahead of them."""


def queue_full(kind: str, whose: str, most: int) -> QueueFull:
    """Return what a message is refused with that finds no room in its queue."""
    return QueueFull(
        f"the queue of {kind} {whose} is full: {most} messages wait in it; send this again later",
        most=most,
        **{kind: whose},
    )


# What goes in


class Admission(Struct, frozen=True, gc=False, kw_only=True):
    """One thing that arrives for a lane.

    `records` are the arrivals to add: `session.started` first where the session is new,
    then `delivery.queued` or `cancel.requested`. The same `dispatch_id` in the same `scope` is
    the same admission if its `fingerprint` is the same too, and a conflict otherwise. With
    `most_queued` a message is refused when so many wait in its session, and likewise in all
    sessions of its tenant; 0 is any number. A new session gets its `outlets` with it, and knows
    the `parent` that started it, if one did.
    """

    tenant: str
    session_id: str
    lane: str
    delivery_id: str
    kind: str
    records: tuple[AnyRecord, ...]
    at: int
    dispatch_id: str
    scope: str
    fingerprint: str
    new: bool = False
    agent: str = ""
    mode: str = ""
    token: str = ""
    request_id: str = ""
    most_queued: int = 0
    most_queued_of_tenant: int = 0
    outlets: tuple[NewOutlet, ...] = ()
    parent: str = ""


class Receipt(Struct, frozen=True, gc=False, kw_only=True):
    """Proof that a delivery is in the log. `position` counts what is queued before it."""

    session_id: str
    lane: str
    delivery_id: str
    offset: int
    position: int = 0
    duplicate: bool = False


class Snapshot(Struct, frozen=True, gc=False):
    """A fold's result up to and with `offset`, made by the rules of `fold`."""

    offset: int
    fold: int
    data: bytes


class Effect(Struct, frozen=True, gc=False):
    """A call's hold on an idempotency key in a scope.

    `state`: held (by a call that has begun), done (with its outcome in `value`), unknown (it
    was interrupted), or free (it failed for certain, so another may try).
    """

    scope: str
    key: str
    session_id: str
    call_id: str
    state: str = "held"
    value: str = ""


class Commit(Struct, frozen=True, gc=False, kw_only=True):
    """What a lane's owner adds to the log, all of it or nothing.

    `number` is the lane's commit number as the owner knows it, `seen` the offset of the
    last arrival that it has folded. `ready_at` is when the lane wants to be claimed again
    should its owner be gone: an instant, or None for not before something arrives. With
    `release` the lane has no owner afterwards. `effects` are holds to take or to change:
    one that another call has, and that is not free, refuses the commit. `frees` are calls
    that give back their permits, or wait for none any more. With `awaits_permit` the lane
    rests because a call of it waits for a permit: if there is a place for one now, the
    commit is refused as if that had arrived. `slices_seen`, where given, is the offset of the
    last change of slices that the owner knows: a newer one refuses the commit. `wait` names
    what a lane that rests waits for. With `tells` the session's outlets have something to tell.
    `sends` arrive at other sessions with this commit; one that cannot be admitted is dropped.
    """

    session_id: str
    lane: str
    worker: str
    fence: int
    number: int
    seen: int
    at: int
    records: tuple[AnyRecord, ...]
    body: bytes
    index: Index = NO_CHANGES
    status: str = "running"
    turn: str = ""
    ready_at: int | None = 0
    release: bool = False
    snapshot: Snapshot | None = None
    slices: Snapshot | None = None
    slices_seen: int | None = None
    effects: tuple[Effect, ...] = ()
    frees: tuple[str, ...] = ()
    awaits_permit: bool = False
    wait: str = ""
    tells: bool = False
    sends: tuple[Admission, ...] = ()


class Wish(Struct, frozen=True, gc=False, kw_only=True):
    """A call's wish to begin, made by the lane's owner; `bounds` in the order to take them in."""

    session_id: str
    lane: str
    worker: str
    fence: int
    call_id: str
    bounds: tuple[Bound, ...]


class WorkerInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A worker as the registry knows it.

    It says of itself which `agents` it serves, on lanes whose name fits one of the patterns in
    `lanes` (none: on all), and how many at once; `tally` is what it has counted so far, as JSON
    text. The store adds when it last heard of it, until when it is taken for alive, how many
    lanes it owns now and whether it was asked to drain.
    """

    worker: str
    host: str
    pid: int
    started_at: int
    version: str = ""
    concurrency: int = 0
    agents: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    tally: str = ""
    seen_at: int = 0
    lease_until: int = 0
    held: int = 0
    draining: bool = False


class KeyInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A key to the server: whose it is, what it opens, and a digest of its secret."""

    key_id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    digest: str
    created_at: int
    revoked_at: int = 0


class Secret(Struct, frozen=True, gc=False, kw_only=True):
    """Something sealed that only its owner can open; `expires_at` 0: it stays."""

    tenant: str
    name: str
    data: bytes
    version: int
    expires_at: int = 0


class ScheduleInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A schedule as it stands: when it is next due, and what it last started.

    `fingerprint` tells one meaning of the same name from another.
    """

    name: str
    fingerprint: str
    next_at: int | None
    paused: bool = False
    fired_at: int = 0
    session_id: str = ""


class DeadLetter(Struct, frozen=True, gc=False, kw_only=True):
    """An event that an outlet could not tell of in time, and why."""

    session_id: str
    tenant: str
    outlet: str
    offset: int
    type: str
    error: str
    at: int


# What comes out


class Committed(Struct, frozen=True, gc=False):
    """The commit is in the log from `first_offset` on; `arrivals` came since `seen`."""

    first_offset: int
    at: int
    arrivals: tuple[Entry, ...] = ()


class Refused(Struct, frozen=True, gc=False):
    """Nothing of the commit was written.

    `reason`: `lease_lost` (another worker owns the lane, or the commit's number is not the
    lane's), `arrivals` (it would have parked the lane, or closed a request, past what
    arrived), `slices_changed` (it was made of slices that are older than the newest),
    `effect_taken` (another call holds the idempotency key in `effect`), or `token_taken`
    (another living session has the continuation token).
    """

    reason: str
    arrivals: tuple[Entry, ...] = ()
    effect: Effect | None = None


class Permit(Struct, frozen=True, gc=False):
    """Whether a call may begin. If not, when to ask again; None: when its lane gets ready."""

    granted: bool
    again_at: int | None = None


class Claim(Struct, frozen=True, gc=False):
    """A lane that the worker owns from now on, under this fence.

    `permits` are its calls that hold permits or wait for some, and `now` is the store's own time.
    """

    session_id: str
    tenant: str
    lane: str
    agent: str
    fence: int
    number: int
    last_arrival: int
    permits: tuple[str, ...] = ()
    now: int = 0


class Loaded(Struct, frozen=True, gc=False):
    """What a fold needs: the newest snapshots with today's fold version, and what follows.

    `entries` are those of the lane, and the slice changes and ends of the whole session,
    after the offset asked for, or after the lane's snapshot (whose offset is then the
    start). `slices` stands likewise for the session's slices.
    """

    snapshot: Snapshot | None
    slices: Snapshot | None
    entries: tuple[Entry, ...]
    tail_bytes: int
    last_at: int = 0


class Page(Struct, frozen=True, gc=False):
    """Entries in order, and the cursor after them. `end` is the log's last offset."""

    entries: tuple[Entry, ...]
    cursor: int
    end: int


class LaneInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A lane as it is listed. `worker` owns it, or did until its lease ran out."""

    session_id: str
    tenant: str = ""
    agent: str = ""
    lane: str
    status: str
    turn: str
    worker: str
    fence: int
    ready_at: int | None
    queued: int


class SessionInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A session as it is listed. `status` is that of its liveliest lane, or how it ended.

    `seen_at` is the store's own time at which it was so: what its lanes are due by.
    """

    session_id: str
    tenant: str
    agent: str
    mode: str
    status: str
    created_at: int
    updated_at: int
    end: int
    over: str = ""
    token: str = ""
    parent: str = ""
    lanes: tuple[LaneInfo, ...] = ()
    seen_at: int = 0


class DeliveryInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A delivery: queued, running, joined or settled. Offsets say where in the log."""

    session_id: str
    lane: str
    delivery_id: str
    kind: str
    state: str
    outcome: str
    turn: str
    offset: int
    settled_offset: int


class RequestInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A request to a human. `data` is its `input.requested` record as JSON text."""

    request_id: str
    session_id: str
    lane: str
    kind: str
    state: str
    expires_at: int
    data: str
    tenant: str = ""
    agent: str = ""


class Outlet(Struct, frozen=True, gc=False, kw_only=True):
    """A cursor over a session's log, from which its events are told to somebody outside.

    All up to `cursor` was told or given up. `told` counts how often there was something new;
    `tries` are the failed ones since the cursor last moved, and `error` is the last of them.
    `held` counts how often it was given out: who holds an older one settles nothing. Behind a #
    in its `url` stands the secret that its caller brought, if one was brought: that part is not in
    the log.
    """

    session_id: str
    tenant: str
    agent: str
    name: str
    url: str
    events: tuple[str, ...]
    cursor: int = 0
    told: int = 0
    held: int = 0
    due_at: int | None = None
    tries: int = 0
    error: str = ""

    @property
    def address(self) -> str:
        return self.url.partition("#")[0]

    @property
    def secret(self) -> str:
        return self.url.partition("#")[2]


class LaneCount(Struct, frozen=True, gc=False):
    """How many lanes have a status, and wait for the same, if they rest within a turn."""

    status: str
    wait: str
    count: int


class Census(Struct, frozen=True, gc=False):
    """The lanes of living sessions by what they do, how many messages wait in all, and since
    when the lane has been ready that nobody has claimed for longest."""

    lanes: tuple[LaneCount, ...]
    queued: int
    oldest_ready_at: int | None


class PermitInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A call that holds a permit under a limit, or waits for one with so many ahead of it."""

    name: str
    session_id: str
    lane: str
    call_id: str
    held: bool
    ahead: int = 0


class Renewal(Struct, frozen=True, gc=False):
    """Whether the worker was still known alive, and whether somebody asked it to drain."""

    alive: bool
    draining: bool = False


class Lease(Protocol):
    """A worker's hold on life. Methods may be called from any thread."""

    def renew(self, tally: str = "") -> Renewal:
        """Extend the lease by its full length, and say what became of the worker meanwhile.

        A `tally` that is not empty takes the place of what the worker had counted before.
        """
        ...

    def release(self) -> None:
        """Give up the lease and all signs of life: the worker has stopped."""
        ...


class Transaction(Protocol):
    """A database transaction that a tool shares with the record of its outcome."""

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return the number of rows that it changed."""
        ...

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""
        ...

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Run a query and return its first row, or None."""
        ...

    @property
    def raw(self) -> Any:
        """The driver's own connection."""
        ...

    async def commit(self, commit: Commit) -> Committed | Refused:
        """Write the commit in this transaction and end it; refused, all is rolled back."""
        ...


class Store(Protocol):
    """A database that keeps Holdfast's promises."""

    async def migrate(self) -> None:
        """Bring the schema up to date, or refuse.

        A store of a newer or unknown version raises StoreFromTheFuture, one that cannot be
        read StoreCorrupt; in both cases nothing was read or written beyond that finding.
        Any number of processes may call this at once.
        """
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of everything. Closing twice is no error."""
        ...

    async def admit(self, admissions: Sequence[Admission]) -> Sequence[Receipt | HoldfastError]:
        """Add each arrival to its lane's inbox, and say for each what became of it.

        A repeated dispatch returns the first receipt, marked as duplicate; with other
        content it is DispatchConflict, and of a session that was erased it is SessionErased.
        A new session, its first delivery, its token and its outlets are one admission; a token
        in use is TokenTaken. A session that is over is SessionOver, one that does not exist
        UnknownSession. An answer closes its request in the same transaction: to a closed or
        expired one it is RequestClosed, to one that never was UnknownRequest. A message to a
        queue that is full is QueueFull. A cancel that names no turn is given the turn that is
        open at its place in the log. Each admitted arrival makes its lane ready at once.
        """
        ...

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        """Register a worker as alive for `lease` milliseconds, and say so visibly if possible."""
        ...

    async def find_dead(self) -> Sequence[str]:
        """Look for workers that are visibly dead, and free their lanes at once.

        A worker is dead when its sign of life is missing twice, 300 ms apart, seen by this
        store; whose sign cannot be seen is left to its lease.
        """
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers whose lease has not run out, oldest first."""
        ...

    async def drain(self, worker: str) -> bool:
        """Ask a living worker to hand back its lanes and leave; say whether there is one.

        It is told when it next renews its lease, and hinted at before if possible.
        """
        ...

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        agents: Sequence[str] | None = None,
        version: int = FORMAT,
        lanes: Sequence[str] | None = None,
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Sequence[Claim]:
        """Give up to `limit` lanes to the worker: ready, and with no living owner.

        Each claim raises the lane's fence. Lanes that the worker owns already and does not
        name in `held` are handed out again, under a new fence. Lanes of other agents than
        `agents`, whose name fits none of the patterns in `lanes` (`*` is any text), or with
        records of a newer format than `version`, are left alone. Of an agent in `most` no
        more lanes than that are owned by living workers afterwards, unless they were before.
        A tenant with fewer lanes at work comes before one with more, counting those that are
        given; then those ready for longest. No record is written. A worker whose own lease has
        run out gets nothing: it would take from others what they would take back.
        """
        ...

    async def acquire(self, wishes: Sequence[Wish]) -> Sequence[Permit | Refused]:
        """Let calls begin as far as their limits allow, in the order in which they asked.

        A call that may begin holds its permits until a commit frees them, whoever owns its
        lane by then; asked again, it is granted again. One that may not is in the queue of
        the first limit that has no place, once, and keeps the permits of those before it. A
        permit that is given back makes the lanes ready whose calls have a place then. A wish
        by anybody but the lane's owner is refused as `lease_lost`.
        """
        ...

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        """Return who holds permits and who waits for some, by limit, in their order."""
        ...

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        """Write each commit whole or not at all, and say which for each.

        A commit whose fence or number is no longer the lane's is refused by itself; the
        others are written. One that parks or releases is refused when something arrived
        that it has not seen. Offsets rise by one per session without gaps; `at` never
        decreases. A commit repeated after a lost acknowledgement is found to have landed.
        One that ends the session makes its other lanes ready, and counts as arrived for them.
        When this returns, what was written survives the loss of power.
        """
        ...

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for a tool's own statements; leaving it without commit undoes all.

        Nothing else is written through this store while it is open, and after `limit`
        seconds it is rolled back and its further use raises.
        """
        ...

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        """Return what is needed to fold the lane: from its snapshot on, or after an offset."""
        ...

    async def read(self, session_id: str, after: int, limit: int = 500) -> Page:
        """Return the entries after a cursor, about `limit` of them, whole commits only.

        A cursor beyond the end is CursorAhead; an unknown session is UnknownSession.
        """
        ...

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> Page:
        """Return the last entries before an offset, oldest first; the cursor is their start."""
        ...

    async def session(self, session_id: str) -> SessionInfo | None:
        """Return a session with its lanes, or None."""
        ...

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        """List sessions, newest first, those older than the session `before`."""
        ...

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        worker: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        """List lanes: those of the newest session first, and by name within a session.

        `after` is the session and the name of the lane to go on behind.
        """
        ...

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None: ...

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        """Return all deliveries of a session in the order of their arrival."""
        ...

    async def request(self, request_id: str) -> RequestInfo | None: ...

    async def requests(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        after: str | None = None,
        open_only: bool = True,
        limit: int = 500,
    ) -> Sequence[RequestInfo]:
        """List requests, oldest first, those behind the request `after`."""
        ...

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        """Return the living session that a continuation token leads to.

        Without `living`, the last session that had it, over or not.
        """
        ...

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        """Return a session's tokens, oldest first, and whether each still leads to it."""
        ...

    async def effect(self, scope: str, key: str) -> Effect | None:
        """Return who holds an idempotency key in a scope, if anybody."""
        ...

    async def erase(self, session_id: str) -> bool:
        """Take a session away with all that is known of it, and say whether there was one.

        Its log, deliveries, requests, tokens, slices, permits, idempotency keys and outlets are
        gone, and values that no other session's log points at. Whoever owns a lane of it is
        refused from now on. Two things stay, without content: the names of its dispatches (see
        `admit`), and its holds on idempotency keys that other sessions share, as `unknown`. The
        sessions that it started are doomed.
        """
        ...

    async def doomed(self, limit: int = 100) -> Sequence[str]:
        """Return sessions that are to be erased, since what started them was; oldest first."""
        ...

    async def census(self) -> Census:
        """Count what all lanes of sessions that are not over do at this moment."""
        ...

    async def add_key(self, key: KeyInfo) -> None:
        """Keep a key."""
        ...

    async def key(self, key_id: str) -> KeyInfo | None:
        """Return a key, revoked or not."""
        ...

    async def keys(self, tenant: str | None = None) -> Sequence[KeyInfo]:
        """List keys, oldest first, the revoked ones too."""
        ...

    async def revoke_key(self, key_id: str, at: int) -> bool:
        """Revoke a key for good, and say whether there is one; its first revocation stands."""
        ...

    async def keep_secret(self, secret: Secret, *, expected: int | None) -> bool:
        """Keep a secret if there is none yet, or in the place of the version `expected`.

        Says whether it was kept. One that has expired is as if it were not there.
        """
        ...

    async def secret(self, tenant: str, name: str) -> Secret | None:
        """Return a secret as it was kept."""
        ...

    async def drop_secret(self, tenant: str, name: str) -> bool:
        """Forget a secret, and say whether there was one."""
        ...

    async def hold(self, name: str, holder: str, length: int) -> bool:
        """Take hold of a name for `length` milliseconds, unless another has it; say whether.

        Who has it already has it for that much longer.
        """
        ...

    async def let_go(self, name: str, holder: str) -> None:
        """Give up the hold of a name, if it is this holder's."""
        ...

    async def arm_schedule(self, schedule: ScheduleInfo) -> None:
        """Add a schedule. One of that name stays as it is, unless its fingerprint differs:
        then all is as given but whether it is paused."""
        ...

    async def schedules(self) -> Sequence[ScheduleInfo]:
        """List schedules by name."""
        ...

    async def advance_schedule(
        self, name: str, seen: int | None, *, next_at: int | None, fired_at: int, session_id: str
    ) -> bool:
        """Move a schedule on if it is still due at `seen`, and say whether it was."""
        ...

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        """Pause a schedule or let it go on, and say whether there is one."""
        ...

    async def drop_schedule(self, name: str) -> bool:
        """Forget a schedule, and say whether there was one."""
        ...

    async def take_outlets(self, limit: int, hold: int) -> Sequence[Outlet]:
        """Give out outlets that are due and that nobody holds, the longest due first.

        Nobody else is given them for `hold` milliseconds, unless they are settled before.
        """
        ...

    async def settle_outlet(
        self,
        outlet: Outlet,
        *,
        cursor: int,
        again_at: int | None,
        tries: int = 0,
        error: str = "",
        dead: Sequence[DeadLetter] = (),
    ) -> bool:
        """Move an outlet's cursor and give it back, with what could not be told.

        It is due again at `again_at`; None: when there is something new, which may have come
        since it was taken. Nothing happens if it was given to somebody else meanwhile; returns
        whether it was still ours.
        """
        ...

    async def outlets(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        failing_only: bool = False,
        limit: int = 100,
    ) -> Sequence[Outlet]:
        """List outlets of the newest session first, by name within a session."""
        ...

    async def next_due_at(self) -> int | None:
        """Return when the next outlet is due, held or not; None if there is nothing to tell."""
        ...

    async def dead_letters(
        self, *, tenant: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """List what could not be told, newest first."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return what this object has counted: `groups`, its transactions that wrote something
        for others, and `grouped`, what was asked for in them."""
        ...

    async def next_ready_at(self, after: int) -> int | None:
        """Return the first instant after the given one at which an unowned lane gets ready."""
        ...

    def listen(
        self, heard: Callable[[str, bool], None], session_id: str = ""
    ) -> Callable[[], None]:
        """Call `heard(session_id, arrived)` on this event loop soon after anything is written.

        With a `session_id` only what is written to that session is heard of. `arrived` says
        whether something came into an inbox or a lane was given back. A hint, not a promise:
        it may come late, twice, for nothing (with an empty id) or not at all. Returns a
        function that stops it.
        """
        ...
