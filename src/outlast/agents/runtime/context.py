"""The context of a running tool: its session, its state and its durable waits.

`session.mutate` and `emit` are buffered and committed with the call's outcome; an attempt that
fails or is interrupted leaves nothing of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, Literal, overload

import msgspec
from msgspec import Struct
from typing_extensions import TypeVar, TypeVarTuple, Unpack

from outlast.agents.runtime.authorization import require
from outlast.agents.runtime.branch import ConcurrentWaits
from outlast.agents.runtime.callback import Callback
from outlast.agents.runtime.durable_wait import WaitTracker, digest, for_async_tools
from outlast.agents.runtime.environment import ALONE, AgentRef, Environment
from outlast.agents.runtime.json_value import to_json
from outlast.agents.runtime.step import Step, StepRemedy, step_name, step_rules
from outlast.agents.runtime.subagent_call import Subagent
from outlast.agents.state.mutation import SessionMutation, SliceMutation, StateBuffer
from outlast.agents.state.slice_type import type_of
from outlast.agents.state.stored_value import Slice
from outlast.core.instant import Span, date_of, milliseconds, since_epoch
from outlast.core.lane import Lane, OpenCall
from outlast.core.message import check_text
from outlast.core.name import KEYED, OF_CHANNEL, OF_QUEUE, check_id, check_token, effect_key, quoted
from outlast.core.policy import OnExpiry
from outlast.core.record import NewOutboxCursor, Option, SessionRekeyed, ToolEmitted
from outlast.core.result import NewWait, Question
from outlast.core.setting import one_of
from outlast.core.slice import Slices
from outlast.engine.executor import CallJournal
from outlast.errors import (
    InvalidInput,
    NotInTransaction,
    TokenTaken,
    ToolError,
    UnknownAgent,
    UnknownChannel,
    UnknownConnection,
)
from outlast.store import Transaction

T = TypeVar("T")
Args = TypeVarTuple("Args")
Deps = TypeVar("Deps", default=Any)


class Answer(Struct, frozen=True):
    """A human's answer to `ctx.ask`; `prompt` is the question as the human saw it."""

    option: str = ""
    text: str = ""
    prompt: str = ""


class SessionContext:
    """The session as tools and instructions see it."""

    _path: ClassVar[str] = "ctx.session"

    def __init__(
        self,
        lane: Lane,
        slices: Slices,
        journal: CallJournal | None = None,
        anchors: Callable[[str], tuple[NewOutboxCursor, ...]] | None = None,
    ) -> None:
        self.id = lane.session
        self.lane = lane.name
        self.turn = lane.turn.id if lane.turn else ""
        self.agent = lane.agent
        self.tenant = lane.tenant
        self.principal = lane.principal
        self.parent = lane.parent.session_id if lane.parent else None
        self.can_ask = lane.can_ask
        self.tags = lane.tags
        self.deadline = date_of(lane.deadline) if lane.deadline else None
        self._state = StateBuffer(slices)
        self._journal = journal
        self._anchors = anchors
        self._waiting: WaitTracker | None = None

    def query(self, kind: type[T]) -> Slice[T]:
        """Return the session's values of a type, this call's own changes included."""
        return self._state.query(type_of(kind))

    @overload
    def mutate(self, kind: type[T]) -> SliceMutation[T]: ...

    @overload
    def mutate(self) -> SessionMutation: ...

    def mutate(self, kind: type[T] | None = None) -> SliceMutation[T] | SessionMutation:
        """Return the way to change the session's values of a type, or of all types.

        Changes are recorded with the call's outcome.
        """
        if kind is None:
            return SessionMutation(self._state)
        return SliceMutation(type_of(kind), self._state)

    @for_async_tools
    async def set_continuation_token(self, token: str, *, revoke: Sequence[str] = ()) -> None:
        """Give the session another address; the old ones forward to it unless revoked.

        With the token of a channel's thread, the session's answers, requests and sign-ins are sent
        to that thread from now on, wherever the session began. UnknownChannel is raised for the
        token of a channel that the app does not have.
        """
        if self._journal is None or self._waiting is None:
            raise InvalidInput("a continuation token can be set by tools only")
        token = check_token(token, reserved=(KEYED, OF_QUEUE))  # to a channel's thread it may move
        if isinstance(revoke, str):
            raise InvalidInput("revoke has to be a list of tokens")
        revoked = tuple(check_id("continuation_token", each) for each in revoke)
        with self._waiting.busy():
            # Only so that the tool is told early: another session may take the token before this
            # call's outcome is committed, and the commit is what decides.
            owner = await self._journal.find_token(token)
        if owner not in (None, self.id):
            raise TokenTaken("another session has this continuation token: choose another")
        outbox = self._anchors(token) if self._anchors else ()
        # Without a cursor of that channel the session's answers would go nowhere, and nothing would
        # say so.
        if token.startswith(OF_CHANNEL) and not outbox:
            raise UnknownChannel(
                f"this app has no channel with the thread {token}: nobody would be told there"
            )
        # With the outcome: a call that is cut off has not moved the session.
        self._state.changes.append(SessionRekeyed(token=token, revoked=revoked, outbox=outbox))


