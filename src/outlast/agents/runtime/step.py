"""Steps: what a tool or a workflow does once, however often its call is run again.

A step is known by its name, or by its function and a digest of its arguments, and by how many of
these there were in its scope. Its start is recorded before its function is called wherever a cut
means something else than doing it again. Owns what a cut, a failure and a timeout of a step mean;
scopes are in `durable_wait.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal
from weakref import ref

import msgspec
from msgspec import Struct

from outlast.agents.runtime.durable_wait import NOT_THE_TOOLS, WaitTracker
from outlast.agents.runtime.failure import failure_of
from outlast.agents.runtime.json_value import from_json, to_json
from outlast.agents.runtime.transaction import LazyTransaction
from outlast.core.instant import Span
from outlast.core.lane import OpenCall, SpoiltStep
from outlast.core.message import check_text
from outlast.core.name import args_digest, quoted, wait_name
from outlast.core.record import (
    Failure,
    Option,
    ToolStepFailed,
    ToolStepRecorded,
    ToolStepStarted,
)
from outlast.core.result import NewWait, Question
from outlast.core.setting import count_of, one_of, seconds_of
from outlast.engine.owned_lane import TransactionUndone
from outlast.errors import (
    InvalidInput,
    NotEncodable,
    Retry,
    StepError,
    StepInterrupted,
    StoreUnavailable,
)
from outlast.log_context import get_logger
from outlast.store import Transaction

if TYPE_CHECKING:
    from outlast.agents.runtime.context import Context

log = get_logger("outlast.agents")

Remedy = Literal["rerun", "report", "ask", "fail"]
StepRemedy = Remedy | Callable[..., Any]
"""What it means for a step that it was cut off; a function finds out what became of it."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
CHOICES = (
    Option("done", "It was done: my text is its result"),
    Option("rerun", "Run it again"),
    Option("give_up", "Leave it: nobody knows"),
)


class NotDone:
    """Returned by a reconcile function for a call or a step that did not happen."""


class StepRules(Struct, frozen=True):
    """How a step is done. Without `on_interrupt` it goes by the tool that it is a step of."""

    on_interrupt: StepRemedy | None = None
    max_attempts: int = 1
    timeout: float | None = None
    transactional: bool = False

    @property
    def repeats(self) -> bool:
        """Whether a step that was cut off is simply done again."""
        return self.on_interrupt in (None, "rerun")


def step_rules(
    default: StepRemedy | None,
    on_interrupt: StepRemedy | None,
    max_attempts: int,
    timeout: Span | None,
    *,
    readonly: bool,
    transactional: bool,
) -> StepRules:
    """Return the rules of a step, if they can be meant."""
    if transactional and (readonly or on_interrupt not in (None, "rerun")):
        raise InvalidInput(
            "a step that is transactional left nothing where it was cut off, and is done again:"
            " leave out readonly and on_interrupt"
        )
    if readonly or transactional:
        default = "rerun"
    remedy = default if on_interrupt is None else on_interrupt
    if remedy is not None and not callable(remedy):
        one_of(Remedy, "on_interrupt of a step, if it is not a function,", remedy)
    return StepRules(
        remedy,
        count_of("max_attempts of a step", max_attempts),
        None if timeout is None else seconds_of("the timeout of a step", timeout),
        transactional,
    )


# What a step is known by


def function_name(function: Any) -> str:
    """Return the name of a function that says what is done; empty if it has none of its own."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", "") or type(function).__qualname__
    name = name.rpartition("<locals>.")[2]
    return "" if "<lambda>" in name else str(name)


def step_name(function: Any, args: tuple[Any, ...], name: str | None) -> str:
    """Return what a step is known by, besides its scope and how many there were."""
    if not callable(function):
        raise InvalidInput(
            f"ctx.step takes a function and its arguments, not {function!r:.80}:"
            ' ctx.step(charge, order, name="charge")'
        )
    if name is not None:
        return quoted(check_text("a step's name", name))
    found = function_name(function)
    if not found:
        raise InvalidInput("a lambda has no name to know a step by: say name=")
    said: Any = args
    inner = function
    while isinstance(inner, partial):
        said, inner = ((*inner.args, *said), inner.keywords), inner.func
    text = to_json(said, f"the arguments of the step {found} are", stable=True)
    return f"={quoted(found)}={args_digest(found, text)[:20]}"


_kinds: dict[int, tuple[ref[Any], Any]] = {}
"""The types that functions return, by the ids of their code, whose own hash takes 40 µs."""


def kind_of(function: Any) -> Any:
    """Return the type that a function says it returns; Any if it does not say."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        return Any
    known = _kinds.get(id(code))
    if known and known[0]() is code:
        return known[1]
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError, SyntaxError):
        hint = Any
    kind = Any if is_open(hint) else hint
    number = id(code)
    _kinds[number] = ref(code, lambda _: _kinds.pop(number, None)), kind
    return kind


