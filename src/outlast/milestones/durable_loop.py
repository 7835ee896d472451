"""A loop for one worker and one directory: an agent that goes on from its last checkpoint.

Owns the cases of `execute`: what is begun, gone on with, handed back or refused. It runs the same
engine as everything else, in an app of its own whose store is this process's memory; what outlives
the process is in the files of `directory.py`. Only this loop takes state back.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from copy import copy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Literal

from msgspec import Raw, Struct
from msgspec.structs import replace
from typing_extensions import TypeVar

from outlast.agents.agent import Agent
from outlast.agents.milestone import MilestoneTrigger
from outlast.agents.runtime.json_value import TypeMismatch, fitted, to_json
from outlast.agents.state.slice_type import named
from outlast.agents.state.snapshot import Snapshot
from outlast.agents.state.stored_value import load
from outlast.app import Outlast, start_described
from outlast.clock import Clock
from outlast.core.instant import Span, date_of, milliseconds, not_too_late, since_epoch
from outlast.core.message import Said
from outlast.core.name import MAIN
from outlast.core.record import UsageSum
from outlast.core.setting import count_of, one_of
from outlast.core.tag import check_tags
from outlast.engine.settings import WorkerSettings
from outlast.errors import (
    DeadlineExceeded,
    ExecutionIncomplete,
    InvalidDefinition,
    InvalidInput,
    OutputChanged,
    SliceChanged,
    StoreCorrupt,
)
from outlast.log_context import get_logger
from outlast.milestones.checkpoint_store import CheckpointingStore
from outlast.milestones.directory import ExecutionDirectory
from outlast.milestones.execution import (
    CompletedExecution,
    Execution,
    ExecutionProgress,
    SavedCheckpoint,
)
from outlast.milestones.recorder import ExecutionRecorder
from outlast.milestones.request import Req, RequestType
from outlast.runtime import Deps, checked_deps
from outlast.session import Result, Session
from outlast.session.handle import restore_state
from outlast.session.inbox import QueueLimits
from outlast.session.start import NewSession
from outlast.store import Store
from outlast.stores.sqlite import MemoryStore

log = get_logger("outlast.milestones")

Out = TypeVar("Out", default=str)

SchemaChange = Literal["migrate", "fresh"]

ROOM = QueueLimits(session=1000, session_bytes=1024**3)
"""A session begins with the state that it had, which may be most of what another one may hold."""
NOBODY_TO_ASK = {"request_input": False}
ROLLBACK_ONLY = WorkerSettings(lanes=(MAIN,))
"""A worker that changes state, and leaves alone messages, which are in other lanes."""


class ExecutionResult(Struct, Generic[Out], frozen=True, kw_only=True):
    """The result of an execution.

    `attempts` counts how often it was begun or continued, `usage` everything that its model calls
    have used, also before a crash. `is_kept` is False if the result could not be written: the next
    execute() would repeat what came after the last checkpoint.
    """

    output: Out
    session_id: str
    attempts: int
    usage: UsageSum
    is_kept: bool = True


class DurableLoop(Generic[Req, Out]):
    """An agent that works off one request at a time, and goes on where it was after a crash.

    All that it needs is a `directory` of its own. A milestone, as the `trigger` or else the agent
    says, is a checkpoint: the session's state, written there before the work goes on. After a crash
    `execute()` begins a new conversation with that state and the same request. `deadline` is an
    instant, or a span from the first `execute()` on; it alone bounds how often that may be.

    The agent is told what `message` makes of a request: by default a text as it is, and other
    types as JSON. `keep` checkpoints are kept. What a slice has kept in an older version of its
    class is migrated as the slice says; where it cannot be, `schema_change="migrate"` refuses to go
    on and "fresh" begins anew. Checkpoints have the `tags` of the loop.
    """

    def __init__(
        self,
        agent: Agent[Any, Out],
        directory: str | os.PathLike[str],
        request_type: type[Req],
        trigger: MilestoneTrigger | None = None,
        deadline: datetime | Span | None = None,
        *,
        message: Callable[[Req], Said] | None = None,
        deps: Deps | None = None,
        keep: int = 3,
        schema_change: SchemaChange = "migrate",
        tags: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.agent = with_trigger(agent, trigger)
        self.directory = Path(directory)
        self._requests = RequestType[Req](request_type, message)
        self._deadline = checked_deadline(deadline)
        self._deps = checked_deps(deps)
        self._schema_change = one_of(SchemaChange, "schema_change", schema_change)
        self._tags = check_tags(tags)
        self._clock = clock or Clock()
        self._files = ExecutionDirectory(self.directory, count_of("keep", keep))

    def __repr__(self) -> str:
        return f"DurableLoop({self.agent.name!r}, {str(self.directory)!r})"

    # What the directory holds

    @property
    def is_incomplete(self) -> bool:
        """Whether an execution was begun here and has no result yet."""
        try:
            execution = self._files.execution()
        except StoreCorrupt:
            return True  # there is one, and nobody can say which
        return execution is not None and self._files.completion(execution) is None

    def load_request(self) -> Req | None:
        """Return the request that is being worked off, or was last. None if there is none.

        Raises RequestChanged if it is not of the request's type of today.
        """
        execution = self._files.execution()
        return self._requests.load(execution) if execution else None

    def load_checkpoint(self) -> Snapshot | None:
        """Return the newest checkpoint that can be read, as a snapshot of the session's state."""
        execution = self._files.execution()
        found = self._files.checkpoints(execution) if execution else []
        return snapshot_of(found[0]) if found else None

    def clear(self) -> None:
        """Give up the execution: its files are removed, and nothing else in the directory.

        Raises ExecutionRunning while it is at work.
        """
        with self._files.locked():
            self._files.clear()

    # Execution

    async def execute(self, request: Req | None = None) -> ExecutionResult[Out]:
        """Work off a request, or go on with the one that is incomplete, and return the result.

        The same request or none goes on from the last checkpoint, or else from the beginning; if it
        was completed already, it returns the result again. Another request begins a new execution,
        and raises ExecutionIncomplete while there is one to go on with. What the agent fails with
        is raised, and the next call goes on; after the deadline that is DeadlineExceeded. A second
        call while one is at work raises ExecutionRunning, in this process and in others.
        """
        asked = None if request is None else self._requests.text_of(request)
        with self._files.locked():
            execution = self._incomplete(asked)
            if isinstance(execution, CompletedExecution):
                return self._result(execution)
            self._check_deadline(execution)
            return await self._attempt(execution)

    def _check_deadline(self, execution: Execution) -> None:
        if 0 < execution.deadline_at <= self._clock.now():
            raise DeadlineExceeded(
                f"the deadline of the execution in {self.directory} has passed, at"
                f" {date_of(execution.deadline_at).isoformat()}: clear() gives it up",
                path=str(self.directory),
            )

    def _incomplete(self, asked: str | None) -> Execution | CompletedExecution:
        """Return what there is to do: an execution, begun or new; or one that is completed."""
        found = self._known(asked)
        completion = self._files.completion(found) if found else None
        if found and (asked is None or self._requests.is_same(found, asked)):
            return completion or found
        if found and completion is None:
            raise ExecutionIncomplete(
                f"an execution of another request is incomplete in {self.directory}: execute()"
                " goes on with it, clear() gives it up; or use another directory for this one",
                path=str(self.directory),
            )
        if asked is None:
            raise InvalidInput(
                f"there is nothing to go on with in {self.directory}: give a request"
            )
        return self._begin(asked)

    def _known(self, asked: str | None) -> Execution | None:
        """Return the execution of the directory. One of which nothing can be read is replaced."""
        try:
            return self._files.execution()
        except StoreCorrupt as error:
            if asked is None:
                raise
            reason = {"path": str(self.directory), "reason": error.message}
            log.warning("an execution cannot be read; the request begins it anew", extra=reason)
            return None

    def _begin(self, asked: str) -> Execution:
        now, deadline = self._clock.now(), self._deadline
        due = now + milliseconds(deadline) if isinstance(deadline, timedelta) else deadline
        execution = Execution(
            id=self._clock.new_id("exe"),
            session_id=self._clock.new_id("ses"),
            started_at=now,
            deadline_at=not_too_late("deadline", due),
            request=Raw(asked.encode()),
        )
        self._files.begin(execution)
        return execution

    async def _attempt(self, execution: Execution) -> ExecutionResult[Out]:
        """Run the agent, from the newest checkpoint that can be used."""
        self._files.remove_unfinished()
        said = self._requests.message_of(execution)
        checkpoints = self._files.checkpoints(execution)
        progress = begun(execution, self._files.progress(execution), checkpoints)
        restored = self._usable(checkpoints)
        number = max((each.number for each in checkpoints), default=0)
        facts = {"path": str(self.directory), "session": execution.session_id}
        facts |= {"attempts": str(progress.attempts), "has_checkpoint": str(restored is not None)}
        log.info("an execution is begun or gone on with", extra=facts)
        store = MemoryStore(self._clock)
        files, clock = self._files, self._clock
        with closing(
            ExecutionRecorder(files, store, clock, progress, restored, number)
        ) as recorder:
            await recorder.keep_progress()
            told = CheckpointingStore(store, recorder.note)
            result = await self._run(told, self._session_of(execution, said), restored)
            if result.error is None and result.status != "completed":
                self._check_deadline(execution)  # it has passed before the turn began
            completion = CompletedExecution(
                execution=execution,
                attempts=recorder.progress.attempts,
                usage=recorder.progress.usage,
                completed_at=self._clock.now(),
                output=Raw(to_json(result.unwrap()).encode()),
            )
            is_kept = await recorder.write("result", self._files.complete, completion)
        return replace(self._result(completion), is_kept=is_kept)

    def _session_of(self, execution: Execution, said: Said) -> NewSession:
        """Return the execution's session as it is started anew for an attempt.

        Each attempt says its message in a lane of its own: what is named after lanes and turns,
        idempotency keys above all, is then never another attempt's.
        """
        return NewSession(
            agent=self.agent.name,
            message=said,
            dispatch_id=execution.id,  # a deadline that passes now is no mistake of the caller's
            lane=self._clock.new_id("attempt"),
            capabilities=NOBODY_TO_ASK,
            deadline=date_of(execution.deadline_at) if execution.deadline_at else None,
            session_id=execution.session_id,
            tags=self._tags,
        )

    async def _run(self, store: Store, new: NewSession, restored: Snapshot | None) -> Result[Out]:
        """Have the session's message answered, with the state that the session had."""
        if restored is None:
            async with self._app(store, WorkerSettings(), self._deps) as app:
                return await result_of(await start_described(app, new))
        async with self._app(store, ROLLBACK_ONLY) as app:
            session = await start_described(app, new)
            (await (await restore_state(session, restored)).result()).unwrap()
        async with self._app(store, WorkerSettings(), self._deps):
            return await result_of(session)

    def _app(self, store: Store, worker: WorkerSettings, deps: Deps | None = None) -> Outlast:
        return Outlast(
            [self.agent],
            store=store,
            worker=worker,
            deps=deps,
            clock=self._clock,
            queue_limits=ROOM,
        )

    def _usable(self, checkpoints: list[SavedCheckpoint]) -> Snapshot | None:
        """Return the state to go on with, if the code of today can read it."""
        if not checkpoints:
            return None
        snapshot = snapshot_of(checkpoints[0])
        try:
            check_slices(snapshot)
        except SliceChanged as error:
            if self._schema_change != "fresh":
                raise
            reason = {"path": str(self.directory), "reason": error.message}
            log.warning("a checkpoint does not fit today's code; it begins anew", extra=reason)
            self._files.drop_checkpoints()
            return None
        return snapshot

    def _result(self, completion: CompletedExecution) -> ExecutionResult[Out]:
        text = bytes(completion.output).decode()
        try:
            output = fitted(text, self.agent.output_type or str)
        except TypeMismatch as why:
            raise OutputChanged(
                f"the answer of {self.agent.name} in {self.directory} does not fit its output type"
                f" as it is today: {why}; give new fields defaults, or take the answer from this"
                " error's details: output",
                agent=self.agent.name,
                output=text,
            ) from why
        return ExecutionResult(
            output=output,
            session_id=completion.execution.session_id,
            attempts=completion.attempts,
            usage=completion.usage,
        )


