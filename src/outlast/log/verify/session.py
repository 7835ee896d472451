"""Verifies one session: its log from zero, then everything that is derived from it.

A session that a worker runs meanwhile is read again until nothing was written during the
reading; one that never rests is checked by its log alone.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from msgspec.structs import replace

from outlast.core.amount import BudgetKey
from outlast.core.record import Entry
from outlast.errors import StoreCorrupt, StoreFromTheFuture, UnknownSession
from outlast.log.verify.budget import budget_name, left_for_children, wrong_own_budget
from outlast.log.verify.index import (
    Indexes,
    wrong_budgets,
    wrong_deliveries,
    wrong_requests,
    wrong_tokens,
    wrong_usage,
)
from outlast.log.verify.log import SessionLog
from outlast.log.verify.rule import Finding, Wrong
from outlast.log.verify.stored import (
    stuck,
    wrong_cursors,
    wrong_lane,
    wrong_load,
    wrong_session,
    wrong_size,
    wrong_slices,
)
from outlast.store import LaneInfo, Loaded, PermitInfo, SessionInfo, Store

TRIES = 5
ALL = 1_000_000_000
UNREADABLE = (StoreCorrupt, StoreFromTheFuture)


async def verify(store: Store, session_id: str) -> list[Finding]:
    """Return all that is wrong with a session: nothing, if it keeps its promises."""
    info = await find(store, session_id)
    try:
        return await look(store, info)
    except UnknownSession:  # it was erased meanwhile
        return []


async def look(store: Store, info: SessionInfo) -> list[Finding]:
    findings: list[Finding] = []
    for _ in range(TRIES):
        check = Verification(store, info)
        await check.run()
        info = await find(store, info.session_id)
        # Log and indexes are read one after the other: they can be compared only if nothing came
        # between.
        if info.end == check.info.end:
            return [*check.of_log, *check.of_indexes]
        # It never rested. Findings about the log by itself hold even so; those about indexes do
        # not.
        findings = check.of_log
    return findings


async def find(store: Store, session_id: str) -> SessionInfo:
    info = await store.listing.session(session_id)
    if info is None:
        raise UnknownSession(f"there is no session {session_id}", session=session_id)
    return info


class Verification:
    """One look at one session."""

    def __init__(self, store: Store, info: SessionInfo) -> None:
        self.info = info
        self.of_log: list[Finding] = []
        self.of_indexes: list[Finding] = []
        self._store = store
        self._permits: Sequence[PermitInfo] = ()

    async def run(self) -> None:
        loaded = await self._load()
        snapshots = (s for one in loaded.values() for s in (one.snapshot, one.slices))
        log = SessionLog(self.info.session_id, {s.offset for s in snapshots if s})
        indexes = Indexes(self.info.session_id, self.info.tenant, self.info.agent)
        try:
            async for entry in self._entries():
                log.add(entry)
                indexes.add(entry)
        except UNREADABLE as error:
            self.of_log = log.findings
            self._note_log("UNREADABLE", error.message, log.last.offset + 1 if log.last else 1)
            return
        self.of_log = log.findings
        if log.last is None or log.last.offset != self.info.end:
            end = log.last.offset if log.last else 0
            self._note_log("LOG_ENDS_EARLY", f"the log should go on to {self.info.end}", end)
        await self._compare(log, indexes, loaded)

    async def _load(self) -> dict[str, Loaded]:
        """Load every lane as a worker would."""
        loaded: dict[str, Loaded] = {}
        for lane in self.info.lanes:
            try:
                loaded[lane.lane] = await self._store.log.load(self.info.session_id, lane.lane)
            except UNREADABLE as error:
                self._note([("NOT_LOADABLE", error.message)], lane.lane)
        return loaded

    async def _entries(self) -> AsyncIterator[Entry]:
        cursor, limit = 0, 500
        while cursor < self.info.end:
            try:
                page = await self._store.log.read(self.info.session_id, cursor, limit)
            except UNREADABLE:
                if limit == 1:
                    raise
                limit = 1  # one commit at a time, up to the one that cannot be read
                continue
            for entry in page.entries:
                if entry.offset <= self.info.end:
                    yield entry
            if page.cursor <= cursor:
                return
            cursor = page.cursor

    async def _compare(
        self, log: SessionLog, indexes: Indexes, loaded: Mapping[str, Loaded]
    ) -> None:
        session_id, store = self.info.session_id, self._store
        self._note(wrong_session(self.info, log, indexes))
        self._note(wrong_deliveries(indexes, await store.listing.deliveries(session_id)))
        found = await store.listing.requests(session_id, open_only=False, limit=ALL)
        self._note(wrong_requests(indexes, found))
        self._note(wrong_tokens(indexes, await store.listing.tokens(session_id)))
        self._note(wrong_usage(indexes, await store.usage.rows(session_id)))
        self._note(wrong_budgets(indexes, await store.budget.budget_uses(session_id)))
        own = BudgetKey("session", session_id)
        rows = await store.budget.find_budgets(self.info.tenant, [own])
        self._note(wrong_own_budget(indexes.budgets.get(budget_name(own)), rows))
        self._note(wrong_cursors(log, await store.outbox.cursors(session_id, limit=ALL)))
        self._permits = await store.limit.permits(session_id)
        known = {lane.lane: lane for lane in self.info.lanes}
        for name in log.lanes.keys() | known.keys():
            self._compare_lane(name, known.get(name), log, indexes, loaded.get(name))
            if (lane := log.lanes.get(name)) and name in known:
                left = left_for_children(store, lane.state, known[name], indexes.children)
                self._note(await left, name)

    def _compare_lane(
        self,
        name: str,
        info: LaneInfo | None,
        log: SessionLog,
        indexes: Indexes,
        loaded: Loaded | None,
    ) -> None:
        lane = log.lanes.get(name)
        if info is None or lane is None:
            missing = "index" if info is None else "log"
            self._note([("LANE_INDEX", f"lane {name} is not in the {missing}")], name)
        elif not lane.is_broken:
            # The end of a session makes its other lanes ready: one that is has yet to look.
            ended_elsewhere = log.ended is not None and log.ended.lane != name
            has_yet_to_look = ended_elsewhere and info.ready_at is not None
            state = replace(lane.state, over="") if has_yet_to_look else lane.state
            self._note(
                wrong_lane(info, state, indexes.queued(name), indexes.failures.get(name)), name
            )
            self._note(wrong_size(info, lane), name)
            self._note(stuck(info, lane.state, self._permits), name)
            if loaded:
                self._note(wrong_load(loaded, lane.state, log), name)
                self._note(wrong_slices(loaded, log))

    def _note(self, wrongs: Iterator[Wrong] | list[Wrong], lane: str = "") -> None:
        for code, message in wrongs:
            finding = Finding(
                session_id=self.info.session_id, code=code, message=message, lane=lane
            )
            # A snapshot of slices is compared with each lane that has loaded it.
            if finding not in self.of_indexes:
                self.of_indexes.append(finding)

    def _note_log(self, code: str, message: str, offset: int) -> None:
        finding = Finding(
            session_id=self.info.session_id, code=code, message=message, offset=offset
        )
        self.of_log = [*self.of_log, finding]