class InstructionContext(Generic[Deps]):
    """The argument of a function that makes instructions."""

    def __init__(self, deps: Deps, session: SessionContext) -> None:
        self.deps = deps
        self.session = session


class Context(ConcurrentWaits, Generic[Deps]):
    """The context that a running tool is given."""

    _path: ClassVar[str] = "ctx"
    _step_remedy: ClassVar[StepRemedy | None] = None
    """What the cut of a step means that says nothing of it; None: what the tool says of itself."""

    def __init__(
        self,
        *,
        deps: Deps,
        session: SessionContext,
        call: OpenCall,
        journal: CallJournal,
        key: str = "",
        environment: Environment = ALONE,
        max_depth: int = 0,
    ) -> None:
        self.deps = deps
        self.session = session
        self.call_id = call.call_id
        self.tool = call.tool
        self.attempt = call.attempt
        # The same in every attempt, which is what makes it a key.
        self.idempotency_key = key or effect_key(session.id, call.call_id)
        self.approved_by = call.approved_by
        self._emitted: list[ToolEmitted] = []
        self._waiting = session._waiting = WaitTracker(call, journal)
        session._state.whose, session._state.is_open = call.tool, True
        self._call = call
        self._journal = journal
        self._environment = environment
        self._max_depth = max_depth
        self._transaction: Transaction | None = None

    @property
    def has_address(self) -> bool:
        """Whether the app has a `public_url`, so that callbacks can be opened."""
        return bool(self._environment.public_url)

    @property
    def cancelled(self) -> bool:
        """Whether the turn is being cancelled: a long tool should look, and stop."""
        return self._journal.is_cancelled

    @property
    def tx(self) -> Transaction:
        """The transaction that this call shares with the record of its outcome."""
        if self._transaction is None:
            raise NotInTransaction(
                "ctx.tx is there for tools with transactional=True only; a step with"
                " transactional=True is given its own as its first argument"
            )
        return self._transaction

    def emit(self, name: str, data: Any = None) -> None:
        """Add an event of your own to the session's stream, with the call's outcome."""
        name = check_id("name of an event", name)
        text = to_json(data, f"{self.tool} emitted {name} with")
        self._emitted.append(ToolEmitted(call_id=self.call_id, name=name, data=text))

    @for_async_tools
    async def heartbeat(self, progress: Any = None) -> None:
        """Tell readers how far this call is. It is cheap: at most ten a second are recorded."""
        self._not_in_transaction("heartbeat")
        text = to_json(progress, f"{self.tool} gave as its progress")
        with self._waiting.busy():
            await self._journal.progress(self.call_id, text)

    @overload
    async def step(
        self,
        function: Callable[[Transaction, Unpack[Args]], Awaitable[T]],
        *args: *Args,
        name: str | None = None,
        max_attempts: int = 1,
        timeout: Span | None = None,
        transactional: Literal[True],
    ) -> T: ...
    @overload
    async def step(
        self,
        function: Callable[[Unpack[Args]], Awaitable[T]],
        *args: *Args,
        name: str | None = None,
        max_attempts: int = 1,
        timeout: Span | None = None,
        on_interrupt: StepRemedy | None = None,
        readonly: bool = False,
    ) -> T: ...
    @overload
    async def step(
        self,
        function: Callable[[Unpack[Args]], T],
        *args: *Args,
        name: str | None = None,
        max_attempts: int = 1,
        timeout: Span | None = None,
        on_interrupt: StepRemedy | None = None,
        readonly: bool = False,
    ) -> T: ...
    @for_async_tools  # type: ignore[misc] # mypy finds no common form of what it decorates
    async def step(
        self,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        max_attempts: int = 1,
        timeout: Span | None = None,
        on_interrupt: StepRemedy | None = None,
        readonly: bool = False,
        transactional: bool = False,
    ) -> Any:
        """Do something once, however often this call is run again, and return its result.

        The result comes back from JSON: as the type that the function is declared to return, else
        as plain data. A step is known by its `name`, or by its function and arguments, and by how
        many of the same came before it; each branch of a `gather` has its own. If the function
        raises, it is tried `max_attempts` times; then the error is recorded, and StepError is
        raised.

        `on_interrupt` says what happens after a step was cut off, or took longer than `timeout`:
        "report" raises StepInterrupted, "rerun" does it again, "ask" asks a human, "fail" fails the
        turn, and a function of the same arguments finds out and returns the result, or NotDone. The
        default in a tool is what the tool says of interruptions, in a workflow "report". A
        `readonly` step is done again. Except with "rerun" or `readonly`, the start of the step is
        recorded before its function is called.

        A `transactional` step is an async function that gets a transaction of Outlast's own
        database as its first argument: its statements and the record of its result are one commit,
        so it happens once.
        """
        self._not_in_transaction("step")
        rules = step_rules(
            self._step_remedy,
            on_interrupt,
            max_attempts,
            timeout,
            readonly=readonly,
            transactional=transactional,
        )
        known_as = step_name(function, args, name)
        scope = self._waiting.scope("step")
        # Before the step is entered, which has a path of its own.
        path = scope.path
        with scope.step(known_as) as key:
            step = Step(self, key, function, args, rules, name, path, known_as)
            return await step.result()

    @for_async_tools
    async def ask(
        self,
        prompt: str,
        options: Sequence[str | Option] = (),
        *,
        name: str | None = None,
        allow_freeform: bool = True,
        timeout: Span | None = None,
        on_expiry: OnExpiry = "deny",
    ) -> Answer:
        """Ask a human and wait, for as long as the `timeout` says, or without limit.

        The call ends here and is run again from its first line when the answer is there. Without an
        answer in time ToolError is raised; with `on_expiry="fail"` the turn fails.

        A question is known by its exact words and options. If the words differ from run to run,
        give it a `name`: then it is the same question, and `answer.prompt` has the words that the
        human saw. If the chosen option is no longer offered, the question is asked again.
        """
        self._not_in_transaction("ask")
        question = Question(
            check_text("a prompt", prompt),
            choices_of(options),
            bool(allow_freeform),
            on_expiry=one_of(OnExpiry, "on_expiry", on_expiry),
        )
        if not question.options and not question.allow_freeform:
            raise InvalidInput("a question needs options, or allow_freeform=True")
        # Looked up first, also where nobody can be asked any more: an answer that was given counts.
        wait, answer = self._answer_to(question, name)
        if answer is not None:
            return answer
        # It was asked in an earlier run: asked again, there would be two.
        if self._waiting.has_begun(wait):
            raise self._waiting.stop_at(NewWait(wait))
        if not self._journal.lane.can_ask:
            raise ToolError("nobody can be asked in this session")
        if timeout is not None:
            expires_at = self._journal.latest() + max(1, milliseconds(timeout))
            question = msgspec.structs.replace(question, expires_at=expires_at)
        raise self._waiting.stop_at(NewWait(wait, question=question))

    def _answer_to(self, question: Question, name: str | None) -> tuple[str, Answer | None]:
        """Return the wait that a question is, and the answer that was given to it, if any."""
        options = {option.id for option in question.options}
        known_as = digest(question.prompt, question.options, question.allow_freeform)
        if name is not None:
            known_as = quoted(check_id("name of a wait", name))
        for wait, known in self._waiting.rounds("ask", known_as):
            if known is None:
                return wait, None
            said = msgspec.json.decode(known)
            if said.get("expired"):
                raise ToolError("nobody answered in time")
            answer = msgspec.convert(said, Answer)
            # The code may have changed since: an option that it no longer offers is no answer to
            # it.
            if answer.option in options if answer.option else question.allow_freeform:
                return wait, answer
        raise AssertionError("there is always another round")

    @for_async_tools
    async def sleep(self, duration: Span, *, name: str | None = None) -> None:
        """Wait for a time. The call parks, and is run again from its first line afterwards.

        A sleep is known by its `name`, or by how many sleeps came before it, never by its length.
        """
        self._not_in_transaction("sleep")
        wait, known = self._waiting.next("sleep", time_name(name))
        if known is None:
            raise self._waiting.stop_until(wait, milliseconds(duration))

    @for_async_tools
    async def wait_until(self, at: datetime, *, name: str | None = None) -> None:
        """Wait until an instant, like `sleep`; return at once if it has passed.

        It is known in the same way as a `sleep`.
        """
        self._not_in_transaction("wait_until")
        due_at = since_epoch("an instant", at)
        wait, known = self._waiting.next("wait_until", time_name(name))
        # By the earlier bound of the store's clock, so that it is never over before its time.
        if known is None and due_at > self._journal.earliest():
            raise self._waiting.stop_at(NewWait(wait, due_at=due_at))

    @for_async_tools
    async def callback(self, name: str, *, timeout: Span) -> Callback:
        """Open an address at which a service outside can call this tool, once.

        Hand its `url` over within a `ctx.step`, then `await callback.wait()`. Only a digest of the
        address is stored. After the `timeout` the address is closed and the wait fails.
        """
        self._not_in_transaction("callback")
        about = check_id("name of a callback", name)
        if not self._environment.public_url:
            raise InvalidInput(
                "a callback needs the address at which this app is reached from outside:"
                ' Outlast(public_url="https://…")'
            )
        wait, known = self._waiting.next("callback", quoted(about))
        if known is not None:
            return Callback(self._waiting, wait, "")
        # The body is run only to collect its undo: nothing new is opened.
        if self._waiting.is_undoing:
            return Callback(self._waiting, wait, "")
        with self._waiting.busy():
            token = await self._journal.open_callback(self.call_id, wait, milliseconds(timeout))
        # Only in this process and only now: the log has a digest of the token.
        url = f"{self._environment.public_url}/v1/callbacks/{token}"
        return Callback(self._waiting, wait, url)

    @for_async_tools
    async def require_auth(
        self,
        connection: str,
        *,
        scopes: Sequence[str] = (),
        timeout: Span | None = None,
        instead_of: str = "",
    ) -> str:
        """Return an access token for a connection of the app; wait for a sign-in if there is none.

        The token is the principal's, or the app's, and has these `scopes`. If somebody has to sign
        in first, the call ends here and is run again from its first line afterwards. ToolError is
        raised if the user declined, or did nothing before the `timeout`. Pass a token that the
        service has rejected as `instead_of` to get another one.
        """
        self._not_in_transaction("require_auth")
        if self._environment.sign_ins is None:
            raise UnknownConnection(
                f"this app has no connection {connection!r}:"
                " Outlast(connections=ConnectionSettings([…], …))",
                connection=connection,
            )
        return await require(
            self._waiting,
            self._environment.sign_ins,
            connection,
            scopes=scopes,
            timeout=timeout,
            instead_of=instead_of,
        )

    @for_async_tools
    def agent(self, name: str) -> Subagent:
        """Return another agent of the app, or a remote agent that its agents know, to ask it."""
        agent = self._environment.agents.get(name)
        if agent is None:
            self._not_in_transaction("agent")
            known = ", ".join(sorted(self._environment.agents)) or "none"
            raise UnknownAgent(f"this app has no agent {name!r}; it has: {known}", agent=name)
        return subagent_of(self, agent)

    def _not_in_transaction(self, what: str) -> None:
        if self._transaction is not None:
            raise NotInTransaction(f"ctx.{what} cannot be used in a transactional tool")
        if self._waiting.in_transaction:
            raise NotInTransaction(f"ctx.{what} cannot be used in a transactional step")


def choices_of(options: Sequence[str | Option]) -> tuple[Option, ...]:
    """Return the answers that a question offers, if each can be chosen and shown."""
    if isinstance(options, str):
        raise InvalidInput("options have to be a list of answers, not one text")
    return tuple(
        Option(check_text("an option", each.id), check_text("an option's label", each.label))
        if isinstance(each, Option)
        else Option(*2 * (check_text("an option", each),))
        for each in options
    )


def time_name(name: str | None) -> str:
    """Return what a wait for a time is known by, besides how many there were."""
    return "" if name is None else quoted(check_id("name of a wait", name))


def subagent_of(ctx: Context[Any], agent: AgentRef) -> Subagent:
    """Return an agent to be asked by a call, whether the app knows it by name or not."""
    ctx._not_in_transaction("agent")
    return Subagent(ctx._waiting, agent, ctx._max_depth)
