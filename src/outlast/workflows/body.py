"""Runs a workflow's body, and says what the run of it came to: returned, raised, or waiting.

The meaning of exceptions is that of a tool's; what a cut of the body means is nothing: it is run
again, and each step knows what it came to.
"""

import asyncio
from typing import Any

from outlast.agents.runtime.context import SessionContext
from outlast.agents.runtime.durable_wait import NOT_THE_TOOLS, Parked
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.failure import failure_of, reason_of
from outlast.agents.runtime.json_value import to_json
from outlast.clock import Clock
from outlast.core.lane import OpenCall
from outlast.core.result import BufferedEffects, Raised, Returned, ToolEnd
from outlast.engine.executor import CallJournal
from outlast.errors import ResultMismatch
from outlast.log_context import get_logger
from outlast.workflows.context import WorkflowContext
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
        """Run the body from its first line."""
        ctx: WorkflowContext[Any] = WorkflowContext(
            deps=self._deps,
            session=SessionContext(journal.lane, journal.slices, journal),
            call=call,
            journal=journal,
            environment=self._environment,
            max_depth=self._workflow.max_depth,
        )
        try:
            value = await self._call(ctx, call)
            return ctx._waiting.waits if ctx._waiting.is_parked else self._returned(ctx, value)
        except Parked:
            return ctx._waiting.waits
        except asyncio.CancelledError:
            if journal.is_stopped or not ctx._waiting.is_parked:
                raise
            return ctx._waiting.waits
        except BaseExceptionGroup as group:  # of a task group in which something waits
            if ctx._waiting.is_parked:
                return ctx._waiting.waits
            if group.subgroup(NOT_THE_TOOLS):
                raise
            return self._raised(ctx, reason_of(group))
        except NOT_THE_TOOLS:
            raise
        except BaseException as error:  # noqa: BLE001 - the body's own: the run fails with it
            return self._raised(ctx, error)

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
