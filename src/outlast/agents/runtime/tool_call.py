"""Runs an agent's tools, and says what each run came to: returned, raised, interrupted, waiting.

The meaning of exceptions is settled here; the log and the time limits are the engine's.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.milestone import MilestoneTrigger, possible_milestone
from outlast.agents.runtime.context import Context, SessionContext
from outlast.agents.runtime.durable_wait import NOT_THE_TOOLS, Parked
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.failure import failure_of, failure_text, reason_of, sentence_of
from outlast.agents.runtime.json_value import to_json
from outlast.agents.runtime.loop_watch import LoopWatch, noted
from outlast.agents.runtime.step import NotDone
from outlast.agents.runtime.transaction import LazyTransaction
from outlast.agents.tool import Tool, ToolResult
from outlast.clock import Clock
from outlast.core.action import Start
from outlast.core.lane import MISMATCH, UNDONE, UNSTORABLE, Lane, OpenCall
from outlast.core.message import storable
from outlast.core.name import storable_key
from outlast.core.record import Failure, IdempotencyKey
from outlast.core.result import (
    BufferedEffects,
    Interrupted,
    Mismatched,
    Raised,
    Returned,
    ToolEnd,
)
from outlast.core.state_change import TURNS_OPEN
from outlast.core.unstable_wait import unstable
from outlast.engine.executor import CallJournal
from outlast.engine.owned_lane import RollbackRefused, TransactionUndone
from outlast.errors import (
    InvalidDefinition,
    NotEncodable,
    OutlastError,
    ResultMismatch,
    StoreUnavailable,
    ToolError,
)
from outlast.log_context import get_logger


def backoff(clock: Clock, failed: int) -> int:
    """Return how long to wait after so many failures, in milliseconds."""
    return int(clock.jitter(500 * 2.0**failed))


def read(tool: Tool, call: OpenCall, lane: Lane) -> tuple[dict[str, Any], str]:
    """Return a call's arguments and its own key, or raise what stands against running it."""
    args = tool.arguments.parse(call.args)
    # For what it raises: a limit's or a mutex's own function may refuse these arguments.
    tool.bounds(args, lane.tenant)
    if tool.idempotency_key is None:
        return args, ""
    scope = blake2b(scope_of(tool, lane).encode(), digest_size=10).hexdigest()
    return args, f"{scope}:{own_key(tool, args)}"


def dedupe_of(tool: Tool, args: dict[str, Any], lane: Lane) -> IdempotencyKey | None:
    """Return the key under which a call must not happen twice, if it has one."""
    if not tool.dedupe:
        return None
    return IdempotencyKey(scope_of(tool, lane), own_key(tool, args))


def scope_of(tool: Tool, lane: Lane) -> str:
    """Return where a key of the tool's own means the same."""
    return f"session:{lane.session}" if tool.dedupe == "session" else f"tenant:{lane.tenant}"


def own_key(tool: Tool, args: dict[str, Any]) -> str:
    assert tool.idempotency_key is not None
    key = tool.idempotency_key(args)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise InvalidDefinition(
            f"the idempotency_key of {tool.name} returned {key!r}: it has to be a text or a whole"
            " number that two calls share only if they are the same",
            tool=tool.name,
        )
    return f"{tool.first_name}:{storable_key(str(key))}"


log = get_logger("outlast.agents")

THREAD_GRACE = 0.9
"""How much of the time that calls have to end a sync tool is given: what it came to is recorded
in the rest."""


