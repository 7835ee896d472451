"""Compares budgets with what sessions have reserved and spent of them.

A call is let in by the row of each budget that counts it. What each session has reserved and spent
by its log is in `index.py`; here the rows are held to that: a session's own one to the session's
log, and all of them to what all sessions have used, of which the store keeps a row each.
"""

from collections.abc import Iterator, Sequence

from outlast.core.amount import Amounts, BudgetKey, BudgetState
from outlast.core.budget import more_in_words
from outlast.core.lane import Lane
from outlast.core.name import REQUEST
from outlast.core.usage import date_of_day
from outlast.log.verify.rule import Finding, Wrong
from outlast.store import BudgetUse, LaneInfo, SessionInfo, Store

BUDGET_ROW = "BUDGET_ROW"


async def verify_budgets(store: Store) -> list[Finding]:
    """Return what is wrong with the rows of budgets by which calls are let in.

    Those that sessions share have no session to be found with, so `verify` does not look at them.
    """
    findings: list[Finding] = []
    for each in await store.budget.budget_mismatches():
        key = each.key
        name = budget_name(key) if key.scope == "session" else f"{budget_name(key)} ({each.tenant})"
        findings += (
            Finding(session_id=key.who if key.scope == "session" else "", code=code, message=text)
            for code, text in wrong_sums(name, each.reserved, each.spent, each.used)
        )
    return findings


def budget_name(key: BudgetKey) -> str:
    return f"{key.text}, {date_of_day(key.day)}" if key.day else key.text


def wrong_own_budget(use: BudgetUse | None, found: Sequence[BudgetState]) -> Iterator[Wrong]:
    """Compare a session's own budget with what its log says."""
    if found:
        [state] = found
        due = use or BudgetUse(state.key)
        yield from wrong_sums(budget_name(state.key), state.reserved, state.spent, due)
    elif use and (use.reserved or use.spent):
        yield from wrong_sums(budget_name(use.key), Amounts(), Amounts(), use)


def wrong_sums(name: str, reserved: Amounts, spent: Amounts, due: BudgetUse) -> Iterator[Wrong]:
    for what, found, wanted in (("reserved", reserved, due.reserved), ("spent", spent, due.spent)):
        if found != wanted:
            text = f"of {name} {said(found)} is {what}; by the logs it is {said(wanted)}"
            yield BUDGET_ROW, text


def said(found: Amounts) -> str:
    return more_in_words(found) if found else "nothing"


async def left_for_children(
    store: Store, lane: Lane, info: LaneInfo, children: dict[str, str]
) -> list[Wrong]:
    """Look for shares of children that have ended, and of which nothing will come back any more."""
    found: list[Wrong] = []
    if info.worker or info.ready_at is not None:  # what a child has used is about to be taken in
        return found
    for request_id in lane.holds:
        if request_id.startswith(REQUEST):
            child = await store.listing.session(children.get(request_id, ""))
            if is_over(child):
                found.append(
                    ("LEFT_RESERVED", f"{request_id} holds the share of a child that is over")
                )
    return found


def is_over(session: SessionInfo | None) -> bool:
    return session is None or bool(session.over)
