"""The topic `budget` in SQLite. See `outlast.store.budget` for the promises.

Amounts stand in a row as JSON, and are added up here: this transaction is the only one that writes.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec.structs import astuple, replace

from outlast.core.amount import (
    DAILY,
    NOTHING,
    Amounts,
    BudgetChange,
    BudgetKey,
    BudgetState,
    BudgetTerms,
    raised,
)
from outlast.core.budget import lacking
from outlast.core.usage import day_of
from outlast.store import BudgetInfo, BudgetMismatch, BudgetUse
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.database import Database, Row


class SqliteBudget:
    """See `outlast.store.BudgetStore`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def newest_budget(self) -> int:
        row = await self._access.read(lambda db: db.one("newest_budget"))
        return int(row[0]) if row else 0

    async def find_budgets(self, tenant: str, keys: Sequence[BudgetKey]) -> Sequence[BudgetState]:
        return await self._access.read(lambda db: [*states(db, tenant, keys)])

    async def set_budget(
        self, tenant: str, key: BudgetKey, terms: BudgetTerms | None, *, expected: int | None
    ) -> BudgetInfo | None:
        work = partial(set_budget, tenant=tenant, key=key, terms=terms, expected=expected)
        (info,) = await self._access.write(work)
        return info if isinstance(info, BudgetInfo) else None

    async def list_budgets(
        self, tenant: str | None = None, *, after: BudgetInfo | None = None, limit: int = 100
    ) -> Sequence[BudgetInfo]:
        wanted = {
            "tenant": tenant,
            "after_tenant": after.tenant if after else None,
            "after_scope": after.key.scope if after else None,
            "after_who": after.key.who if after else None,
            "after_day": after.key.day if after else None,
            "limit": limit,
        }
        return await self._access.read(
            lambda db: [today(db, row) for row in db.all("list_budgets", wanted)]
        )

    async def budget_uses(self, session_id: str) -> Sequence[BudgetUse]:
        key = {"session_id": session_id}
        return await self._access.read(
            lambda db: [
                BudgetUse(BudgetKey(scope, who, day), amounts(reserved), amounts(spent))
                for scope, who, day, reserved, spent in db.all("budget_uses", key)
            ]
        )

    async def budget_mismatches(self) -> Sequence[BudgetMismatch]:
        return await self._access.read(mismatches)

    async def balance_budgets(self) -> int:
        (mended,) = await self._access.write(balance)
        return int(mended)


def amounts(text: str) -> Amounts:
    return Amounts(*msgspec.json.decode(text, type=list[int]))


def text_of(found: Amounts) -> str:
    return msgspec.json.encode(astuple(found)).decode()


def place_of(tenant: str, key: BudgetKey) -> dict[str, object]:
    return {"tenant": tenant, "scope": key.scope, "who": key.who, "day": key.day}


def find(db: Database, tenant: str, key: BudgetKey) -> BudgetState | None:
    """Return how a budget stands; one of a day by its daily terms, if it has no row yet."""
    row = db.one("budget", place_of(tenant, key))
    # A day's row is made by the first commit of that day; until then the daily terms are all there
    # is.
    if row is None and key.day > 0:
        daily = find(db, tenant, replace(key, day=DAILY))
        return BudgetState(key, daily.terms) if daily else None
    if row is None:
        return None
    terms, reserved, spent, returns = row
    if not terms:
        return None
    found = msgspec.json.decode(terms, type=BudgetTerms)
    return BudgetState(key, found, amounts(reserved), amounts(spent), returns)


def states(db: Database, tenant: str, keys: Iterable[BudgetKey]) -> Iterator[BudgetState]:
    for key in keys:
        if state := find(db, tenant, key):
            yield state
        elif was_taken_away(db, tenant, key):
            row = db.one("budget_sums", place_of(tenant, key))
            assert row is not None
            yield BudgetState(key, BudgetTerms(), amounts(row[0]), amounts(row[1]))


def was_taken_away(db: Database, tenant: str, key: BudgetKey) -> bool:
    """Say whether a session has no budget any more, whatever its log and its agent say."""
    row = db.one("budget_revision", place_of(tenant, key)) if key.scope == "session" else None
    return bool(row and row[0])


def today(db: Database, row: Row) -> BudgetInfo:
    tenant, scope, who, day, terms, revision, reserved, spent = row
    info = BudgetInfo(
        tenant=tenant,
        key=BudgetKey(scope, who, day),
        terms=msgspec.json.decode(terms, type=BudgetTerms) if terms else None,
        revision=revision,
        reserved=amounts(reserved),
        spent=amounts(spent),
    )
    # The row of the terms has no sums: these are in the row of each day.
    if day != DAILY:
        return info
    now = find(db, tenant, replace(info.key, day=day_of(db.clock.now())))
    return replace(info, reserved=now.reserved, spent=now.spent) if now else info


def set_budget(
    db: Database, tenant: str, key: BudgetKey, terms: BudgetTerms | None, expected: int | None
) -> BudgetInfo | None:
    place = place_of(tenant, key)
    row = db.one("budget_revision", place)
    if expected is not None and expected != (row[0] if row else 0):
        return None
    text = msgspec.json.encode(terms).decode() if terms else ""
    db.run("set_budget", place | {"terms": text})
    wake(db, tenant, key)
    if key.day == DAILY:
        day = replace(key, day=day_of(db.clock.now()))
        # Today's row has the terms that the day began with.
        db.run("set_terms", place_of(tenant, day) | {"terms": text})
        wake(db, tenant, day)
    found = db.one("budget_info", place)
    assert found is not None
    return today(db, found)