class ToolRunner:
    """One agent's tools in one worker."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        deps: Any,
        clock: Clock,
        environment: Environment,
        watch: LoopWatch | None = None,
    ) -> None:
        self._agent = agent
        self._deps = deps
        self._clock = clock
        self._environment = environment
        self._watch = watch
        self._has_rules = not agent.rules.is_empty

    async def run_tool(self, call: OpenCall, start: Start, journal: CallJournal) -> ToolEnd | None:
        tool = self._agent.find_tool(call.tool)
        if tool is None:
            return Raised(call.call_id, Failure("UNKNOWN_TOOL", f"{call.tool} is no longer there"))
        lane, slices = journal.lane, journal.slices
        try:
            args, key = read(tool, call, lane)
            note = self._agent.rules.note(tool, args, lane, slices) if self._has_rules else None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the arguments', or the user's own functions'
            if start.attempt > 1:  # its outcome is unknown from here on
                return Interrupted(call.call_id, "unreconciled", final=True)
            return Raised(call.call_id, failure_of(error))
        ctx: Context[Any] = Context(
            deps=self._deps,
            session=SessionContext(lane, slices, journal, self._environment.anchors),
            call=call,
            journal=journal,
            key=key,
            environment=self._environment,
            max_depth=self._agent.max_depth,
        )
        if note:  # recorded with the outcome, if that is a success
            ctx.session._state.changes.append(note)
        try:
            return await self._run(tool, ctx, args, start, journal)
        # Before everything that a tool may raise: it has only stopped.
        except Parked:
            return stopped(ctx)
        except asyncio.CancelledError:
            # A task that an unwound tool left behind is cancelled when it uses the context again.
            # The tool itself has stopped at its wait all the same.
            if journal.is_stopped or not ctx._waiting.is_parked:
                raise
            return stopped(ctx)
        except BaseExceptionGroup as group:  # of a task group in which something waits
            if ctx._waiting.is_parked:
                return stopped(ctx)
            if group.subgroup(NOT_THE_TOOLS):
                raise
            return self._raised(call, reason_of(group))
        # The function has run to its end: called a failure, the model would make the call again.
        except (NotEncodable, ResultMismatch) as error:
            return unkept(call, error)
        except NOT_THE_TOOLS:
            raise
        # SystemExit too: a tool that calls `sys.exit` ends its call, and not the worker.
        except BaseException as error:  # noqa: BLE001 - a tool's own, which the model sees
            return self._raised(call, error)

    def _raised(self, call: OpenCall, error: BaseException) -> Raised:
        if not isinstance(error, ToolError):  # which says all that there is to say
            log.warning("a tool raised an error", exc_info=error, extra={"tool": call.tool})
        return Raised(call.call_id, failure_of(error), backoff=backoff(self._clock, call.failed))

    async def _run(
        self,
        tool: Tool,
        ctx: Context[Any],
        args: dict[str, Any],
        start: Start,
        journal: CallJournal,
    ) -> ToolEnd | None:
        if start.reconciles:
            with ctx._waiting.finding_out(start.reconciles):
                found = await self._reconcile(tool, ctx, args, journal)
            if found:
                return found
        if tool.transactional:
            return await self._transact(tool, ctx, args, journal)
        value = await self._call(tool, ctx, args, journal)
        return ended(tool, ctx, value, self._agent.milestones, self._watch)

    async def _transact(
        self, tool: Tool, ctx: Context[Any], args: dict[str, Any], journal: CallJournal
    ) -> ToolEnd | None:
        """Run a tool whose transaction, once opened, its outcome is recorded in."""
        try:
            async with AsyncExitStack() as stack:
                ctx._transaction = transaction = LazyTransaction(journal, stack)
                value = await self._call(tool, ctx, args, journal)
                end = ended(tool, ctx, value, self._agent.milestones, self._watch)
                # Only where it has used it, and has come to an end: a tool that waits or fails
                # undoes its statements.
                if transaction.opened and isinstance(end, Returned):
                    await journal.conclude(transaction.opened, end)
                    return None
                return end
        except StoreUnavailable:
            return Interrupted(ctx.call_id, UNDONE)  # with the transaction: nothing was done
        except (NotEncodable, ResultMismatch) as error:
            return Raised(ctx.call_id, failure_of(error))  # it was undone, and would be again
        except RollbackRefused:
            return Raised(ctx.call_id, TURNS_OPEN)
        except TransactionUndone as undone:
            return Interrupted(ctx.call_id, str(undone))

    async def _call(
        self, tool: Tool, ctx: Context[Any], args: dict[str, Any], journal: CallJournal
    ) -> Any:
        given = (ctx,) if tool.arguments.takes_context else ()
        if tool.is_async:
            run = tool.function(*given, **args)
            return await (self._watch.watched(run, tool=tool.name) if self._watch else run)
        ctx._waiting.in_thread = True
        value = await self._call_in_thread(lambda: tool.function(*given, **args), journal)
        if inspect.isawaitable(value):  # of an async function behind one that is not
            ctx._waiting.in_thread = False
            return await value
        return value

    async def _call_in_thread(self, function: Callable[[], Any], journal: CallJournal) -> Any:
        running = in_thread(journal, function)
        try:
            # A cancellation must not be taken for the thread's end: that goes on, whatever becomes
            # of this task.
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be stopped, but one that heeds ctx.cancelled may end in time.
            grace = journal.stop_grace * THREAD_GRACE
            if journal.is_cancelled and await ends_within(running, grace):
                return running.result()
            raise

    async def _reconcile(
        self, tool: Tool, ctx: Context[Any], args: Any, journal: CallJournal
    ) -> ToolEnd | None:
        """Find out what an interrupted call came to; None if it was not done."""
        if not callable(tool.on_interrupt):
            return None
        try:
            if inspect.iscoroutinefunction(reconcile := tool.on_interrupt):
                found = await reconcile(ctx, args)
            elif inspect.isawaitable(
                found := await in_thread(journal, lambda: reconcile(ctx, args))
            ):
                found = await found
            if found is NotDone or isinstance(found, NotDone):
                return None
            # What it finds is the call's result, checked as if the tool had returned it.
            return returned(tool, found, ctx, self._agent.milestones, self._watch)
        except NOT_THE_TOOLS:
            raise
        except BaseException as error:
            if isinstance(error, BaseExceptionGroup) and ctx._waiting.is_parked:
                raise
            log.exception("a tool's reconcile function failed; the outcome stays unknown")
            return Interrupted(ctx.call_id, "unreconciled", final=True)


def in_thread(journal: CallJournal, function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run a function in the thread that its call has waited for."""
    assert journal.slot is not None
    return journal.slot.begin(function)


