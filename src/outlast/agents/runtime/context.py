"""The context of a running tool: its session, its state and its durable waits.

`put`, `append` and `emit` are buffered and committed with the call's outcome; an
attempt that fails or is interrupted leaves none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol

import msgspec
from msgspec import Struct
from typing_extensions import TypeVar

from outlast.agents.runtime.authorization import require
from outlast.agents.runtime.callback import Callback
from outlast.agents.runtime.durable_wait import Steps, WaitTracker
from outlast.agents.runtime.environment import ALONE, Environment
from outlast.agents.runtime.json_value import from_json, slice_name, to_json
from outlast.agents.runtime.subagent_call import Subagent
from outlast.core.instant import Span, date_of, milliseconds, since_epoch
from outlast.core.lane import Lane, OpenCall
from outlast.core.message import check_text
from outlast.core.name import KEYED, check_id, check_token, effect_key, round_token
from outlast.core.policy import OnExpiry
from outlast.core.record import Option, SessionRekeyed, StateChanged, ToolEmitted
from outlast.core.result import NewWait, Question, SliceUpdate
from outlast.core.setting import one_of
from outlast.core.view import Slices, change
from outlast.engine.executor import CallJournal
from outlast.errors import (
    InvalidInput,
    NotInTransaction,
    TokenTaken,
    ToolError,
    UnknownAgent,
    UnknownConnection,
)
from outlast.store import Transaction

T = TypeVar("T")
P = ParamSpec("P")
Deps = TypeVar("Deps", default=Any)


class WaitingContext(Protocol):
    """A context with durable waits. `_path` is the parameter annotation that asks for it."""

    _path: ClassVar[str]

    @property
    def _waiting(self) -> WaitTracker | None: ...


Given = TypeVar("Given", bound=WaitingContext)


def for_async_tools(
    method: Callable[Concatenate[Given, P], T],
) -> Callable[Concatenate[Given, P], T]:
    """Refuse in a thread what has to be awaited: there it would come to nothing, and unnoticed."""

    @wraps(method)
    def checked(self: Given, /, *args: P.args, **named: P.kwargs) -> T:
        if self._waiting and self._waiting.in_thread:
            raise InvalidInput(
                f"{self._path}.{method.__name__} has to be awaited:"
                f" write {self._waiting.tool} as `async def`"
            )
        return method(self, *args, **named)

    return checked


class Answer(Struct, frozen=True):
    """A human's answer to `ctx.ask`."""

    option: str = ""
    text: str = ""


class Slice(Generic[T]):
    """The values of one type in the session's state, oldest first."""

    def __init__(self, values: Sequence[str], kind: type[T]) -> None:
        self._values = values
        self._kind = kind

    def all(self) -> list[T]:
        return [from_json(value, self._kind) for value in self._values]

    def latest(self) -> T | None:
        return from_json(self._values[-1], self._kind) if self._values else None


class SessionContext:
    """The session as tools and instructions see it."""

    _path: ClassVar[str] = "ctx.session"

    def __init__(self, lane: Lane, slices: Slices, journal: CallJournal | None = None) -> None:
        self.id = lane.session
        self.lane = lane.name
        self.turn = lane.turn.id if lane.turn else ""
        self.agent = lane.agent
        self.tenant = lane.tenant
        self.principal = lane.principal
        self.parent = lane.parent.session_id if lane.parent else None
        self.can_ask = lane.can_ask
        self.deadline = date_of(lane.deadline) if lane.deadline else None
        self._changes: list[StateChanged | SessionRekeyed | SliceUpdate] = []
        self._slices = slices
        self._journal = journal
        self._waiting: WaitTracker | None = None

    def query(self, kind: type[T]) -> Slice[T]:
        """Return what the session keeps of a type, this call's own changes included."""
        return Slice(self._slices.get(slice_name(kind), ()), kind)

    def put(self, value: object) -> None:
        """Keep a value as the only one of its type."""
        self._change("put", type(value), value)

    def append(self, value: object) -> None:
        """Keep a value beside the others of its type."""
        self._change("append", type(value), value)

    def update(self, kind: type[T], change: Callable[[T | None], T]) -> T:
        """Replace the value of a type by what a function makes of it, and return that.

        The function is applied once more, to the newest value, when the outcome is recorded:
        of two calls that update at the same time none is lost.
        """
        name = slice_name(kind)

        def made_of(slices: Slices) -> StateChanged:
            value = change(Slice(slices.get(name, ()), kind).latest())
            return StateChanged(slice=name, op="put", value=to_json(value))

        self._apply(made_of(self._slices))
        self._changes.append(SliceUpdate(made_of))
        return from_json(self._slices[name][-1], kind)  # type: ignore[no-any-return]

    def _change(self, op: str, kind: type, value: object) -> None:
        record = StateChanged(slice=slice_name(kind), op=op, value=to_json(value))
        self._changes.append(record)
        self._apply(record)

    def _apply(self, record: StateChanged) -> None:
        self._slices = change(self._slices, record)

    @for_async_tools
    async def set_continuation_token(self, token: str, *, revoke: Sequence[str] = ()) -> None:
        """Give the session another address; the old ones forward to it unless revoked."""
        if self._journal is None or self._waiting is None:
            raise InvalidInput("a continuation token can be set by tools only")
        token = check_token(token, reserved=(KEYED,))  # to a channel's thread it may move
        if isinstance(revoke, str):
            raise InvalidInput("revoke names tokens: give a list of them")
        revoked = tuple(check_id("continuation_token", each) for each in revoke)
        with self._waiting.busy():
            owner = await self._journal.find_token(token)
        if owner not in (None, self.id):
            raise TokenTaken("another session has this continuation token: choose another")
        self._changes.append(SessionRekeyed(token=token, revoked=revoked))


