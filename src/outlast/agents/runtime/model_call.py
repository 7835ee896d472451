"""Asks an agent's model, and looks at what it says before anything of it runs.

What a client raises, and what the user's own instructions do, becomes a failure here; the log and
the time limits are the engine's.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.agents.agent import Agent
from outlast.agents.decision import ProposedCall, decided
from outlast.agents.limit import Limit, in_order
from outlast.agents.model.client import (
    AnswerCutOff,
    FinishedAnswer,
    KeepAlive,
    ModelClient,
    ModelFailure,
    ModelPiece,
    ModelRequest,
    ReasoningPiece,
    TextPiece,
    ToolCallPiece,
)
from outlast.agents.model.error import classify_error, hint_of
from outlast.agents.model.price import ModelPricing
from outlast.agents.prompt.render import PromptRenderer, RenderedPrompt
from outlast.agents.runtime.context import InstructionContext, SessionContext
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.failure import failure_of
from outlast.agents.runtime.json_value import TypeMismatch, answered, fitted, from_json, to_json
from outlast.agents.runtime.loop_watch import LoopWatch, answer_of, noted
from outlast.agents.runtime.rule_run import RuleRunner
from outlast.agents.runtime.tool_call import backoff, dedupe_of
from outlast.agents.tool import ask_question
from outlast.agents.validation import OUTPUT_TOOL
from outlast.clock import Clock
from outlast.core import codec
from outlast.core.action import CallModel, CompactContext
from outlast.core.breaker import Provider
from outlast.core.budget_admission import CallEstimate
from outlast.core.compaction import BYTES_PER_TOKEN, bytes_of
from outlast.core.lane import Lane
from outlast.core.limit import Bound
from outlast.core.message import (
    ModelAnswer,
    Part,
    Reasoning,
    Text,
    ToolCall,
    UserMessage,
    storable,
    text_of,
)
from outlast.core.name import args_digest, tool_call_name
from outlast.core.policy import MINUTE
from outlast.core.record import Failure, MessageDelta, ReasoningDelta
from outlast.core.result import Answered, ModelFailed, RequestedCall, Usage
from outlast.core.slice import Slices
from outlast.core.view import View
from outlast.engine.call_tasks import CallTimeouts
from outlast.engine.executor import Hear, LaneModel
from outlast.errors import OutputChanged, Retry


def check_output(args: str, agent: Agent[Any, Any]) -> None:
    """Have the model correct an answer that is not of the agent's output type."""
    try:
        answered(wrapped_value(args, agent), agent.output_type)
    except TypeMismatch as why:
        raise Retry(f"the answer does not fit: {why}") from None


def misfit_of(text: str, agent: Agent[Any, Any]) -> str:
    """Say why a text is no answer of an agent with an output type; nothing, if it is one."""
    try:
        answered(text, agent.output_type)
    except TypeMismatch as why:
        return f"{why}; call {OUTPUT_TOOL} with it"
    return ""


def output_of(text: str, output: str | None, agent: Agent[Any, Any]) -> Any:
    """Return what an agent answered, in a text or as the output tool's arguments.

    Raises OutputChanged if that is not of the type which the agent has today.
    """
    if agent.output_type is None:
        return text if output is None else from_json(output)
    try:
        return fitted(text, agent.output_type) if output is None else value_of(output, agent)
    except TypeMismatch as why:
        name = getattr(agent.output_type, "__name__", agent.output_type)
        said = text if output is None else output
        raise OutputChanged(
            f"the answer of {agent.name} does not fit {name} as it is today: {why}; give new fields"
            " defaults, or take the answer as it was given from this error's details: output",
            agent=agent.name,
            output=said,
        ) from None


def value_of(args: str, agent: Agent[Any, Any]) -> Any:
    """Return the value that the output tool's arguments hold. Raises TypeMismatch."""
    return fitted(wrapped_value(args, agent), agent.output_type)


def wrapped_value(args: str, agent: Agent[Any, Any]) -> str:
    """Return the JSON of an answer, which stands in an object if its type is none."""
    return to_json(fitted(args, dict[str, Any]).get("value")) if agent.wraps_output else args