async def ends_within(running: asyncio.Future[Any], seconds: float) -> bool:
    done, _ = await asyncio.wait({running}, timeout=seconds)
    return bool(done)


def stopped(ctx: Context[Any]) -> ToolEnd:
    """Return what a tool waits for, or that it asks something else in every run."""
    if misfit := ctx._waiting.misfit:
        return Mismatched(ctx.call_id, misfit)
    waits = ctx._waiting.waits
    error = unstable(ctx._waiting.call, waits)
    return Raised(ctx.call_id, error) if error else waits


def unkept(call: OpenCall, error: OutlastError) -> Interrupted:
    """Return the end of a tool that was run, and whose result or state cannot be kept.

    It may have had its effect, so it has not failed: the model, and a human who is asked, are told
    what is known.
    """
    reason = MISMATCH if isinstance(error, ResultMismatch) else UNSTORABLE
    log.warning(
        "the outcome of a tool is unknown: %s",
        error.message,
        extra={"tool": call.tool, "why": error.message},
    )
    return Interrupted(call.call_id, reason, why=failure_text(error.message))


def ended(
    tool: Tool,
    ctx: Context[Any],
    value: Any,
    milestones: MilestoneTrigger,
    watch: LoopWatch | None,
) -> ToolEnd:
    """Return what a tool came to that ran to its end; it may have caught its own parking."""
    if ctx._waiting.is_parked:
        return stopped(ctx)
    return returned(tool, value, ctx, milestones, watch)


def returned(
    tool: Tool,
    value: Any,
    ctx: Context[Any],
    milestones: MilestoneTrigger,
    watch: LoopWatch | None,
) -> Returned:
    """Return a tool's result as it is stored, with all that the tool had buffered.

    Raises NotEncodable, or ResultMismatch if it is not what the tool is declared to return.
    """
    message, is_dispatched = None, isinstance(value, ToolResult)
    if isinstance(value, ToolResult):
        message, value = words_of(tool, value.message), value.value
    text = to_json(value, f"{tool.name} returned")
    if misfit := tool.returns.misfit(value):  # after that: so it is of bounded depth
        raise ResultMismatch(f"{tool.name} {misfit}", tool=tool.name)
    if is_dispatched:
        with noted(watch, reducer=type(value).__name__):
            dispatch(tool, value, ctx)
    leftovers = BufferedEffects(tuple(ctx._emitted), tuple(ctx.session._state.changes))
    # An event that was dispatched to the session's state may be a milestone, too.
    seen = (value, *ctx.session._state.dispatched)
    milestone = possible_milestone(milestones, seen, ctx.session)
    return Returned(ctx.call_id, text, message, leftovers, milestone=milestone)


def dispatch(tool: Tool, value: Any, ctx: Context[Any]) -> None:
    """Let what a tool returned change the session's state, where its type is a slice or an event.

    The tool has run: a reducer that fails makes its outcome unknown, as any value does that cannot
    be kept.
    """
    try:
        ctx.session._state.dispatch_to_all(value)
    except Exception as error:
        raise NotEncodable(
            f"{tool.name} returned {type(value).__name__}, which the session's state does not"
            f" take: {sentence_of(error)}"
        ) from error


def words_of(tool: Tool, message: Any) -> str | None:
    """Return what a tool shows the model: what is no text, as its value would be shown."""
    if isinstance(message, str):
        return storable(str.__str__(message))
    return None if message is None else to_json(message, f"{tool.name} returned as its message")
