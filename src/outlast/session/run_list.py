"""Lists runs: sessions of their own kind, in the words of runs.

Owns the filters and the form of a run in a list; one run by itself is in `run.py`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, get_args

from msgspec import Struct

from outlast.errors import InvalidInput
from outlast.session.run import OF_SESSION, RunStatus
from outlast.store import ListingStore, SessionInfo

RUN_STATUSES: tuple[str, ...] = get_args(RunStatus)


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run as it is listed. `Run.meta` has the rest: its input and output."""

    run_id: str
    workflow: str
    status: RunStatus
    tenant: str
    tags: Mapping[str, str] = {}
    created_at: datetime
    updated_at: datetime


async def list_runs(
    listing: ListingStore, status: RunStatus | None, limit: int, **sought: Any
) -> Sequence[RunSummary]:
    """Return the newest runs with a status, of all that are sought."""
    check_run_status(status)
    if status is None:
        found = await listing.sessions(kind="run", limit=limit, **sought)
        return [summary_of(info) for info in found]
    # Several statuses of sessions are one of runs: the newest of all of them are among the newest
    # of each.
    pages = await asyncio.gather(
        *(
            listing.sessions(kind="run", status=of_session, limit=limit, **sought)
            for of_session, of_run in OF_SESSION.items()
            if of_run == status
        )
    )
    newest = {info.session_id: info for page in pages for info in page}
    return [summary_of(newest[run_id]) for run_id in sorted(newest, reverse=True)[:limit]]


def check_run_status(status: Any) -> None:
    """Refuse what is no status of a run, nor None for any."""
    if status is not None and status not in RUN_STATUSES:
        raise InvalidInput(f"a run's status is one of {', '.join(RUN_STATUSES)}, not {status!r}")


def summary_of(info: SessionInfo) -> RunSummary:
    return RunSummary(
        run_id=info.session_id,
        workflow=info.agent,
        status=OF_SESSION[info.status],
        tenant=info.tenant,
        tags=info.tags,
        created_at=info.created_at,
        updated_at=info.updated_at,
    )