Delta = MessageDelta | ReasoningDelta

MOST_OUTPUT = 8192
"""The most tokens that an answer is reckoned to have, where the agent's settings do not say."""
LAST_CALL = (
    "The budget of this work is spent: no more tools can be called. Answer now with what you have,"
    " and say what is missing."
)
INSTRUCTIONS_FAILED = "INSTRUCTIONS_FAILED"
NO_MORE_CALLS = Failure("BUDGET_EXHAUSTED", "not run: the budget allows no more calls")
FIRST_PARK, LONGEST_PAUSE = 4_000, MINUTE
NOTHING_HIDDEN: Mapping[str, str] = {}

_answers = msgspec.msgpack.Decoder(FinishedAnswer)


class ModelCaller:
    """One of an agent's models in one worker, with all that depends on which of them it is."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        number: int,
        client: ModelClient,
        deps: Any,
        clock: Clock,
        environment: Environment,
        rules: RuleRunner,
        renderer: PromptRenderer | None = None,
        watch: LoopWatch | None = None,
    ) -> None:
        self._rules = rules
        self._has_policies = rules.has_policies
        self._renderer = renderer
        self._watch = watch
        self._agent = agent
        self.pricing = ModelPricing(agent.prices, agent.policy.models[number], client)
        self.client = client
        self._deps = deps
        self._clock = clock
        self._environment = environment
        # The model may be unable to give its answers in pieces.
        streams = agent.stream and bool(getattr(client, "can_stream", True))
        self.model = LaneModel(number, agent.policy.models[number], streams)
        # A model that answers in one piece shows no progress before it.
        self.timeouts = CallTimeouts(agent.model_timeout, agent.idle_timeout if streams else inf)
        self.bounds_of_call = model_bounds(agent, self.model.name, starts_turn=False)
        self.bounds_of_turn = model_bounds(agent, self.model.name, starts_turn=True)
        self._specs_unasked = tuple(
            tool.spec for tool in agent.tools.values() if tool is not ask_question
        )

    @property
    def provider(self) -> Provider:
        """The provider; a client of somebody's own may not know where that is."""
        address = getattr(self.client, "address", "")
        deployment = self._environment.deployment
        return Provider(self._agent.name, self.model.name, address, deployment)

    async def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Answered | ModelFailed:
        # Messages are rendered once and kept: another model's client has another form for them.
        view.render_for(self.model.name)
        try:
            prompt = await self._prompt(lane, slices)
        # Not tried again by itself: they would fail in the same way, and a retry of the turn comes
        # after a mend.
        except Exception as error:  # noqa: BLE001 - the user's own instructions
            sentence = f"the instructions of the agent {self._agent.name} failed: "
            failed = Failure(INSTRUCTIONS_FAILED, sentence + failure_of(error).message)
            return ModelFailed(failed, kind="recoverable")
        result: Answered | ModelFailed
        try:
            if refused := await self.pricing.refusal():
                pause = self._pause(lane, "blocked")
                return ModelFailed(refused, "blocked", backoff=pause)
            finished = await self._ask(self._request(lane, slices, view, action, prompt), hear)
            # The breaker is told how old the answer is: hooks and policies may take long, and the
            # provider fail meanwhile.
            given_at = self._clock.monotonic()
            result = await self._answered(finished, action, lane, slices, prompt, hear)
            if ended_ago := int((self._clock.monotonic() - given_at) * 1000):
                result = replace(result, ended_ago=ended_ago)
        except Exception as error:  # noqa: BLE001 - the client says what it means
            result = self._failed(error, lane)
        return replace(result, prompt=prompt.sections) if prompt.sections else result

    async def sum_up(
        self, lane: Lane, action: CompactContext, hear: Hear, instructions: str, text: str
    ) -> Answered | ModelFailed:
        """Ask the model about a text, and nothing else: without the conversation and the tools."""
        view = View()
        view.messages.append(UserMessage((Text(text),)))
        view.offsets.append(0)
        request = ModelRequest(
            view=view,
            call_id=action.call_id,
            attempt=action.attempt,
            instructions=instructions,
            settings=self._agent.model_settings,
        )
        try:
            if refused := await self.pricing.refusal():
                return ModelFailed(refused, "blocked")
            finished = await self._ask(request, hear)
            said = Text(storable(text_of(finished.parts)))
            answer = proven_answer(finished, (said,))
        except Exception as error:  # noqa: BLE001 - the client says what it means
            return self._failed(error, lane)
        name, price = self.model.name, self.pricing.price(answer)
        return Answered(answer.parts, answer.usage, model=name, finish=answer.finish, price=price)

    async def estimate(
        self, lane: Lane, slices: Slices, view: View, joins: Sequence[str]
    ) -> CallEstimate:
        """Return what the next call may use, and cost: its input counted, its output at most.

        The count begins at the usage that the provider reported last, where it has.
        """
        since = view.messages
        if tokens := lane.context.tokens:
            answers = (n for n, said in enumerate(view.messages) if isinstance(said, ModelAnswer))
            since = view.messages[max(answers, default=-1) + 1 :]
        else:
            tokens = len(str(self._agent.instructions)) // BYTES_PER_TOKEN
            specs = sum(len(to_json(spec.schema)) for spec in self._agent.specs)
            tokens += specs // BYTES_PER_TOKEN
        tokens += sum(bytes_of(message) // BYTES_PER_TOKEN + 4 for message in since)
        tokens += sum(len(result.text) for result in view.pending) // BYTES_PER_TOKEN
        said = map(UserMessage, view.waiting(joins))
        tokens += sum(bytes_of(message) // BYTES_PER_TOKEN + 4 for message in said)
        most = self._agent.model_settings.get("max_tokens", MOST_OUTPUT)
        await self.pricing.prepare()
        asked = self.pricing.price_of(Usage(input_tokens=tokens))
        answered = self.pricing.price_of(Usage(output_tokens=1_000_000))
        return CallEstimate(
            tokens,
            most if isinstance(most, int) and most > 0 else MOST_OUTPUT,
            asked.nano_usd if asked else None,
            answered.nano_usd if answered else None,
        )

    def timed_out(self, lane: Lane) -> ModelFailed:
        return self._failed(TimeoutError(), lane)

    def cut_off(self, lane: Lane) -> ModelFailed:
        return self._failed(AnswerCutOff("the client gave up"), lane)

    def _request(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, prompt: RenderedPrompt
    ) -> ModelRequest:
        # Without anybody who answers, the question is not offered at all.
        tools = self._agent.specs if lane.can_ask else self._specs_unasked
        if prompt.hidden:
            tools = tuple(spec for spec in tools if spec.name not in prompt.hidden)
        instructions, tail = prompt.instructions, prompt.tail
        if self._renderer is None and (guidance := self._agent.guidance):
            instructions = f"{instructions}\n\n{guidance}" if instructions else guidance
            if planning := self._agent.planning:
                tail = planning.tail(SessionContext(lane, slices))
        settings = self._agent.model_settings
        if action.hold and action.hold.max_tokens:
            settings = {**settings, "max_tokens": action.hold.max_tokens}
        if action.is_last:
            tools = ()
            tail = f"{tail}\n\n{LAST_CALL}" if tail else LAST_CALL
        return ModelRequest(
            view=view,
            call_id=action.call_id,
            attempt=action.attempt,
            instructions=instructions,
            tools=tools,
            output=self._agent.output,
            settings=settings,
            # An answer that goes on where it was cut off goes on from the last words.
            tail="" if view.unsettled else tail,
        )

    async def _prompt(self, lane: Lane, slices: Slices) -> RenderedPrompt:
        """Return what the model is told, as the session's state makes it now."""
        instructions = self._agent.instructions
        if isinstance(instructions, str):
            return RenderedPrompt(instructions)
        session = SessionContext(lane, slices)
        if self._renderer:
            return await self._renderer.render(session)
        assert callable(instructions)
        ctx = InstructionContext(self._deps, session)
        name = self._agent.name
        return RenderedPrompt(await answer_of(self._watch, instructions, ctx, instructions=name))

    async def _ask(self, request: ModelRequest, hear: Hear) -> FinishedAnswer:
        """Return the whole answer, having said what was said on the way."""
        if not self.model.streams:
            return await self.client.request(request)
        pieces = self.client.stream(request)
        try:
            async for said in pieces:
                if isinstance(said, FinishedAnswer):
                    return said
                hear(None if isinstance(said, KeepAlive) else delta(said, request))
        finally:
            # Closed here: left to the garbage collector, the connection would stay open until that
            # comes by.
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        # Providers' streams that end early raise nothing: an answer is whole only if it says so.
        raise AnswerCutOff("the stream ended before the answer did")

    def _failed(self, error: Exception, lane: Lane) -> ModelFailed:
        if isinstance(error, TimeoutError | AnswerCutOff):
            message = str(error) or "the model did not answer in time"
            code = "MODEL_TIMEOUT" if isinstance(error, TimeoutError) else "ANSWER_CUT_OFF"
            meaning = ModelFailure("transient", Failure(code, message))
        else:
            meaning = classify_error(self.client, error)
        pause = self._pause(lane, meaning.kind)
        failure = meaning.error
        if meaning.kind in ("transient", "blocked") and not failure.hint:
            # A client's own `classify` may say better what to mend.
            failure = replace(failure, hint=hint_of(failure.code, self.client.name))
        return ModelFailed(failure, meaning.kind, meaning.retry_after, backoff=pause)

    def _pause(self, lane: Lane, kind: str) -> int:
        """Return how long to wait before the model is asked again, in milliseconds.

        Soon at first, in this worker; where the lane parks, longer each time, up to a minute.
        """
        model = lane.turn.model if lane.turn else None
        failed = model.failed if model else 0
        if kind == "blocked" and not (model and model.may_pass):
            return LONGEST_PAUSE
        is_soon = kind != "blocked" and failed + 1 < self._agent.policy.max_attempts
        if is_soon and lane.outage is None:
            return backoff(self._clock, failed)
        attempts = lane.outage.attempts if lane.outage else 0
        return min(int(self._clock.jitter(FIRST_PARK * 2.0 ** min(attempts, 10))), LONGEST_PAUSE)

    async def _answered(
        self,
        finished: FinishedAnswer,
        action: CallModel,
        lane: Lane,
        slices: Slices,
        prompt: RenderedPrompt,
        hear: Hear,
    ) -> Answered:
        parts: list[Part] = []
        wanted: list[RequestedCall] = []
        for part in finished.parts:
            if isinstance(part, ToolCall):
                # By its place, and not by the provider's id: the same answer gives the same names
                # after a crash.
                call_id = tool_call_name(action.call_id, len(wanted) + 1)
                part = replace(part, call_id=call_id, args=storable(part.args))
                seen = self._wanted(part, lane, prompt.hidden)
                if action.is_last and not seen.output:
                    seen = replace(seen, refusal=NO_MORE_CALLS)
                # Not about what is refused anyway: a hook would be asked about arguments that no
                # tool takes.
                if self._environment.deciders and not (seen.output or seen.refusal):
                    hear(None)  # the model has spoken: it is not silent while hooks decide
                    seen = await self._decided(seen, part, lane)
                if self._has_policies and not (seen.output or seen.refusal or seen.denied):
                    seen = await self._allowed(seen, part, lane, slices, hear)
                wanted.append(seen)
            elif isinstance(part, Text | Reasoning):
                part = replace(part, text=storable(part.text))
            parts.append(part)
        is_text = self._agent.output and not wanted
        misfit = misfit_of(text_of(tuple(parts)), self._agent) if is_text else ""
        whole = proven_answer(finished, tuple(parts))
        return Answered(
            whole.parts,
            whole.usage,
            tuple(wanted),
            whole.model,
            whole.finish,
            misfit=misfit,
            price=self.pricing.price(whole),
        )

    async def _decided(self, wanted: RequestedCall, part: ToolCall, lane: Lane) -> RequestedCall:
        """Let the hooks have their say about a call that the model asks for."""
        call = ProposedCall(
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
            self._environment.deciders,
            lambda args: self._wanted(replace(part, args=args), lane),
        )

    async def _allowed(
        self, wanted: RequestedCall, part: ToolCall, lane: Lane, slices: Slices, hear: Hear
    ) -> RequestedCall:
        """Let the policies look at a call, with the arguments that hooks have left it."""
        tool = self._agent.tools[part.tool]
        args = tool.arguments.parse(wanted.changed or part.args)
        found = await self._rules.refuse(tool, args, part.call_id, lane, slices, hear)
        return replace(wanted, policy=found[0], denied=found[1]) if found else wanted

    def _wanted(
        self, part: ToolCall, lane: Lane, hidden: Mapping[str, str] = NOTHING_HIDDEN
    ) -> RequestedCall:
        """Look at a call that the model asks for, before anything runs."""
        # Before the arguments are parsed: an approval is for the exact words of the call.
        digest = args_digest(part.tool, part.args)
        seen = RequestedCall(part.call_id, part.tool, digest)
        try:
            if part.tool == OUTPUT_TOOL and self._agent.output:
                check_output(part.args, self._agent)
                return replace(seen, output=True)
            tool = self._agent.tools.get(part.tool)
            # Old names are for calls that are open in the log. A model is told the name of today.
            if now := self._agent.aliases.get(part.tool):
                raise Retry(f"there is no tool named {part.tool} any more: it is {now} now")
            if tool is None:
                names = ", ".join(each for each in self._agent.tools if each not in hidden)
                names = names or "none"
                raise Retry(f"there is no tool named {part.tool}; there is: {names}")
            if path := hidden.get(part.tool):
                raise Retry(
                    f"{part.tool} can be called while the section {path} of the instructions is"
                    " shown in full, and now it is not"
                )
            args = tool.arguments.parse(part.args)
            tool.bounds(args, lane.tenant)
            if tool.has_resources:
                tool.reads(args), tool.writes(args)  # what they raise is a refusal, too
            if callable(tool.approval):
                with noted(self._watch, approval=tool.name):
                    asks = tool.asks(args)
            else:
                asks = tool.asks(args)
            return replace(
                seen,
                asks=asks,
                dedupe=dedupe_of(tool, args, lane),
                formerly=tuple([args_digest(alias, part.args) for alias in tool.aliases]),
            )
        # A refusal, which the model can correct: the rest of its answer stands.
        except Exception as error:  # noqa: BLE001 - the arguments', or the user's own functions'
            return replace(seen, refusal=failure_of(error))


def proven_answer(finished: FinishedAnswer, parts: tuple[Part, ...]) -> FinishedAnswer:
    """Return an answer with these parts as the log will have it.

    Clients are others' code, too: an answer that cannot be read again is none, and what it says of
    its usage is added up, by databases that refuse a sum which is too large.
    """
    whole = replace(finished, parts=parts, usage=finished.usage.within_bounds())
    return codec.proven(whole, _answers)


def delta(said: ModelPiece, request: ModelRequest) -> Delta:
    call_id, attempt = request.call_id, request.attempt
    match said:
        case TextPiece():
            text = storable(said.text)
            return MessageDelta(call_id=call_id, attempt=attempt, part=int(said.part), text=text)
        case ReasoningPiece():
            text = storable(said.text)
            return ReasoningDelta(call_id=call_id, attempt=attempt, part=int(said.part), text=text)
        case ToolCallPiece():
            return MessageDelta(
                call_id=call_id, attempt=attempt, part=int(said.part), tool=storable(said.tool)
            )
    raise TypeError(said)


def model_bounds(agent: Agent[Any, Any], model: str, *, starts_turn: bool) -> tuple[Bound, ...]:
    """Return the limits of an agent's model calls; the first of a turn is under one more."""
    found = agent.model_limit.named(f"model:{model}") if agent.model_limit else []
    if starts_turn and agent.limit and agent.limit.rate:
        turns = Limit(rate=agent.limit.rate, per=agent.limit.per)
        found += turns.named(f"agent:{agent.name}")
    return in_order(found)
