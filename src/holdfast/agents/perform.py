"""How an agent does what the engine decided: asks its model, runs its tools.

The meaning of exceptions and the naming of calls are settled here; the log and the time
limits are the engine's.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import blake2b
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.agents.agent import Agent
from holdfast.agents.classification import judge
from holdfast.agents.context import Context, SessionContext
from holdfast.agents.decision import LONGEST_DECISION, Proposed, decided
from holdfast.agents.definition import OUTPUT_TOOL
from holdfast.agents.limit import Limit, in_order
from holdfast.agents.model import (
    AnswerCutOff,
    BeganToolCall,
    Finished,
    ModelClient,
    ModelRequest,
    Said,
    SaidReasoning,
    SaidText,
    StillSpeaking,
)
from holdfast.agents.surrounding import ALONE, Surroundings
from holdfast.agents.thread import ToolThreads
from holdfast.agents.tool import NotDone, Tool, ToolResult
from holdfast.agents.transaction import LazyTransaction
from holdfast.agents.value import from_json, to_json
from holdfast.agents.wait import Parked
from holdfast.clock import Clock
from holdfast.core import codec
from holdfast.core.action import CallModel, Start
from holdfast.core.lane import CONTENDED, Call, Lane, Reply
from holdfast.core.limit import Bound
from holdfast.core.message import Part, Reasoning, Text, ToolCall, text_of
from holdfast.core.name import args_digest, storable_key, tool_call_name
from holdfast.core.policy import Policy
from holdfast.core.record import Failure, MessageDelta, ReasoningDelta
from holdfast.core.request import requesters
from holdfast.core.result import (
    Answered,
    Interrupted,
    Leftovers,
    ModelFailed,
    Raised,
    Returned,
    ToolEnd,
    Wanted,
)
from holdfast.core.slices import Slices
from holdfast.core.view import View
from holdfast.engine.owned import Undone
from holdfast.engine.performer import Desk, Hear, Place
from holdfast.engine.work import Patience
from holdfast.errors import NotEncodable, Retry, StoreCorrupt, StoreUnavailable, ToolError
from holdfast.ids import get_logger

log = get_logger("holdfast.agents")

Delta = MessageDelta | ReasoningDelta

_answers = msgspec.msgpack.Decoder(Finished)

A_MINUTE = Patience(60.0)
INSTRUCTIONS_FAILED = "INSTRUCTIONS_FAILED"
LONGEST_FAILURE = 10_000
THREAD_GRACE = 4.5
"""How long a cancelled turn waits for a sync tool: a little less than for all its calls."""


class AgentPerformer:
    """One agent at work in one worker."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        client: ModelClient,
        deps: Any,
        threads: ToolThreads,
        clock: Clock,
        around: Surroundings = ALONE,
    ) -> None:
        self._agent = agent
        self._client = client
        self._deps = deps
        self._threads = threads
        self._clock = clock
        self._around = around
        # Who answers in one piece shows no sign of life before.
        self._patience = Patience(agent.model_timeout, agent.idle_timeout if agent.stream else inf)
        self._bounds_of_call = model_bounds(agent, client.name, starts_turn=False)
        self._bounds_of_turn = model_bounds(agent, client.name, starts_turn=True)

    @property
    def policy(self) -> Policy:
        return self._agent.policy

    async def close(self) -> None:
        await self._client.close()

    # The model

    @property
    def patience(self) -> Patience:
        return self._patience

    async def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Answered | ModelFailed:
        try:
            instructions = self._agent.instructions
            if not isinstance(instructions, str):
                instructions = await self._make(instructions, lane, slices)
            request = self._request(view, action, instructions)
        except Exception as error:  # noqa: BLE001 - the user's own instructions
            sentence = f"the instructions of the agent {self._agent.name} failed: "
            failed = Failure(INSTRUCTIONS_FAILED, sentence + failure_of(error).message)
            return ModelFailed(failed, kind="recoverable")
        try:
            finished = await self._ask(request, hear)
            return await self._answered(finished, action, lane, hear)
        except Exception as error:  # noqa: BLE001 - the client says what it means
            return self._failed(error, lane)

    def too_late(self, lane: Lane) -> ModelFailed:
        return self._failed(TimeoutError(), lane)

    def cut_off(self, lane: Lane) -> ModelFailed:
        return self._failed(AnswerCutOff("the client gave up"), lane)

    def _request(self, view: View, action: CallModel, instructions: str) -> ModelRequest:
        return ModelRequest(
            view=view,
            call_id=action.call_id,
            attempt=action.attempt,
            instructions=instructions,
            tools=self._agent.specs,
            output=self._agent.output,
            settings=self._agent.model_settings,
        )

    async def _make(
        self, instructions: Callable[[Any], str | Awaitable[str]], lane: Lane, slices: Slices
    ) -> str:
        """Have a function of the user's say what the model is told."""
        said = instructions(InstructionContext(self._deps, SessionContext(lane, slices)))
        return await said if inspect.isawaitable(said) else said

    async def _ask(self, request: ModelRequest, hear: Hear) -> Finished:
        """Return the whole answer, having said what was said on the way."""
        if not self._agent.stream:
            return await self._client.request(request)
        pieces = self._client.stream(request)
        try:
            async for said in pieces:
                if isinstance(said, Finished):
                    return said
                hear(None if isinstance(said, StillSpeaking) else delta(said, request))
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        raise AnswerCutOff("the stream ended before the answer did")

    def _failed(self, error: Exception, lane: Lane) -> ModelFailed:
        model = lane.turn.model if lane.turn else None
        failed = model.failed if model else 0
        if isinstance(error, TimeoutError | AnswerCutOff):
            message = str(error) or "the model did not answer in time"
            code = "MODEL_TIMEOUT" if isinstance(error, TimeoutError) else "ANSWER_CUT_OFF"
            return ModelFailed(Failure(code, message), "transient", backoff=self._backoff(failed))
        meaning = judge(self._client, error)
        return ModelFailed(
            meaning.error, meaning.kind, meaning.retry_after, backoff=self._backoff(failed)
        )

    def _backoff(self, failed: int) -> int:
        return int(self._clock.jitter(500 * 2.0**failed))

    async def _answered(
        self, finished: Finished, action: CallModel, lane: Lane, hear: Hear
    ) -> Answered:
        parts: list[Part] = []
        wanted: list[Wanted] = []
        for part in finished.parts:
            if isinstance(part, ToolCall):
                call_id = tool_call_name(action.call_id, len(wanted) + 1)
                part = replace(part, call_id=call_id, args=storable(part.args))
                seen = self._wanted(part, lane)
                if self._around.deciders and not (seen.output or seen.refusal):
                    hear(None)  # the model has spoken: it is not silent while hooks decide
                    seen = await self._decided(seen, part, lane)
                wanted.append(seen)
            elif isinstance(part, Text | Reasoning):
                part = replace(part, text=storable(part.text))
            parts.append(part)
        if self._agent.output and not wanted:
            self.parse_output(text_of(tuple(parts)))
        # Clients are others' code, too: an answer that cannot be read again is none.
        whole = codec.proven(replace(finished, parts=tuple(parts)), _answers)
        return Answered(whole.parts, whole.usage, tuple(wanted), whole.model, whole.finish)

    def parse_output(self, text: str) -> Any:
        """Return a typed answer from its JSON text; a text that is none is cut off."""
        try:
            return from_json(text, self._agent.output_type)
        except StoreCorrupt as error:
            raise AnswerCutOff(f"the answer is not of the output type: {error}") from None

    async def _decided(self, wanted: Wanted, part: ToolCall, lane: Lane) -> Wanted:
        """Let the hooks have their say about a call that the model asks for."""
        call = Proposed(
            session_id=lane.session,
            agent=lane.agent,
            tenant=lane.tenant,
            principal=lane.principal,
            call_id=part.call_id,
            tool=part.tool,
            args=from_json(part.args or "{}"),
            asks=wanted.asks,
        )
        return await decided(
            wanted,
            call,
            self._around.deciders,
            lambda args: self._wanted(replace(part, args=args), lane),
        )

    def _wanted(self, part: ToolCall, lane: Lane) -> Wanted:
        """Look at a call that the model asks for, before anything runs."""
        digest = args_digest(part.tool, part.args)
        seen = Wanted(part.call_id, part.tool, digest)
        try:
            if part.tool == OUTPUT_TOOL and self._agent.output:
                check_output(part.args, self._agent)
                return replace(seen, output=True)
            tool = self._agent.tools.get(part.tool)
            if tool is None:
                names = ", ".join(self._agent.tools) or "none"
                raise Retry(f"there is no tool named {part.tool}; there is: {names}")
            args = tool.arguments.parse(part.args)
            tool.bounds(args, lane.tenant)
            return replace(seen, asks=tool.asks(args), dedupe=dedupe_of(tool, args, lane))
        except Exception as error:  # noqa: BLE001 - the arguments', or the user's own functions'
            return replace(seen, refusal=failure_of(error))

    def bounds_of_model(self, *, starts_turn: bool) -> tuple[Bound, ...]:
        return self._bounds_of_turn if starts_turn else self._bounds_of_call

    # The tools

    def bounds_of_tool(self, call: Call, lane: Lane) -> tuple[Bound, ...]:
        tool = self._agent.tools.get(call.tool)
        if tool is None or (tool.lane is None and tool.limit is None):
            return ()
        try:
            return tool.bounds(tool.arguments.parse(call.args), lane.tenant)
        except Exception:  # noqa: BLE001 - running it says what is wrong with its arguments or lane
            return ()

    def key_of_tool(self, call: Call, lane: Lane) -> str:
        tool = self._agent.tools.get(call.tool)
        try:
            return dedupe_of(tool, tool.arguments.parse(call.args), lane) if tool else ""
        except Exception:  # noqa: BLE001 - running it says what is wrong with its arguments or key
            return ""

    def place_for(self, call: Call, start: Start, tell: Callable[[], None]) -> Place | None:
        tool = self._agent.tools.get(call.tool)
        return self._threads.place(tell) if tool and needs_thread(tool, start) else None

    async def may_answer(self, lane: Lane, reply: Reply) -> bool:
        """Ask the tool; what it cannot say in time is a no."""
        tool = self._tool_asked_about(lane, reply)
        if tool is None:
            return True
        if reply.args and (misfit := misfit_of(tool, reply.args)):
            log.warning("edited arguments do not fit; it is asked anew", extra={"why": misfit})
            return False
        try:
            async with asyncio.timeout(LONGEST_DECISION):
                return await tool.may_be_approved_by(reply.by, requesters(lane))
        except Exception:  # the user's own function
            log.exception("approvers failed; the answer is refused", extra={"tool": tool.name})
            return False

    def _tool_asked_about(self, lane: Lane, reply: Reply) -> Tool | None:
        """Return the tool whose call waits for this answer to run; other waits are anybody's."""
        request = lane.turn.requests.get(reply.request_id) if lane.turn else None
        if not (lane.turn and request and request.is_question) or request.name or request.origin:
            return None
        return self._agent.tools.get(lane.turn.calls[request.call_id].tool)

    def patience_with(self, tool: str) -> Patience:
        known = self._agent.tools.get(tool)
        return Patience(known.timeout) if known else A_MINUTE

    def output_of(self, text: str, output: str | None) -> str:
        if output is not None:
            return to_json(output_value(output, self._agent))
        return text if self._agent.output_type else to_json(text)

    async def run_tool(self, call: Call, start: Start, desk: Desk) -> ToolEnd | None:
        tool = self._agent.tools.get(call.tool)
        if tool is None:
            return Raised(call.call_id, Failure("UNKNOWN_TOOL", f"{call.tool} is no longer there"))
        try:
            args, key = read(tool, call, desk.lane)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the arguments', or the user's own functions'
            if start.attempt > 1:  # nobody can say any more what became of it
                return Interrupted(call.call_id, "unreconciled", final=True)
            return Raised(call.call_id, failure_of(error))
        ctx: Context[Any] = Context(
            deps=self._deps,
            session=SessionContext(desk.lane, desk.slices, desk),
            call=call,
            desk=desk,
            key=key,
            around=self._around,
            max_depth=self._agent.max_depth,
        )
        try:
            return await ctx.waiting.watch(self._run(tool, ctx, args, start, desk))
        except Parked:
            return ctx.waiting.waits
        except asyncio.CancelledError:
            if desk.is_stopped or not ctx.waiting.is_parked:
                raise
            return ctx.waiting.waits
        except BaseExceptionGroup as group:  # of a task group in which something waits
            if ctx.waiting.is_parked:
                return ctx.waiting.waits
            if not isinstance(group, Exception):
                raise
            return Raised(
                call.call_id, failure_of(reason_of(group)), backoff=self._backoff(call.failed)
            )
        except NotEncodable as error:
            why = {"tool": call.tool, "why": error.message}
            log.warning("what a tool returned cannot be stored; its outcome is unknown", extra=why)
            return Interrupted(call.call_id, "unstorable")
        except ToolError as error:
            return Raised(call.call_id, failure_of(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool's own, which the model sees
            return Raised(call.call_id, failure_of(error), backoff=self._backoff(call.failed))
        finally:
            ctx.waiting.leave()

    async def _run(
        self, tool: Tool, ctx: Context[Any], args: dict[str, Any], start: Start, desk: Desk
    ) -> ToolEnd | None:
        if start.reconciles:
            with ctx.waiting.finding_out(start.reconciles):
                found = await self._reconcile(tool, ctx, args, desk)
            if found:
                return found
        if tool.transactional:
            return await self._transact(tool, ctx, args, desk)
        return ended(ctx, await with_its_deeds(ctx, self._call(tool, ctx, args, desk)))

    async def _transact(
        self, tool: Tool, ctx: Context[Any], args: dict[str, Any], desk: Desk
    ) -> ToolEnd | None:
        """Run a tool whose transaction, once opened, its outcome is recorded in."""
        try:
            async with AsyncExitStack() as stack:
                ctx._transaction = transaction = LazyTransaction(desk, stack)
                end = ended(ctx, await self._call(tool, ctx, args, desk))
                if transaction.opened and isinstance(end, Returned):
                    await desk.conclude(transaction.opened, end)
                    return None
                return end
        except StoreUnavailable:
            return Interrupted(ctx.call_id, "undone")  # with the transaction: nothing was done
        except Undone:
            return Interrupted(ctx.call_id, CONTENDED)

    async def _call(self, tool: Tool, ctx: Context[Any], args: dict[str, Any], desk: Desk) -> Any:
        given = (ctx,) if tool.arguments.takes_context else ()
        if tool.is_async:
            return await tool.function(*given, **args)
        ctx.is_awaited = False
        running = in_thread(desk, lambda: tool.function(*given, **args))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be stopped, but one that heeds ctx.cancelled may end in time.
            if desk.is_cancelled and await ends_within(running, THREAD_GRACE):
                return running.result()
            raise

    async def _reconcile(
        self, tool: Tool, ctx: Context[Any], args: Any, desk: Desk
    ) -> ToolEnd | None:
        """Find out what an interrupted call came to; None if it was not done."""
        if not callable(tool.on_interrupt):
            return None
        try:
            if inspect.iscoroutinefunction(reconcile := tool.on_interrupt):
                found = await reconcile(ctx, args)
            else:
                found = await in_thread(desk, lambda: reconcile(ctx, args))
            if found is NotDone or isinstance(found, NotDone):
                return None
            return returned(ctx.call_id, found, ctx)
        except (Exception, SystemExit):
            log.exception("a tool's reconcile function failed; the outcome stays unknown")
            return Interrupted(ctx.call_id, "unreconciled", final=True)


def model_bounds(agent: Agent[Any, Any], model: str, *, starts_turn: bool) -> tuple[Bound, ...]:
    """Return the limits of an agent's model calls; the first of a turn is under one more."""
    found = agent.model_limit.named(f"model:{model}") if agent.model_limit else []
    if starts_turn and agent.limit and agent.limit.rate:
        turns = Limit(rate=agent.limit.rate, per=agent.limit.per)
        found += turns.named(f"agent:{agent.name}")
    return in_order(found)


def in_thread(desk: Desk, function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run a function in the thread that its call has waited for."""
    assert desk.place is not None
    return desk.place.begin(function)


def needs_thread(tool: Tool, start: Start) -> bool:
    """Say whether a run of a tool calls a function that is not async."""
    reconcile = tool.on_interrupt if start.reconciles else None
    return not tool.is_async or (callable(reconcile) and not inspect.iscoroutinefunction(reconcile))


def misfit_of(tool: Tool, args: str) -> str:
    """Return why a tool cannot be called with these arguments, if it cannot."""
    try:
        tool.arguments.parse(args)
    except Exception as error:  # noqa: BLE001 - the arguments', or the user's own validators'
        return str(error)
    return ""


async def ends_within(running: asyncio.Future[Any], seconds: float) -> bool:
    done, _ = await asyncio.wait({running}, timeout=seconds)
    return bool(done)


class InstructionContext:
    """What a function that makes instructions is given."""

    def __init__(self, deps: Any, session: SessionContext) -> None:
        self.deps = deps
        self.session = session


def storable(text: str) -> str:
    """Return a text without the halves of characters that a provider may send."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def delta(said: Said, request: ModelRequest) -> Delta:
    call_id, attempt = request.call_id, request.attempt
    match said:
        case SaidText():
            text = storable(said.text)
            return MessageDelta(call_id=call_id, attempt=attempt, part=int(said.part), text=text)
        case SaidReasoning():
            text = storable(said.text)
            return ReasoningDelta(call_id=call_id, attempt=attempt, part=int(said.part), text=text)
        case BeganToolCall():
            return MessageDelta(
                call_id=call_id, attempt=attempt, part=int(said.part), tool=storable(said.tool)
            )
    raise TypeError(said)


def reason_of(group: BaseException) -> BaseException:
    """Return what a task group failed for, where that is one thing, or what a tool says itself."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    reasons = [reason_of(error) for error in group.exceptions]
    said = [reason for reason in reasons if isinstance(reason, ToolError)]
    return next(iter(said or reasons)) if said or len(reasons) == 1 else group


async def with_its_deeds(ctx: Context[Any], run: Awaitable[Any]) -> Any:
    """Await a run of a tool, and the steps that other tasks of it are at: they are recorded."""
    try:
        value = await run
    except asyncio.CancelledError:
        raise
    except BaseException:
        await ctx.waiting.until_not_busy()
        raise
    await ctx.waiting.until_not_busy()
    return value


def ended(ctx: Context[Any], value: Any) -> ToolEnd:
    """Return what a tool came to that ran to its end; it may have caught its own parking."""
    return ctx.waiting.waits if ctx.waiting.is_parked else returned(ctx.call_id, value, ctx)


def returned(call_id: str, value: Any, ctx: Context[Any]) -> Returned:
    """Return a tool's result as it is stored, with all that the tool had buffered."""
    message = None
    if isinstance(value, ToolResult):
        message, value = words_of(value.message), value.value
    leftovers = Leftovers(tuple(ctx.emitted), tuple(ctx.session.changes))
    return Returned(call_id, to_json(value), message, leftovers)


def words_of(message: Any) -> str | None:
    """Return what a tool shows the model: what is no text, as its value would be shown."""
    if isinstance(message, str):
        return storable(str.__str__(message))
    return None if message is None else to_json(message)


def check_output(args: str, agent: Agent[Any, Any]) -> None:
    try:
        output_value(args, agent)
    except StoreCorrupt as error:
        raise Retry(f"the answer does not fit: {error}") from None


def output_value(args: str, agent: Agent[Any, Any]) -> Any:
    """Return the typed answer that the output tool's arguments hold."""
    if agent.wraps_output:
        args = to_json(from_json(args, dict[str, Any]).get("value"))
    return from_json(args, agent.output_type)


def read(tool: Tool, call: Call, lane: Lane) -> tuple[dict[str, Any], str]:
    """Return a call's arguments and its own key, or raise what stands against running it."""
    args = tool.arguments.parse(call.args)
    tool.bounds(args, lane.tenant)
    if tool.idempotency_key is None:
        return args, ""
    scope = blake2b(scope_of(tool, lane).encode(), digest_size=10).hexdigest()
    return args, f"{scope}:{own_key(tool, args)}"


def dedupe_of(tool: Tool, args: dict[str, Any], lane: Lane) -> str:
    """Return the scope and key under which a call must not happen twice, if it has one."""
    if tool.dedupe == "call" or tool.idempotency_key is None:
        return ""
    return f"{scope_of(tool, lane)}\n{own_key(tool, args)}"


def scope_of(tool: Tool, lane: Lane) -> str:
    """Return where a key of the tool's own means the same."""
    return f"session:{lane.session}" if tool.dedupe == "session" else f"tenant:{lane.tenant}"


def own_key(tool: Tool, args: dict[str, Any]) -> str:
    assert tool.idempotency_key is not None
    return f"{tool.name}:{storable_key(tool.idempotency_key(args))}"


def failure_of(error: BaseException) -> Failure:
    """Return an exception as the model and the log get it: never endless, always storable."""
    said = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
    sentence = storable(said)
    if len(sentence) > LONGEST_FAILURE:
        sentence = sentence[:LONGEST_FAILURE] + "…"
    return Failure(code_of(error), sentence)


def code_of(error: BaseException) -> str:
    code = getattr(error, "code", None)
    if not isinstance(code, str) or isinstance(error, SystemExit):  # whose code is a status
        return "TOOL_ERROR"
    return storable(code)