def mismatches(db: Database) -> list[BudgetMismatch]:
    return [
        BudgetMismatch(
            tenant,
            key := BudgetKey(scope, who, day),
            amounts(reserved),
            amounts(spent),
            BudgetUse(key, amounts(used_reserved), amounts(used_spent)),
        )
        for tenant, scope, who, day, reserved, spent, used_reserved, used_spent in db.all(
            "budget_mismatches"
        )
    ]


def balance(db: Database) -> int:
    found = mismatches(db)
    for each in found:
        state = find(db, each.tenant, each.key)
        db.run(
            "change_budget",
            place_of(each.tenant, each.key)
            | {
                "terms": msgspec.json.encode(state.terms).decode() if state else "",
                "reserved": text_of(each.used.reserved),
                "spent": text_of(each.used.spent),
                "returns": 1,
            },
        )
        wake(db, each.tenant, each.key)
    return len(found)


# The part of a commit


def has_no_room(db: Database, tenant: str, changes: Sequence[BudgetChange]) -> bool:
    """Whether a commit asks for more of a budget than is free. Time that passed is not asked."""
    for change in changes:
        if not change.is_asking:
            continue
        state = find(db, tenant, change.key)
        # A session's own budget comes with its start, and has no row before its first commit.
        if state is None and change.terms and not was_taken_away(db, tenant, change.key):
            state = BudgetState(change.key, change.terms)
        # Time has passed whether it is free or not: refusing the record of it would stop the lane
        # for good.
        if state and lacking(state.free, replace(change.reserved + change.spent, wall_ms=0)):
            return True
    return False


def has_returned(db: Database, tenant: str, seen: Sequence[tuple[BudgetKey, int]]) -> bool:
    """Whether something has come back to a budget since a lane looked that now waits for it."""
    for key, returns in seen:
        state = find(db, tenant, key)
        if (state.returns if state else 0) != returns:
            return True
    return False


def change_budgets(db: Database, tenant: str, sid: int, changes: Sequence[BudgetChange]) -> None:
    """Write what a commit changes in budgets, and wake the lanes that wait for what comes back."""
    for change in changes:
        place = place_of(tenant, change.key)
        state = find(db, tenant, change.key)
        terms = state.terms if state else None
        if terms is None and change.terms and not was_taken_away(db, tenant, change.key):
            terms = change.terms
        # Raised in the store as well as in the log: other sessions go by this row.
        if change.raised and terms:
            terms = replace(terms, limits=raised(terms.limits, change.raised))
        # Whatever does not ask may give something back: those that wait look again.
        returns = not change.is_asking
        before = db.one("budget_sums", place)
        reserved, spent = (amounts(before[0]), amounts(before[1])) if before else (NOTHING, NOTHING)
        db.run(
            "change_budget",
            place
            | {
                "terms": msgspec.json.encode(terms).decode() if terms else "",
                "reserved": text_of(reserved + change.reserved),
                "spent": text_of(spent + change.spent),
                "returns": int(returns),
            },
        )
        add_use(db, sid, tenant, BudgetUse(change.key, change.reserved, change.spent))
        if returns:
            wake(db, tenant, change.key)


def add_use(db: Database, sid: int, tenant: str, use: BudgetUse) -> None:
    place = place_of(tenant, use.key) | {"sid": sid}
    row = db.one("budget_use", place)
    reserved, spent = (amounts(row[0]), amounts(row[1])) if row else (NOTHING, NOTHING)
    sums = {"reserved": text_of(reserved + use.reserved), "spent": text_of(spent + use.spent)}
    db.run("put_budget_use", place | sums)


def await_budgets(
    db: Database, tenant: str, lid: int, seen: Sequence[tuple[BudgetKey, int]]
) -> None:
    for key, _ in seen:
        db.run("await_budget", place_of(tenant, key) | {"lid": lid})


def wake(db: Database, tenant: str, key: BudgetKey) -> None:
    """Make the lanes ready that wait for a budget."""
    for lid, session_id in db.all("budget_waiters", place_of(tenant, key)):
        db.run("wake_lane", {"lid": lid, "now": db.clock.now()})
        db.tell(session_id, arrived=True)
    db.run("forget_waiters", place_of(tenant, key))


def erase_uses(db: Database, tenant: str, sid: int, session_id: str) -> None:
    """Give back what an erased session has reserved; what it has spent stays, without it."""
    for scope, who, day, reserved, spent in db.all("budget_uses", {"session_id": session_id}):
        key = BudgetKey(scope, who, day)
        # It goes with the session, below.
        if scope == "session":
            continue
        held = amounts(reserved)
        place = place_of(tenant, key)
        before = db.one("budget_sums", place)
        if held and before:
            left = text_of(amounts(before[0]) - held)
            db.run("return_to_budget", place | {"reserved": left})
            wake(db, tenant, key)
        # To those of all erased sessions: what a budget has spent stays the sum of its uses.
        add_use(db, 0, tenant, BudgetUse(key, NOTHING, amounts(spent)))
    db.run("erase_budget_uses", {"sid": sid})
    db.run("erase_budget_waiters", {"sid": sid})
    db.run("erase_session_budget", {"session_id": session_id})
