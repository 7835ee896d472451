"""Runs an agent's rules in a worker, and says what each came to.

A rule is run as a tool is: an async one on the event loop, any other in a thread. One that raises,
takes too long or returns something else lets nothing through: what it was asked about is refused,
for a reason that says so. Of a feedback provider nothing is told then.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from outlast.agents.agent import Agent
from outlast.agents.rule import (
    CHECK_TIMEOUT,
    FEEDBACK_TIMEOUT,
    POLICY_TIMEOUT,
    CallPolicy,
    CompletionChecker,
    FeedbackProvider,
    FunctionChecker,
    FunctionFeedback,
    FunctionPolicy,
    PolicyCall,
    TurnContext,
)
from outlast.agents.runtime.context import SessionContext
from outlast.agents.runtime.failure import failure_of, failure_text
from outlast.agents.runtime.loop_watch import LoopWatch, answer_of
from outlast.agents.runtime.thread import ThreadSlot, ToolThreads
from outlast.agents.tool import Tool
from outlast.core.action import CheckCompletion, GiveFeedback
from outlast.core.done_call import done_calls
from outlast.core.lane import Lane
from outlast.core.message import Message, ModelAnswer, text_of
from outlast.core.record import Failure
from outlast.core.result import CompletionChecked, FeedbackCollected, FeedbackSaid
from outlast.core.slice import Slices
from outlast.core.view import View
from outlast.engine.executor import Hear
from outlast.log_context import get_logger

log = get_logger("outlast.agents")

T = TypeVar("T")
RULE_FAILED = "RULE_FAILED"
AskedRule = CallPolicy | FeedbackProvider | CompletionChecker
FROM_FUNCTION = (FunctionPolicy, FunctionFeedback, FunctionChecker)


class RuleFailed(Exception):
    """A rule did not say what it was asked for."""


class RuleRunner:
    """One agent's rules in one worker."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        deps: Any,
        threads: ToolThreads,
        watch: LoopWatch | None = None,
    ) -> None:
        self._agent = agent
        self._rules = agent.rules
        self._deps = deps
        self._threads = threads
        self._watch = watch

    # Tool calls

    @property
    def has_policies(self) -> bool:
        return bool(self._rules.policies)

    async def refuse(
        self, tool: Tool, args: dict[str, Any], call_id: str, lane: Lane, slices: Slices, hear: Hear
    ) -> tuple[str, str] | None:
        """Return which policy refuses a call, and why; None if it may run."""
        done = done_calls(slices)
        call = PolicyCall(
            session=SessionContext(lane, slices),
            deps=self._deps,
            call_id=call_id,
            tool=tool.name,
            args=args,
            reads=tool.reads(args),
            writes=tool.writes(args),
            succeeded=frozenset(done.tools),
            known=done.known_to(lane.name),
        )
        for policy in self._rules.policies:
            if (
                isinstance(policy, FunctionPolicy)
                and policy.tools
                and call.tool not in policy.tools
            ):
                continue
            hear(None)  # the model has spoken: it is not silent while policies look
            try:
                reason = await self._ask(policy, policy.refuse, call, POLICY_TIMEOUT)
            except RuleFailed as failed:
                reason = f"the policy {policy.name} {failed}"
            if reason:
                return policy.name, reason
        return None

    # Turns

    async def give_feedback(
        self, lane: Lane, slices: Slices, view: View, action: GiveFeedback, now: int
    ) -> FeedbackCollected:
        turn = self._turn(lane, slices, view, now, None)
        said: list[FeedbackSaid] = []
        for provider in self._rules.feedback:
            # Decided by the log, so that after a crash the same ones are asked.
            if provider.name not in action.due:
                continue
            try:
                text = await self._ask(provider, provider.advise, turn, FEEDBACK_TIMEOUT)
                said.append(FeedbackSaid(provider.name, text))
            except RuleFailed as failed:
                error = Failure(RULE_FAILED, f"the feedback {provider.name} {failed}")
                said.append(FeedbackSaid(provider.name, error=error))
        return FeedbackCollected(action.turn, action.step, tuple(said))

    async def check_completion(
        self,
        lane: Lane,
        slices: Slices,
        view: View,
        action: CheckCompletion,
        output: Any,
        now: int,
    ) -> CompletionChecked:
        """Ask all checkers, so that the model learns at once of all that is missing."""
        turn = self._turn(lane, slices, view, now, output)
        reasons: dict[str, str] = {}
        for checker in self._rules.checkers:
            try:
                reason = await self._ask(checker, checker.missing, turn, CHECK_TIMEOUT)
            except RuleFailed as failed:
                reason = f"it could not be checked: the checker {failed}"
            if reason:
                reasons[checker.name] = reason
        return CompletionChecked(action.turn, action.step, self._rules.checker_names, reasons)

    def _turn(self, lane: Lane, slices: Slices, view: View, now: int, output: Any) -> TurnContext:
        assert lane.turn is not None
        return TurnContext(
            session=SessionContext(lane, slices),
            deps=self._deps,
            turn=lane.turn.id,
            step=lane.turn.step,
            messages=tuple(view.messages),
            text=last_words(view.messages),
            output=output,
            calls=lane.turn.ended,
            elapsed=timedelta(milliseconds=max(0, now - lane.turn.began)),
            refusals=lane.turn.refusals,
            succeeded=frozenset(done_calls(slices).tools),
        )

    # One rule

    async def _ask(
        self, rule: AskedRule, function: Callable[[Any], Any], about: Any, default: float
    ) -> str:
        """Return what a rule says, or nothing. Raises RuleFailed."""
        if isinstance(rule, FROM_FUNCTION):
            function = rule.function
        seconds = float(getattr(rule, "timeout", default))
        slot = None if inspect.iscoroutinefunction(function) else await self._slot(about)
        running = asyncio.ensure_future(self._run(rule, function, about, slot))
        try:
            await asyncio.wait({running}, timeout=seconds)
        finally:  # one that does not even stop is left to itself
            running.cancel()
            if slot:
                slot.leave()
        if running.cancelled():
            raise RuleFailed("has cancelled itself")
        if not running.done():
            log.error("a rule took too long", extra={"rule": rule.name, "seconds": seconds})
            raise RuleFailed(f"took longer than {seconds:g} seconds")
        return running.result()

    async def _slot(self, about: PolicyCall | TurnContext) -> ThreadSlot:
        """Return the slot of a thread. The time that a rule has does not begin before it is had."""
        is_taken = asyncio.Event()
        slot = self._threads.place(is_taken.set, about.session.tenant)
        try:
            if not slot.is_taken:
                await is_taken.wait()
        except BaseException:
            slot.leave()
            raise
        return slot

    async def _run(
        self, rule: AskedRule, function: Callable[[Any], Any], about: Any, slot: ThreadSlot | None
    ) -> str:
        try:
            if slot:
                found = await slot.begin(lambda: function(about))
                found = await found if inspect.isawaitable(found) else found
            else:
                found = await answer_of(self._watch, function, about, rule=rule.name)
        except (Exception, SystemExit) as error:
            log.exception("a rule failed", extra={"rule": rule.name})
            raise RuleFailed(f"failed: {failure_of(error).message}") from None
        if found is None:
            return ""
        if isinstance(found, str) and found.strip():
            return failure_text(found)
        said = f"returned {found!r:.80}, and not a sentence or None"
        log.error("a rule %s", said, extra={"rule": rule.name})
        raise RuleFailed(failure_text(said))


def last_words(messages: Sequence[Message]) -> str:
    """Return what the model said last."""
    answers = (each for each in reversed(messages) if isinstance(each, ModelAnswer))
    return text_of(last.parts) if (last := next(answers, None)) else ""