def with_trigger(agent: Agent[Any, Out], trigger: MilestoneTrigger | None) -> Agent[Any, Out]:
    """Return an agent like this one whose milestones are what the trigger says."""
    if not isinstance(agent, Agent):
        raise InvalidDefinition(f"a DurableLoop runs an Agent, not {agent!r}")
    if trigger is None:
        return agent
    if not isinstance(trigger, MilestoneTrigger):
        raise InvalidDefinition(
            f"the trigger of a DurableLoop is one such as CheckpointTrigger(…), not {trigger!r}"
        )
    changed = copy(agent)
    changed.milestones = trigger
    return changed


def checked_deadline(given: Any) -> int | timedelta:
    """Return a deadline as an instant in milliseconds, or as a span; 0 is none."""
    if given is None:
        return 0
    if isinstance(given, datetime):
        return since_epoch("deadline", given)
    if (span := milliseconds(given)) <= 0:
        raise InvalidDefinition("the deadline of a DurableLoop is more than no time from its start")
    return timedelta(milliseconds=span)


async def result_of(session: Session[Out]) -> Result[Out]:
    """Wait for what the session's first message comes to."""
    assert session.receipt is not None
    return await session.receipt.result()


def begun(
    execution: Execution, written: ExecutionProgress | None, checkpoints: list[SavedCheckpoint]
) -> ExecutionProgress:
    """Return the progress of an execution with one attempt more, as far as its files say."""
    known = [ExecutionProgress(execution=execution), *([written] if written else [])]
    for each in checkpoints:
        known.append(
            ExecutionProgress(execution=execution, attempts=each.attempts, usage=each.usage)
        )
    last = max(known, key=lambda each: (each.attempts, each.usage.output_tokens))
    return replace(last, execution=execution, attempts=last.attempts + 1)


def snapshot_of(checkpoint: SavedCheckpoint) -> Snapshot:
    return Snapshot.from_json(bytes(checkpoint.snapshot))


def check_slices(snapshot: Snapshot) -> None:
    """Raise SliceChanged for a value that the class of its slice, as it is today, cannot hold."""
    for name, kept in snapshot.slices.items():
        if kept_as := named(name):
            for value in kept.values:
                load(value, kept_as)
