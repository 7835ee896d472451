"""The past of a run, read from its log: its steps, and what another run may begin with.

Reads committed entries only. What a step is known by is told in `agents/runtime/step.py`.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from outlast.agents.runtime.json_value import from_json
from outlast.core import record as r
from outlast.core.fold import fold_all
from outlast.core.fold_wait import WITHDRAWN
from outlast.core.instant import date_of
from outlast.core.lane import Lane, OpenCall
from outlast.core.name import is_wait
from outlast.core.undo import UNDO_FAILED, UNDO_SCOPE
from outlast.errors import NothingToRetry
from outlast.session.start import NewSession
from outlast.store import SessionInfo, Store

StepStatus = Literal["running", "retrying", "completed", "failed", "interrupted"]


class RunStep(Struct, frozen=True, kw_only=True):
    """A step of a run.

    `name` is what it is known by: its scope, its name or function, and how many of that there were.
    One that was simply done again when it was cut off has no `started_at`.
    """

    name: str
    status: StepStatus
    attempt: int = 1
    value: Any = None
    error: r.Failure | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


async def entries_of(store: Store, session_id: str) -> AsyncIterator[r.Entry]:
    cursor = 0
    while True:
        page = await store.log.read(session_id, cursor)
        for entry in page.entries:
            yield entry
        if not page.entries:
            return
        cursor = page.entries[-1].offset


async def read_steps(store: Store, session_id: str) -> Sequence[RunStep]:
    """Return the steps of a run, in the order in which they began."""
    steps: dict[str, RunStep] = {}
    async for entry in entries_of(store, session_id):
        e, at = entry.record, date_of(entry.at)
        match e:
            case r.ToolStepStarted():
                before = steps.get(e.name)
                # A further attempt is at the same step, which began with the first.
                began = before.started_at if before and before.started_at else at
                steps[e.name] = RunStep(
                    name=e.name, status="running", attempt=e.attempt, started_at=began
                )
            # The same record keeps what else is done once, such as which branch came first.
            case r.ToolStepRecorded() if not is_wait(e.name) and "step:" in e.name:
                before = steps.get(e.name) or RunStep(name=e.name, status="running")
                value = from_json(e.value)
                steps[e.name] = replace(before, status="completed", value=value, ended_at=at)
            case r.ToolStepFailed():
                before = steps.get(e.name) or RunStep(name=e.name, status="running")
                status: StepStatus = "interrupted" if e.interrupted else "failed"
                steps[e.name] = replace(
                    before,
                    status="retrying" if e.again else status,
                    attempt=e.attempt,
                    error=e.error,
                    ended_at=None if e.again else at,
                )
    return list(steps.values())


async def retry_of(
    store: Store, info: SessionInfo, dispatch_id: str | None, principal: str
) -> NewSession:
    """Return a run that tries another again, with what that had come to."""
    if info.over not in ("failed", "ended"):
        raise NothingToRetry(
            f"the run {info.session_id} has not errored and was not cancelled",
            session=info.session_id,
        )
    lane = Lane(session=info.session_id)
    last: Lane | None = None
    started: r.SessionStarted | None = None
    given, is_undone, error = "null", False, None
    undoing: r.Failure | None = None
    async for entry in entries_of(store, info.session_id):
        match entry.record:
            case r.SessionStarted():
                started = entry.record
            case r.DeliveryQueued(kind="message") as queued:
                given = queued.args
            case r.JournalInherited():
                undoing = entry.record.undoing
            case r.UndoStarted() as begun:
                undoing = begun.error or r.Failure("CANCELLED", begun.reason or "it was cancelled")
            case r.UndoEnded():
                is_undone = entry.record.error is None
            case r.TurnFailed():
                error = entry.record.error
        lane = fold_all(lane, (entry,))
        # The state before the turn's end, which drops the calls and what they had come to.
        if lane.turn and lane.turn.calls:
            last = lane
    assert started is not None
    inherited = None
    # What was undone is not there any more: such a run begins from the start.
    if last is not None and not is_undone:
        assert last.turn is not None
        [call] = last.turn.calls.values()
        has_failed_to = error is not None and error.code == UNDO_FAILED
        inherited = journal_of(call, error, undoing if has_failed_to else None)
    return NewSession(
        agent=info.agent,
        message="",
        mode="run",
        input=given,
        dispatch_id=dispatch_id,
        tenant=info.tenant,
        principal=principal or started.principal,
        tags=started.tags,
        capabilities={"request_input": started.can_ask},
        retry_of=info.session_id,
        seed=started.seed or info.session_id,
        inherited=inherited,
    )


def journal_of(
    call: OpenCall, error: r.Failure | None, undoing: r.Failure | None
) -> r.JournalInherited:
    """Return what another run begins with: what came to something, and is not asked anew."""
    is_cut = error is not None and error.code == "STEP_INTERRUPTED"
    steps = {
        name: text
        for name, text in call.memo.whole().items()
        if undoing or (not (is_wait(name) and is_void(text)) and not name.startswith(UNDO_SCOPE))
    }
    spoilt = {
        name: step.error
        for name, step in call.spoilt.items()
        # A cut step that the run has failed for is done anew: somebody has looked at it.
        if step.interrupted and not is_cut and not name.startswith(UNDO_SCOPE)
    }
    return r.JournalInherited(
        steps=steps, spoilt=spoilt, undos=dict(call.undos), undoing=undoing, input=call.args
    )


def is_void(text: str) -> bool:
    """Say whether a wait came to nothing: it was given up, has expired, or its child has failed."""
    return text == WITHDRAWN or text.startswith(('{"expired":true', '{"error":'))
