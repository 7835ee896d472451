"""Rules of an agent: policies about its tool calls, feedback while it works, and checks at its end.

Owns the three protocols, the decorators that make rules of functions, and what rules are given.
Rules only look and say something; `agents/runtime/rule_run.py` runs them and sees to it that one
that fails lets nothing through. What they say is in the log, and comes from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, overload, runtime_checkable

from msgspec import Struct

from outlast.agents.runtime.context import SessionContext
from outlast.core.instant import Span
from outlast.core.message import Message
from outlast.core.setting import count_of, names_of, seconds_of
from outlast.errors import InvalidDefinition

Said = str | None | Awaitable[str | None]
"""The return value of a rule: a sentence for the model, or nothing."""

POLICY_TIMEOUT = FEEDBACK_TIMEOUT = 30.0
CHECK_TIMEOUT = 300.0
"""Seconds that a rule has, where it has no `timeout` of its own."""


class PolicyCall(Struct, frozen=True, kw_only=True):
    """A tool call that a model wants, as a policy sees it before a human is asked to approve it.

    `succeeded` are the tools that have succeeded in the session. `reads` and `writes` are the
    call's resources, as the tool names them; `known` are the resources that the lane has read or
    written, and that no other lane of the session has written since.
    """

    session: SessionContext
    deps: Any
    call_id: str
    tool: str
    args: Mapping[str, Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    succeeded: frozenset[str]
    known: frozenset[str]


class TurnContext(Struct, frozen=True, kw_only=True):
    """An open turn, as feedback providers and completion checkers see it.

    Attributes:
        text: The model's last text.
        output: The answer with which the turn would end: a value of the agent's `output_type`.
        calls: Tool calls of the turn that have an outcome.
        elapsed: Time since the turn began by the store's clock, waits included.
        refusals: Answers of the turn that were refused.
        succeeded: Tools that have succeeded in the session.
    """

    session: SessionContext
    deps: Any
    turn: str
    step: int
    messages: Sequence[Message]
    text: str
    output: Any
    calls: int
    elapsed: timedelta
    refusals: int
    succeeded: frozenset[str]


@runtime_checkable
class CallPolicy(Protocol):
    """A rule about tool calls. It may have a `timeout`: 30 seconds, if it has none."""

    @property
    def name(self) -> str: ...

    def refuse(self, call: PolicyCall) -> Said:
        """Return why the call must not run, for the model to read; None if it may."""
        ...


@runtime_checkable
class FeedbackProvider(Protocol):
    """Tells a model something from time to time. It may have a `timeout`: 30 seconds otherwise."""

    @property
    def name(self) -> str: ...

    @property
    def every(self) -> Every: ...

    def advise(self, turn: TurnContext) -> Said:
        """Return what the model is told with its next request; None for nothing."""
        ...


@runtime_checkable
class CompletionChecker(Protocol):
    """Says whether a turn may end. It may have a `timeout`: 300 seconds, if it has none."""

    @property
    def name(self) -> str: ...

    def missing(self, turn: TurnContext) -> Said:
        """Return what is missing, for the model to read; None if the turn may end."""
        ...


class NamedRule(Struct, frozen=True):
    """The class of all rules that are made here, so that a list of several kinds has a type."""


Rule = NamedRule | CallPolicy | FeedbackProvider | CompletionChecker


class Every(Struct, frozen=True):
    """When a feedback provider is asked: after so many tool calls, or so much time of a turn.

    With both, the first to be due counts. Both begin anew when it was asked. It is asked between
    two steps only.
    """

    calls: int = 0
    seconds: Span = 0.0

    def __post_init__(self) -> None:
        count_of("calls of Every", self.calls, least=0)
        if not (self.calls or seconds_of("seconds of Every", self.seconds, or_none=True)):
            raise InvalidDefinition("Every() is never due: give calls=…, seconds=… or both")


# Rules that are there


class SequentialDependency(NamedRule, frozen=True, kw_only=True):
    """Lets a tool be called only after others have succeeded in the session."""

    tool: str
    after: str | Sequence[str]

    @property
    def name(self) -> str:
        return f"{self.tool}_after_{'_'.join(self.needed)}"

    @property
    def needed(self) -> tuple[str, ...]:
        return (self.after,) if isinstance(self.after, str) else tuple(self.after)

    async def refuse(self, call: PolicyCall) -> str | None:
        if call.tool != self.tool:
            return None
        if not (missing := [name for name in self.needed if name not in call.succeeded]):
            return None
        return f"{self.tool} can be called only after {' and '.join(missing)} has succeeded"


class ReadBeforeWrite(NamedRule, frozen=True, kw_only=True):
    """Lets a call write only what the model has read before, in the same lane.

    Tools say what they read and write: `@tool(reads="path")`. A lane knows what it has written
    itself; what another lane of the session wrote since has to be read again. `exists` says whether
    a resource exists: a new one can be written without being read.
    """

    exists: Callable[[str], bool] | None = None
    name: str = "read_before_write"

    def refuse(self, call: PolicyCall) -> str | None:
        unread = [key for key in dict.fromkeys(call.writes) if key not in call.known]
        if self.exists is not None:
            unread = [key for key in unread if self.exists(key)]
        if not unread:
            return None
        return f"{call.tool} would write {', '.join(unread)}, which must be read first"


# Rules from functions


class FunctionPolicy(NamedRule, frozen=True):
    """A policy that is a function. Made by `@policy`."""

    function: Callable[[PolicyCall], Said]
    name: str
    tools: frozenset[str]
    timeout: float

    def refuse(self, call: PolicyCall) -> Said:
        return self.function(call)


class FunctionFeedback(NamedRule, frozen=True):
    """A feedback provider that is a function. Made by `@feedback`."""

    function: Callable[[TurnContext], Said]
    name: str
    every: Every
    timeout: float

    def advise(self, turn: TurnContext) -> Said:
        return self.function(turn)


class FunctionChecker(NamedRule, frozen=True):
    """A completion checker that is a function. Made by `@completion`."""

    function: Callable[[TurnContext], Said]
    name: str
    timeout: float

    def missing(self, turn: TurnContext) -> Said:
        return self.function(turn)


@overload
def policy(function: Callable[[PolicyCall], Said], /) -> FunctionPolicy: ...


@overload
def policy(
    *, tools: Sequence[str] = (), name: str = "", timeout: Span = POLICY_TIMEOUT
) -> Callable[[Callable[[PolicyCall], Said]], FunctionPolicy]: ...


def policy(
    function: Callable[[PolicyCall], Said] | None = None,
    /,
    *,
    tools: Sequence[str] = (),
    name: str = "",
    timeout: Span = POLICY_TIMEOUT,
) -> Any:
    """Make a policy of a function, for calls of the named tools or of all."""

    def made(function: Callable[[PolicyCall], Said]) -> FunctionPolicy:
        named = name_of("policy", function, name)
        only = frozenset(names_of(f"tools of the policy {named}", tools))
        return FunctionPolicy(function, named, only, seconds_of(f"timeout of {named}", timeout))

    return made if function is None else made(function)


def feedback(
    *, every: Every, name: str = "", timeout: Span = FEEDBACK_TIMEOUT
) -> Callable[[Callable[[TurnContext], Said]], FunctionFeedback]:
    """Make a feedback provider of a function."""

    def made(function: Callable[[TurnContext], Said]) -> FunctionFeedback:
        named = name_of("feedback", function, name)
        if not isinstance(every, Every):
            raise InvalidDefinition(f"{named} comes every Every(…), not {every!r}")
        return FunctionFeedback(function, named, every, seconds_of(f"timeout of {named}", timeout))

    return made


@overload
def completion(function: Callable[[TurnContext], Said], /) -> FunctionChecker: ...


@overload
def completion(
    *, name: str = "", timeout: Span = CHECK_TIMEOUT
) -> Callable[[Callable[[TurnContext], Said]], FunctionChecker]: ...


def completion(
    function: Callable[[TurnContext], Said] | None = None,
    /,
    *,
    name: str = "",
    timeout: Span = CHECK_TIMEOUT,
) -> Any:
    """Make a completion checker of a function."""

    def made(function: Callable[[TurnContext], Said]) -> FunctionChecker:
        named = name_of("completion", function, name)
        return FunctionChecker(function, named, seconds_of(f"timeout of {named}", timeout))

    return made if function is None else made(function)


def name_of(what: str, function: Any, name: Any) -> str:
    """Return what a rule is called: as was said, or like its function."""
    if not callable(function):
        raise InvalidDefinition(f"@{what} stands above a function, not {function!r}")
    return str(name or getattr(function, "__name__", type(function).__name__))
