"""`outlast verify`: whether logs keep their promises, and indexes agree with them."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import console, error_out, is_terminal, json_out, out
from outlast.cli.terminal.run import command
from outlast.errors import UnknownSession
from outlast.log.verify import Finding, verify_budgets
from outlast.log.verify import verify as verify_session
from outlast.log.verify.budget import BUDGET_ROW
from outlast.store import Store

REPAIRABLE = ("SNAPSHOT", "SLICES")
"""Findings about what a worker makes again from the log."""
NO_SUMS = ("BUDGET_INDEX", "UNREADABLE", "LOG_ENDS_EARLY")
"""Findings with which nobody can say what a session has used of budgets."""


@command
async def verify(
    session: Annotated[
        list[str] | None,
        typer.Argument(metavar="SESSION", help="Which sessions; all if none is named."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop wrong snapshots, and add up budgets anew.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Check that logs and indexes are sound.

    It folds each session's log from zero, checks every rule of the log, and compares all that is
    derived from it, and all budgets with what sessions have used of them. It writes nothing, except
    with --repair: then wrong snapshots are dropped, and the next worker makes them again from the
    log, and budgets are added up anew. It exits with 1 if anything is wrong, or is left wrong.

    Example: outlast verify --store sqlite:///copy.db
    """
    async with open_place(store) as app:
        names = session or [name async for name in all_sessions(app.store)]
        findings: list[Finding] = []
        with progress(len(names), is_shown=is_terminal() and not as_json) as advance:
            for name in names:
                try:
                    findings += await check(app.store, name, repair=repair)
                except UnknownSession:
                    if session:
                        raise  # else it was erased since it was listed
                advance()
        of_budgets = await check_budgets(app.store, findings, repair=repair)
        findings = [each for each in findings if each.code != BUDGET_ROW] + of_budgets
    show(findings, len(names), as_json=as_json)
    return 1 if findings else 0


async def check(store: Store, session_id: str, *, repair: bool) -> list[Finding]:
    """Return what is wrong with a session, after a repair if one is wanted and needed."""
    findings = await verify_session(store, session_id)
    if repair and any(finding.code in REPAIRABLE for finding in findings):
        await store.log.drop_snapshots(session_id)
        error_out(f"{session_id}: snapshots dropped; they are made again from the log")
        findings = await verify_session(store, session_id)
    return findings


async def check_budgets(store: Store, found: Sequence[Finding], *, repair: bool) -> list[Finding]:
    """Return what is wrong with budgets, after a repair if one is wanted, needed and possible."""
    findings = await verify_budgets(store)
    # The sums are made of what sessions have used: with one of these wrong they would be as well.
    is_possible = not any(each.code in NO_SUMS for each in found)
    if repair and findings and is_possible:
        mended = await store.budget.balance_budgets()
        error_out(f"{mended} budget{'' if mended == 1 else 's'} added up anew from what was used")
        findings = await verify_budgets(store)
    return findings


async def all_sessions(store: Store) -> AsyncIterator[str]:
    before: str | None = None
    while page := await store.listing.sessions(before=before, limit=500):
        for info in page:
            yield info.session_id
        before = page[-1].session_id


@contextmanager
def progress(total: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    """Give a function that says that one more is done."""
    if not is_shown:
        yield lambda: None
        return
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("sessions", total=total)
        yield lambda: bar.advance(task)


def show(findings: Sequence[Finding], sessions: int, *, as_json: bool) -> None:
    if as_json:
        json_out({"sessions": sessions, "findings": findings})
        return
    for finding in findings:
        place = f" at {finding.offset}" if finding.offset else ""
        lane = f" ({finding.lane})" if finding.lane not in ("", "main") else ""
        name = finding.session_id or "budgets"
        out(f"{name}{place}{lane}: {finding.code}: {finding.message}", "red")
    checked = f"{sessions} session{'' if sessions == 1 else 's'}"
    bad = len({finding.session_id for finding in findings if finding.session_id})
    if findings:
        count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
        out(f"{checked} verified: {count} in {bad} of them", "bold red")
    else:
        out(f"{checked} verified: all sound", "green")
