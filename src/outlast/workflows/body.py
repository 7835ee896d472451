"""Runs a workflow's body, and says what the run of it came to: returned, raised, or waiting.

Exceptions mean what they mean in a tool. A cut of the body means nothing: it is run again, and each
step knows what it came to. When the run is to be undone, the body is run once more, as far as it
had come, to collect the functions that do so: code cannot be stored.
"""

import asyncio
from contextlib import suppress
from typing import Any

from outlast.agents.runtime.context import SessionContext
from outlast.agents.runtime.durable_wait import NOT_THE_TOOLS, Parked
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.failure import failure_of, reason_of
from outlast.agents.runtime.json_value import to_json
from outlast.agents.runtime.step import Step
from outlast.clock import Clock
from outlast.core.lane import OpenCall
from outlast.core.name import quoted
from outlast.core.result import (
    BufferedEffects,
    Mismatched,
    Raised,
    Restarted,
    Returned,
    ToolEnd,
    Undone,
)
from outlast.core.undo import undo_failed, undo_key
from outlast.core.unstable_wait import unstable
from outlast.engine.executor import CallJournal
from outlast.errors import ResultMismatch
from outlast.log_context import get_logger
from outlast.workflows.body_watch import BodyWatch
from outlast.workflows.context import RestartsRun, WorkflowContext
from outlast.workflows.workflow import Workflow

log = get_logger("outlast.workflows")


class BodyRunner:
    """One workflow's body in one worker."""

    def __init__(
        self, workflow: Workflow[Any, Any], deps: Any, clock: Clock, environment: Environment
    ) -> None:
        self._workflow = workflow
        self._deps = deps
        self._clock = clock
        self._environment = environment

    async def run(self, call: OpenCall, journal: CallJournal) -> ToolEnd | None:
        """Run the body from its first line; after its failure, what undoes it."""
        lane = journal.lane
        assert lane.turn is not None
        ctx: WorkflowContext[Any] = WorkflowContext(
            deps=self._deps,
            session=SessionContext(lane, journal.slices, journal, self._environment.anchors),
            call=call,
            journal=journal,
            environment=self._environment,
            max_depth=self._workflow.max_depth,
        )
        ctx._workflow, ctx._undos = self._workflow, {}
        watch = BodyWatch(self._workflow.name, ctx._waiting)
        try:
            # Decided by the log: a body that failed may come to something else when it is run
            # again.
            if lane.turn.undo:
                return await self._undo(ctx, call)
            return await self._end(ctx, call, journal)
        finally:
            watch.end()

    async def _end(
        self, ctx: WorkflowContext[Any], call: OpenCall, journal: CallJournal
    ) -> ToolEnd:
        try:
            value = await self._call(ctx, call)
            return stopped(ctx) if must_wait(ctx) else self._returned(ctx, value)
        except Parked:
            return stopped(ctx)
        # Not an Exception, so that no body swallows it: it ends this run of the body, and begins
        # another.
        except RestartsRun as anew:
            return Restarted(ctx.call_id, anew.input)
        except asyncio.CancelledError:
            if journal.is_stopped or not must_wait(ctx):
                raise
            return stopped(ctx)
        except BaseExceptionGroup as group:  # of a task group in which something waits
            if must_wait(ctx):
                return stopped(ctx)
            if group.subgroup(NOT_THE_TOOLS):
                raise
            return self._raised(ctx, reason_of(group))
        except NOT_THE_TOOLS:
            raise
        except BaseException as error:  # noqa: BLE001 - the body's own: the run fails with it
            # A body that raises while it is unwound has stopped at its wait all the same.
            return stopped(ctx) if must_wait(ctx) else self._raised(ctx, error)

    async def _call(self, ctx: WorkflowContext[Any], call: OpenCall) -> Any:
        if not self._workflow.takes_input:
            return await self._workflow.function(ctx)
        return await self._workflow.function(ctx, self._workflow.parse(call.args))

    def _raised(self, ctx: WorkflowContext[Any], error: BaseException) -> Raised:
        log.warning("a workflow has failed", exc_info=error, extra={"workflow": ctx.tool})
        return Raised(ctx.call_id, failure_of(error))

    def _returned(self, ctx: WorkflowContext[Any], value: Any) -> Returned:
        text = to_json(value, f"{self._workflow.name} returned")
        if misfit := self._workflow.returns.misfit(value):
            raise ResultMismatch(f"{self._workflow.name} {misfit}", workflow=self._workflow.name)
        changes = tuple(ctx.session._state.changes)
        return Returned(ctx.call_id, text, leftovers=BufferedEffects(tuple(ctx._emitted), changes))

    # Undo

    async def _undo(self, ctx: WorkflowContext[Any], call: OpenCall) -> ToolEnd:
        """Run the body as far as it had come, and then, in reverse, what it had registered."""
        waiting = ctx._waiting
        waiting.is_undoing = True
        # However it ends this time: it is run only for what it registers on its way.
        with suppress(Parked, RestartsRun, Exception, BaseExceptionGroup):
            try:
                await self._call(ctx, call)
            except asyncio.CancelledError:
                if ctx._journal.is_stopped or not waiting.is_parked:
                    raise
        if waiting.misfit is None and (gone := [n for n in call.undos if n not in ctx._undos]):
            titles = ", ".join(call.undos[name] for name in gone)
            waiting.begin_undo()
            waiting.stop_for(
                f"{titles} would undo what the run has done, and the body does not register that"
                " any more: go on with the code of before (a pinned deployment), or register it in"
                " the same place"
            )
        if waiting.misfit:
            return Mismatched(ctx.call_id, waiting.misfit)
        waiting.begin_undo()
        try:
            # The last thing that was done is undone first, since it may build on those before it.
            for name in reversed([*call.undos]):
                await self._undo_one(ctx, name)
        except Parked:
            return stopped(ctx)
        except asyncio.CancelledError:
            if ctx._journal.is_stopped or not waiting.is_parked:
                raise
            return stopped(ctx)
        except Exception as error:  # noqa: BLE001 - of a user's function; it is told as it is
            return self._not_undone(ctx, error)
        return Undone(ctx.call_id)

    async def _undo_one(self, ctx: WorkflowContext[Any], name: str) -> None:
        undo = ctx._undos[name]
        with ctx._waiting.scope("step").step(quoted(name)) as key:
            title = f"undo of {undo.title}"
            await Step(ctx, key, undo.function, undo.args, undo.rules, title).result()

    def _not_undone(self, ctx: WorkflowContext[Any], error: Exception) -> Undone:
        log.error(
            "a run could not be undone",
            exc_info=error,
            extra={"workflow": ctx.tool, "session": ctx.id},
        )
        call, failed = ctx._waiting.call, failure_of(error)
        why = undo_failed(call, failed)
        # Each undo that succeeded is recorded, so only the rest is left for somebody to mend.
        left = tuple(call.undos[n] for n in reversed([*call.undos]) if undo_key(n) not in call.memo)
        return Undone(ctx.call_id, why, left)


def must_wait(ctx: WorkflowContext[Any]) -> bool:
    """Say whether a body has stopped, at a wait or because the code does not fit."""
    return ctx._waiting.is_parked or ctx._waiting.misfit is not None


def stopped(ctx: WorkflowContext[Any]) -> ToolEnd:
    """Return what a body waits for: waits that are over one by one, or other code."""
    if misfit := ctx._waiting.misfit:
        return Mismatched(ctx.call_id, misfit)
    waits = ctx._waiting.waits
    error = unstable(ctx._waiting.call, waits)
    return Raised(ctx.call_id, error) if error else waits
