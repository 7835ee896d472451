"""The past of a run, read from its log: its steps, and what another run may begin with.

Reads committed entries only. What a step is known by is told in `agents/runtime/step.py`.
"""

import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
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
from outlast.core.setting import count_of
from outlast.core.undo import UNDO_FAILED, UNDO_SCOPE
from outlast.errors import InvalidCursor, NothingToRetry
from outlast.session.inbox import with_secret
from outlast.session.start import NewSession
from outlast.store import SessionInfo, Store

CURSOR = re.compile("([0-9]{1,15}(-[0-9]{1,15})?)?")
FEWEST, MOST = 50, 500
"""How many entries are read at once."""

StepStatus = Literal["running", "retrying", "completed", "failed", "interrupted"]


class RunStep(Struct, frozen=True, kw_only=True):
    """A step of a run.

    `name` is what it is known by: its scope, its name or function, and how many of that there were.
    One that was simply done again when it was cut off has no `started_at`. Further steps are read
    behind the `cursor` of the last.
    """

    name: str
    status: StepStatus
    attempt: int = 1
    value: Any = None
    error: r.Failure | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cursor: str = ""


async def entries_of(
    store: Store, session_id: str, after: int = 0, steps: int | None = None
) -> AsyncIterator[r.Entry]:
    """Yield what is in a log after an offset, in pages for about so many steps."""
    # A step has two records, or three with what wakes the body for it.
    limit = MOST if steps is None else min(max(3 * steps, FEWEST), MOST)
    cursor = after
    while True:
        page = await store.log.read(session_id, cursor, limit)
        for entry in page.entries:
            yield entry
        if not page.entries:
            return
        cursor = page.entries[-1].offset


async def read_steps(
    store: Store,
    session_id: str,
    after: str = "",
    limit: int | None = None,
    most_bytes: int | None = None,
) -> tuple[Sequence[RunStep], bool]:
    """Return the steps of a run, in the order in which they began, and whether there may be more.

       There are `limit` at most.
    Begins behind the step whose `cursor` is `after`, and reads no more of the log than those steps
       and what went on beside them. What they came to has `most_bytes`, but there is one step at
       least.
    """
    begins, reads = place_of(after)
    reading = StepReading(begins, limit, most_bytes)
    async for entry in entries_of(store, session_id, reads, limit):
        reading.read(entry)
        if reading.has_settled():
            break
    return reading.found(), reading.may_go_on


def most_steps(limit: int | None) -> int | None:
    return None if limit is None else count_of("limit of steps", limit, least=1)


def place_of(cursor: str) -> tuple[int, int]:
    """Return behind which offset the steps of a page begin, and behind which it is read."""
    if not CURSOR.fullmatch(cursor):
        raise InvalidCursor(f"{cursor:.64} is no cursor of a step")
    begins, _, reads = cursor.partition("-")
    return int(begins or 0), int(reads or begins or 0)


