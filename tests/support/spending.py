"""What all sessions of a store have used and spent, by their logs and by what the store adds up.

Each check gives what is wrong, and holds once all sessions are at rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from msgspec.structs import asdict

from outlast import Outlast
from outlast.core import record as r
from outlast.core.amount import NOTHING, UNLIMITED, Amounts, BudgetKey, BudgetState
from outlast.core.record import NO_USAGE, Entry, UsageSum
from outlast.core.usage import date_of_day, day_of, used_by
from outlast.log.verify import verify, verify_budgets
from outlast.store import SessionInfo, Store, UsageFilter, UsageKey

COUNTED = ("model_calls", "tool_calls", "steps")
"""What a call reserves exactly; of the rest it may take more than was expected of it."""
GUESSED = ("tokens", "nano_usd")

Place = tuple[str, BudgetKey]
"""A budget, with its tenant."""


@dataclass(frozen=True)
class SessionLog:
    """A session with all of its log."""

    info: SessionInfo
    entries: tuple[Entry, ...]

    @property
    def charges(self) -> list[tuple[int, r.BudgetCharged]]:
        return [(e.at, e.record) for e in self.entries if isinstance(e.record, r.BudgetCharged)]

    @property
    def usage(self) -> list[tuple[int, r.UsageRecorded]]:
        return [(e.at, e.record) for e in self.entries if isinstance(e.record, r.UsageRecorded)]


@dataclass(frozen=True)
class Charge:
    """A reservation that has ended: what it was, what was spent of it, and from when to when."""

    since: int
    until: int
    reserved: Amounts
    spent: Amounts

    def over(self, what: str) -> int:
        """Return how much more was spent than reserved."""
        return max(0, int(getattr(self.spent, what)) - int(getattr(self.reserved, what)))


@dataclass(frozen=True)
class Spending:
    """All that is known."""

    logs: tuple[SessionLog, ...]
    lines: dict[UsageKey, dict[str, UsageSum]]
    states: dict[Place, BudgetState]

    def complaints(self) -> Iterator[str]:
        """Say all that is wrong."""
        yield from usage_is_what_was_recorded(self)
        yield from nothing_stays_reserved(self)
        yield from spent_is_what_was_charged(self)
        yield from no_budget_is_overspent(self)


async def spending_of(app: Outlast, tenant: str | None = None) -> Spending:
    """Look at all sessions of a store, or of a tenant."""
    store, wanted = app.store, UsageFilter(tenant=tenant)
    infos = await store.listing.sessions(tenant=tenant, limit=1000)
    logs = [SessionLog(info, tuple(await read_log(store, info.session_id))) for info in infos]
    places = {
        (log.info.tenant, key)
        for log in logs
        for _, charge in log.charges
        for key in charge.budgets
        if key.scope != "turn"
    }
    states = {
        (tenant, state.key): state
        for tenant, key in sorted(places)
        for state in await store.budget.find_budgets(tenant, [key])
    }
    lines = {key: await lines_by(store, key, wanted) for key in get_args(UsageKey)}
    return Spending(tuple(logs), lines, states)


async def findings_in(app: Outlast, spending: Spending) -> list[str]:
    """Verify all sessions, and the budgets that they share."""
    ids = [log.info.session_id for log in spending.logs]
    findings = [found for name in ids for found in await verify(app.store, name)]
    return [str(found) for found in (*findings, *await verify_budgets(app.store))]


async def read_log(store: Store, session_id: str) -> Sequence[Entry]:
    entries: list[Entry] = []
    cursor = 0
    while True:
        page = await store.log.read(session_id, cursor)
        entries += page.entries
        if page.cursor >= page.end:
            return entries
        cursor = page.cursor


async def lines_by(store: Store, key: UsageKey, wanted: UsageFilter) -> dict[str, UsageSum]:
    lines = await store.usage.by(key, wanted, limit=10_000)
    return {line.key: line.total for line in lines}


# Usage


def usage_is_what_was_recorded(spending: Spending) -> Iterator[str]:
    """By each key, what the store adds up is the sum of what the logs have."""
    for key, found in spending.lines.items():
        if (due := recorded_by(spending.logs, key)) != found:
            yield f"usage by {key} is {found}; by the logs it is {due}"


def recorded_by(logs: Sequence[SessionLog], key: UsageKey) -> dict[str, UsageSum]:
    """Add up all `usage.recorded`."""
    sums: dict[str, UsageSum] = {}
    for log in logs:
        for at, used in log.usage:
            names: dict[UsageKey, str] = {
                "session": log.info.session_id,
                "agent": log.info.agent,
                "tenant": log.info.tenant,
                "model": used.model,
                "principal": used.principal,
                "day": date_of_day(day_of(at)).isoformat(),
            }
            sums[names[key]] = sums.get(names[key], NO_USAGE) + used_by(used)
    return sums


# Budgets


def nothing_stays_reserved(spending: Spending) -> Iterator[str]:
    for (tenant, key), state in spending.states.items():
        if state.reserved:
            yield f"of {key.text} of {tenant} {state.reserved} stays reserved"
    for log in spending.logs:
        left = sum((charge.reserved for _, charge in log.charges), NOTHING)
        if left:
            yield f"{log.info.session_id} ({log.info.agent}) keeps {left} reserved"


def spent_is_what_was_charged(spending: Spending) -> Iterator[str]:
    """What the rows of budgets say is the sum of what the logs have."""
    for (tenant, key), state in spending.states.items():
        due = sum((e.spent for _, e in charges_to(spending, tenant, key)), NOTHING)
        if state.spent != due:
            yield f"of {key.text} of {tenant} {state.spent} is spent; by the logs it is {due}"


def no_budget_is_overspent(spending: Spending) -> Iterator[str]:
    """No more is spent than a budget allows and what the calls in flight took unexpectedly."""
    for (tenant, key), state in spending.states.items():
        limits, spent = asdict(state.terms.limits), asdict(state.spent)
        ended = reservations(spending, tenant, key)
        for what in (*COUNTED, *GUESSED):
            most = limits[what] + (overdraft(ended, what) if what in GUESSED else 0)
            if limits[what] != UNLIMITED and spent[what] > most:
                yield f"{key.text} of {tenant} allows {most} {what}, and {spent[what]} are spent"


def charges_to(
    spending: Spending, tenant: str, key: BudgetKey
) -> Iterator[tuple[SessionLog, r.BudgetCharged]]:
    for log in spending.logs:
        if log.info.tenant == tenant:
            yield from ((log, e) for _, e in log.charges if key in e.budgets)


def reservations(spending: Spending, tenant: str, key: BudgetKey) -> list[Charge]:
    """Return all reservations of a budget that have ended."""
    ended: list[Charge] = []
    for log in spending.logs:
        held: dict[str, tuple[int, Amounts]] = {}
        for at, e in log.charges if log.info.tenant == tenant else ():
            if key not in e.budgets:
                continue
            if e.hold:
                held[e.call_id] = at, e.hold.amounts
            elif e.call_id in held:
                since, reserved = held.pop(e.call_id)
                ended.append(Charge(since, at, reserved, e.spent))
    return ended


def overdraft(ended: Sequence[Charge], what: str) -> int:
    """Return the most by which calls that were in flight together may have been overdrawn."""
    largest = sorted((each.over(what) for each in ended), reverse=True)
    return sum(largest[: most_at_once(ended)])


def most_at_once(ended: Sequence[Charge]) -> int:
    """Return how many were in flight together at most."""
    # At one instant, beginnings go first: calls in flight are rather counted too often.
    steps = [(each.since, -1) for each in ended] + [(each.until, 1) for each in ended]
    now = most = 0
    for _, step in sorted(steps):
        now -= step
        most = max(most, now)
    return most