def is_open(hint: Any) -> bool:
    """Whether a hint names no one type that JSON could be read as."""
    return hint is None or hint is object or isinstance(hint, typing.TypeVar)


# Doing it


class Step:
    """One step in one run of its call."""

    def __init__(
        self,
        ctx: Context[Any],
        key: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        rules: StepRules,
        title: str | None,
        scope: str = "",
        known_as: str = "",
    ) -> None:
        self._title = title or function_name(function)
        self._scope = scope
        self._known_as = known_as
        self._ctx = ctx
        self._waiting: WaitTracker = ctx._waiting
        self._journal = ctx._waiting.journal
        self._key = key
        self._function = function
        self._args = args
        self._rules = rules

    @property
    def _call(self) -> OpenCall:
        return self._waiting.call

    async def result(self) -> Any:
        """Return what it came to, in this run of the call or in an earlier one."""
        self._waiting.ask_for(self._key)
        known = self._call.memo.get(self._key)
        if known is not None:
            return self._read(known)
        if spoilt := self._call.spoilt.get(self._key):
            raise self._error(spoilt)
        if self._waiting.is_undoing:
            raise self._waiting.stop_at(NewWait(self._key))
        attempt = self._call.tried.get(self._key, 0)
        if not attempt and self._key not in self._call.begun:
            self._waiting.check_fits(self._scope, self._known_as, self._title)
        # A start without a result: an earlier run was cut off in the middle of it.
        if begun := self._call.begun.get(self._key):
            attempt = begun
            if (settled := await self._after_cut(begun)) is not None:
                return settled.value
        return await self._do(attempt + 1)

    def _read(self, text: str) -> Any:
        return from_json(text, kind_of(self._function))

    async def _do(self, attempt: int) -> Any:
        is_transaction = self._rules.transactional
        while True:
            # Its start need not be in the log: cut off, it is simply done again. That saves a
            # commit for each step.
            if self._rules.repeats and attempt == 1:
                await self._journal.record_noted()
            else:
                await self._journal.record(
                    ToolStepStarted(call_id=self._ctx.call_id, name=self._key, attempt=attempt)
                )
            try:
                # A branch that has lost is let finish a step that it is at.
                with self._waiting.busy():
                    text = await (self._transact() if is_transaction else self._happen())
                    return self._read(text)
            except NOT_THE_TOOLS:
                raise
            # A step that took too long may have happened all the same: the same question as after a
            # crash.
            except StepTimedOut:
                if not self._rules.repeats:
                    if (settled := await self._after_cut(attempt, "took too long")) is not None:
                        return settled.value
                    attempt += 1
                    continue
                failure = Failure("TIMEOUT", f"{self._said} took too long")
            except BaseException as error:
                if self._waiting.is_parked or not isinstance(error, Exception):
                    raise
                is_lost = isinstance(error, NotEncodable) and not is_transaction
                if is_lost and self._ctx._step_remedy is None:
                    raise  # then nobody knows what the tool has come to: it has done this
                failure = failure_of(error)
                # `Retry` is a word to the model, which has to change something first.
                if attempt >= self._rules.max_attempts or isinstance(error, Retry):
                    raise await self._failed(attempt, failure) from error
            if attempt >= self._rules.max_attempts:
                raise await self._failed(attempt, failure)
            await self._record_failure(attempt, failure, again=True)
            await self._pause(attempt)
            attempt += 1

    async def _happen(self) -> str:
        return await self._keep(await self._within_time())

    async def _within_time(self, *given: Transaction) -> Any:
        limit = asyncio.timeout(self._rules.timeout)
        try:
            async with limit:
                value = self._function(*given, *self._args)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            # Another TimeoutError is the function's own, such as that of a request it has made.
            if limit.expired():
                raise StepTimedOut from None
            raise

    async def _keep(self, value: Any) -> str:
        text = to_json(value, f"{self._said} returned")
        await self._journal.record(self._recorded(text))
        return text

    def _recorded(self, text: str) -> ToolStepRecorded:
        return ToolStepRecorded(call_id=self._ctx.call_id, name=self._key, value=text)

    async def _transact(self) -> str:
        """Do it in a transaction with the record of its result, again where that was undone."""
        # Not counted as attempts: the step was undone by no fault of its own, and left nothing.
        for undone in count():
            try:
                return await self._transact_once()
            except (StoreUnavailable, TransactionUndone) as error:
                log.warning("a step's transaction was undone", extra={"why": str(error)})
            await self._pause(undone)
        raise AssertionError("there is always another try")

    async def _transact_once(self) -> str:
        async with AsyncExitStack() as stack:
            transaction = LazyTransaction(self._journal, stack)
            with self._waiting.scope("step").transaction():
                value = await self._within_time(transaction)
            text = to_json(value, f"{self._said} returned")
            if transaction.opened:
                await self._journal.record_within(transaction.opened, self._recorded(text))
                return text
        await self._journal.record(self._recorded(text))
        return text

    async def _pause(self, tries: int) -> None:
        seconds = min(FIRST_PAUSE * 2.0**tries, LONGEST_PAUSE)
        await asyncio.sleep(self._journal.jitter(seconds))

    @property
    def _said(self) -> str:
        return f"the step {self._title!r} of {self._ctx.tool}"

    # Failures

    async def _record_failure(self, attempt: int, failure: Failure, *, again: bool) -> None:
        await self._journal.record(
            ToolStepFailed(
                call_id=self._ctx.call_id,
                name=self._key,
                attempt=attempt,
                error=failure,
                again=again,
            )
        )

    async def _failed(self, attempt: int, failure: Failure) -> Exception:
        await self._record_failure(attempt, failure, again=False)
        return self._error(SpoiltStep(failure))

    def _error(self, spoilt: SpoiltStep) -> Exception:
        error = spoilt.error
        if spoilt.interrupted:
            return StepInterrupted(error.message, step=self._key)
        if error.code == Retry.code:
            return Retry(error.message)
        return StepError(error.message, error.code, step=self._key)

    # Cuts

    async def _after_cut(self, attempt: int, why: str = "was interrupted") -> Settled | None:
        """Say what a step comes to that was cut off; None if it is to be done again."""
        remedy = self._rules.on_interrupt
        if self._rules.repeats:
            return None
        if callable(remedy):
            found = remedy(*self._args)
            found = await found if inspect.isawaitable(found) else found
            if found is NotDone or isinstance(found, NotDone):
                return None
            return Settled(self._read(await self._keep(found)))
        error = Failure("STEP_INTERRUPTED", f"{self._said} {why}: it may or may not have happened")
        if remedy == "fail":
            await self._journal.fail(error)
            await asyncio.get_running_loop().create_future()  # the turn stops this call
        if remedy == "ask" and self._waiting.lane.can_ask:
            answer = self._asked(attempt, error)
            if answer["option"] == "rerun":
                return None
            if answer["option"] == "done":
                return Settled(self._read(await self._keep(answer.get("text", ""))))
        await self._journal.record(
            ToolStepFailed(
                call_id=self._ctx.call_id,
                name=self._key,
                attempt=attempt,
                error=error,
                interrupted=True,
            )
        )
        raise StepInterrupted(error.message, step=self._key)

    def _asked(self, attempt: int, error: Failure) -> dict[str, str]:
        """Return what people say of it; the call parks until they have."""
        # By the attempt: should the next one be cut off as well, that is another question.
        wait = wait_name(f"{self._key}/", "ask", "=interrupted", attempt)
        known = self._waiting.come_since(wait)
        if known is not None:
            said = msgspec.json.decode(known)
            return {"option": said.get("option", ""), "text": said.get("text", "")}
        if self._waiting.has_begun(wait):
            raise self._waiting.stop_at(NewWait(wait))
        question = Question(f"{error.message}. What now?", CHOICES, allow_freeform=False)
        raise self._waiting.stop_at(NewWait(wait, question=question))


class Settled(Struct, frozen=True):
    """What a step that was cut off has come to."""

    value: Any


class StepTimedOut(BaseException):
    """A step took longer than it may. Not an Exception: it is the step's own affair."""