class StepReading:
    """Makes steps of the entries of a run's log, those that began behind an offset.

    The log is read from where the first step began that was still open there: a step's end does not
    say whether it had begun before.
    """

    def __init__(self, begins: int, limit: int | None, most_bytes: int | None) -> None:
        self._begins = begins
        self._limit = limit
        self._most_bytes = most_bytes
        self._steps: list[RunStep] = []
        self._sizes: list[int] = []
        self._places: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._unsettled: set[int] = set()

    def found(self) -> list[RunStep]:
        return self._steps[: self._limit]

    @property
    def may_go_on(self) -> bool:
        return self._limit is not None and len(self._steps) >= self._limit

    def has_settled(self) -> bool:
        """Say whether as many steps as may be were found, and have all come to an end."""
        if self._limit is None or not self.may_go_on:
            return False
        return not self._unsettled or min(self._unsettled) >= self._limit

    def read(self, entry: r.Entry) -> None:
        e, at = entry.record, date_of(entry.at)
        match e:
            case r.ToolStepStarted():
                before = self._step(e.name, entry.offset)
                # A further attempt is at the same step, which began with the first.
                began = before.started_at or at
                self._put(replace(before, status="running", attempt=e.attempt, started_at=began))
            # The same record keeps what else is done once, such as which branch came first.
            case r.ToolStepRecorded() if not is_wait(e.name) and "step:" in e.name:
                value, before = from_json(e.value), self._step(e.name, entry.offset)
                done = replace(before, status="completed", value=value, ended_at=at)
                self._put(done, len(e.value))
            case r.ToolStepFailed():
                status: StepStatus = "interrupted" if e.interrupted else "failed"
                self._put(
                    replace(
                        self._step(e.name, entry.offset),
                        status="retrying" if e.again else status,
                        attempt=e.attempt,
                        error=e.error,
                        ended_at=None if e.again else at,
                    ),
                    len(e.error.message),
                )
            # Nothing goes on with what is open then: a body that is undone does not come to it.
            case r.UndoStarted() | r.SessionCompleted() | r.SessionFailed() | r.SessionEnded():
                for name in [*self._open]:
                    cut = self._step(name, entry.offset)
                    left: StepStatus = "failed" if cut.status == "retrying" else "interrupted"
                    self._put(replace(cut, status=left, ended_at=at))
            # The body begins with an empty history: steps of the same names are other ones.
            case r.RunRestarted():
                self._places, self._open = {}, {}
                self._unsettled = set()

    def _step(self, name: str, offset: int) -> RunStep:
        """Return a step as it was; it begins here, if nothing was read of it."""
        if name in self._places:
            place = self._places[name]
            return self._steps[place] if place >= 0 else RunStep(name=name, status="running")
        self._open[name] = offset
        self._places[name] = -1
        step = RunStep(name=name, status="running")
        if offset <= self._begins:
            return step  # of an earlier page
        first = next(iter(self._open.values()))
        self._places[name] = len(self._steps)
        self._unsettled.add(len(self._steps))
        step = replace(step, cursor=f"{offset}-{first - 1}")
        self._steps.append(step)
        self._sizes.append(0)
        return step

    def _put(self, step: RunStep, size: int = 0) -> None:
        place = self._places[step.name]
        if step.ended_at:
            self._open.pop(step.name, None)
            self._unsettled.discard(place)
        # Steps behind the page are not kept: many may come before the last step of the page ends.
        if place >= 0 and (self._limit is None or place < self._limit):
            self._steps[place], self._sizes[place] = step, size
            self._end_sooner()

    def _end_sooner(self) -> None:
        """Leave steps at the end to the next page while all that they came to is too much."""
        if self._most_bytes is None:
            return
        most = min(len(self._steps), self._limit or len(self._steps))
        while most > 1 and sum(self._sizes[:most]) > self._most_bytes:
            most = self._limit = most - 1
            self._steps[most] = replace(self._steps[most], value=None, error=None)


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
    began = 0
    given, is_undone, error = "null", False, None
    undoing: r.Failure | None = None
    async for entry in entries_of(store, info.session_id):
        match entry.record:
            case r.SessionStarted():
                started, began = entry.record, entry.at
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
    span = started.deadline_at - began if started.deadline_at else 0
    inherited = None
    # A run that was undone has no results to keep, so its retry begins from the start.
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
        # The instant itself may have passed: the new run has as long as this one had.
        deadline=timedelta(milliseconds=span) if span > 0 else None,
        outbox=await outbox_of(store, info.session_id, started),
        tags=started.tags,
        place=started.place,
        capabilities={"request_input": started.can_ask},
        retry_of=info.session_id,
        seed=started.seed or info.session_id,
        inherited=inherited,
    )


async def outbox_of(
    store: Store, session_id: str, started: r.SessionStarted
) -> tuple[r.NewOutboxCursor, ...]:
    """Return where the events of a run are told, with the secret that its start brought."""
    secrets = {each.name: each.secret for each in await store.outbox.cursors(session_id)}
    return tuple(with_secret(each, secrets.get(each.name, "")) for each in started.outbox)


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
    # One that was cut off with the run may have happened: what that means is for the step to say.
    begun = {
        name: attempt
        for name, attempt in call.begun.items()
        if not is_cut and not name.startswith(UNDO_SCOPE)
    }
    return r.JournalInherited(
        steps=steps,
        spoilt=spoilt,
        begun=begun,
        undos=dict(call.undos),
        undoing=undoing,
        input=call.args,
    )


def is_void(text: str) -> bool:
    """Say whether a wait came to nothing: it was given up, has expired, or its child has failed."""
    return text == WITHDRAWN or text.startswith(('{"expired":true', '{"error":'))