class InstructionContext(Generic[Deps]):
    """The argument of a function that makes instructions."""

    def __init__(self, deps: Deps, session: SessionContext) -> None:
        self.deps = deps
        self.session = session


class Context(Generic[Deps]):
    """The context that a running tool is given."""

    _path: ClassVar[str] = "ctx"

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
        self.idempotency_key = key or effect_key(session.id, call.call_id)
        self.approved_by = call.approved_by
        self._emitted: list[ToolEmitted] = []
        self._waiting = session._waiting = WaitTracker(call, journal)
        self._steps = Steps()
        self._call = call
        self._journal = journal
        self._environment = environment
        self._max_depth = max_depth
        self._transaction: Transaction | None = None

    @property
    def has_address(self) -> bool:
        """Whether the app can be reached from outside, so that callbacks can be opened."""
        return bool(self._environment.public_url)

    @property
    def cancelled(self) -> bool:
        """Whether the turn is being cancelled: a good time to stop."""
        return self._journal.is_cancelled

    @property
    def tx(self) -> Transaction:
        """The transaction that this call shares with the record of its outcome."""
        if self._transaction is None:
            raise NotInTransaction("ctx.tx is there for tools with transactional=True only")
        return self._transaction

    def emit(self, name: str, data: Any = None) -> None:
        """Add an event of your own to the session's stream, with the call's outcome."""
        event = ToolEmitted(
            call_id=self.call_id, name=check_id("name of an event", name), data=to_json(data)
        )
        self._emitted.append(event)

    @for_async_tools
    async def heartbeat(self, progress: Any = None) -> None:
        """Tell readers how far this call is. Cheap: at most ten a second are kept."""
        self._not_in_transaction("heartbeat")
        with self._waiting.busy():
            await self._journal.progress(self.call_id, to_json(progress))

    @for_async_tools
    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Do something once, however often this call is run again, and return its result.

        It comes back as plain data, as JSON has it. Steps of one name that follow one another are
        several steps; those that are done at once need names of their own.
        """
        self._not_in_transaction("step")
        self._waiting.check()
        self._waiting.course("step", name)
        with self._steps.next(name, self._waiting.of) as key:
            if key not in self._call.memo:
                with self._waiting.busy():
                    value = function(*args)
                    known = to_json(await value if inspect.isawaitable(value) else value)
                    await self._journal.record_step(self.call_id, key, known)
                memo = {**self._call.memo, key: known}
                self._call = msgspec.structs.replace(self._call, memo=memo)
            return from_json(self._call.memo[key])

    @for_async_tools
    async def ask(
        self,
        prompt: str,
        options: Sequence[str | Option] = (),
        *,
        allow_freeform: bool = True,
        timeout: Span | None = None,
        on_expiry: OnExpiry = "deny",
    ) -> Answer:
        """Ask a human and wait, for a week if need be, or only for a `timeout`.

        If there is no answer by then, ToolError is raised; with `on_expiry="fail"` the turn
        fails.
        The call ends here and is run again from its first line when the answer is there.
        """
        self._not_in_transaction("ask")
        name, known = self._waiting.next("ask", prompt)
        if known is not None:
            answer = msgspec.json.decode(known)
            if answer.get("expired"):
                raise ToolError("nobody answered in time")
            return msgspec.convert(answer, Answer)
        if self._waiting.has_begun(name):
            raise await self._waiting.stop_at(NewWait(name))
        if not self._journal.lane.can_ask:
            raise ToolError("nobody can be asked in this session")
        choices = choices_of(options)
        if not choices and not allow_freeform:
            raise InvalidInput("a question needs options, or allow_freeform=True")
        expires_at = 0 if timeout is None else self._journal.now() + max(1, milliseconds(timeout))
        question = Question(
            check_text("a prompt", prompt),
            choices,
            bool(allow_freeform),
            expires_at,
            one_of(OnExpiry, "on_expiry", on_expiry),
        )
        raise await self._waiting.stop_at(NewWait(name, question=question))

    @for_async_tools
    async def sleep(self, duration: Span) -> None:
        """Wait, holding nothing. The call is run again from its first line afterwards."""
        self._not_in_transaction("sleep")
        name, known = self._waiting.next("sleep")
        if known is None:
            raise await self._waiting.stop_until(name, milliseconds(duration))

    @for_async_tools
    async def wait_until(self, at: datetime) -> None:
        """Wait for an instant, holding nothing. One that has passed is not waited for."""
        self._not_in_transaction("wait_until")
        due_at = since_epoch("an instant", at)
        name, known = self._waiting.next("wait_until")
        if known is None and due_at > self._journal.now():
            raise await self._waiting.stop_at(NewWait(name, due_at=due_at))

    @for_async_tools
    async def callback(self, name: str, *, timeout: Span) -> Callback:
        """Open an address at which a service outside can call this tool, once.

        Hand its `url` over within a `ctx.step`, then `await callback.wait()`. Only a digest of
        the address is kept. After `timeout`, a week perhaps, it leads nowhere and the wait fails.
        """
        name, known = self._next_callback(check_id("name of a callback", name))
        if known is not None:
            return Callback(self._waiting, name, "")
        with self._waiting.busy():
            token = await self._journal.open_callback(self.call_id, name, milliseconds(timeout))
        return Callback(self._waiting, name, self._callback_url(token))

    @for_async_tools
    async def _signed_callback(self, token: str, *, timeout: Span) -> Callback:
        """Open an address that is the same in every run of the call, as its `token` is.

        What comes in there is refused unless it is signed as the tool's `_callback_secret` says;
        that it came is all that is kept. It can be called again once the tool has run again.
        """
        first, known = self._next_callback("signed")
        name, rounds = first, 1
        while known is not None:
            rounds += 1
            name = f"{first}#{rounds}"
            known = self._waiting.come_since(name)
        with self._waiting.busy():
            await self._journal.open_callback(
                self.call_id,
                name,
                milliseconds(timeout),
                token=round_token(token, rounds),
                signer=self.tool,
            )
        return Callback(self._waiting, name, self._callback_url(token))

    def _next_callback(self, about: str) -> tuple[str, str | None]:
        self._not_in_transaction("callback")
        if not self._environment.public_url:
            raise InvalidInput(
                "a callback needs the address at which this app is reached from outside:"
                ' Outlast(public_url="https://…")'
            )
        return self._waiting.next("callback", about)

    def _callback_url(self, token: str) -> str:
        return f"{self._environment.public_url}/v1/callbacks/{token}"

    @for_async_tools
    async def require_auth(
        self,
        connection: str,
        *,
        scopes: Sequence[str] = (),
        timeout: Span | None = None,
        instead_of: str = "",
    ) -> str:
        """Return an access token for a connection of the app; wait for a sign-in if need be.

        It is the principal's, or the app's, and good for these `scopes`. Where somebody has to
        sign in first, the call ends here and is run again from its first line when they have;
        ToolError is raised if they said no, or did nothing before the `timeout`. A token that the
        service has refused is given as `instead_of`, for another one.
        """
        self._not_in_transaction("require_auth")
        if self._environment.sign_ins is None:
            raise UnknownConnection(
                f"this app has no connection {connection!r}: Outlast(connections=[…])",
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
        """Return another agent of the app, or one elsewhere that its agents know, to be asked."""
        self._not_in_transaction("agent")
        agent = self._environment.agents.get(name)
        if agent is None:
            known = ", ".join(sorted(self._environment.agents)) or "none"
            raise UnknownAgent(f"this app has no agent {name!r}; it has: {known}", agent=name)
        return Subagent(self._waiting, agent, self._max_depth)

    def _not_in_transaction(self, what: str) -> None:
        if self._transaction is not None:
            raise NotInTransaction(f"ctx.{what} cannot be used in a transactional tool")


def choices_of(options: Sequence[str | Option]) -> tuple[Option, ...]:
    """Return the answers that a question offers, if each can be chosen and shown."""
    if isinstance(options, str):
        raise InvalidInput("options are several answers: give a list of them")
    return tuple(
        Option(check_text("an option", each.id), check_text("an option's label", each.label))
        if isinstance(each, Option)
        else Option(*2 * (check_text("an option", each),))
        for each in options
    )
