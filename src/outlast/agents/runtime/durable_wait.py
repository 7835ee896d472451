"""The waits of one run of a tool: known by what they are, and by what they came to.

A tool that has to wait is unwound by `Parked`, and run again from its first line when it wakes; a
wait that is over returns at once then. A wait is known by its scope, its kind, its name (given, or
a digest of what is asked of whom) and how many of that name there were in the scope. A scope is
the tool's own sequence of waits or that of a branch (`branch.py`), each in a task of its own. Each
is unwound at its wait, and what awaits branches is unwound when all that have not ended are: so the
tool parks when nothing in it can go on.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from hashlib import blake2b
from itertools import count
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from outlast.core.fold_wait import WITHDRAWN
from outlast.core.lane import Lane, OpenCall
from outlast.core.name import RECONCILE, is_wait, wait_name
from outlast.core.record import Failure
from outlast.core.result import NewWait, ToolWaits
from outlast.core.undo import UNDO_SCOPE
from outlast.engine.executor import CallJournal
from outlast.engine.lane_folds import LaneLost, LaneStale
from outlast.errors import InvalidInput
from outlast.log_context import get_logger

log = get_logger("outlast.workflows")

REPLAY_MISMATCH = "REPLAY_MISMATCH"
"""The code of what a call waits for whose code does not fit what it has done."""

T = TypeVar("T")
P = ParamSpec("P")

METHODS = {"authorization": "require_auth", "agent": "agent(…).ask"}
"""Kinds of waits that are not called as the method of `ctx` is."""


class Parked(BaseException):
    """Unwinds a tool that waits. Private, and not an Exception: tools cannot swallow it."""

    def __init__(self) -> None:
        super().__init__("the tool waits")


NOT_THE_TOOLS = (
    *(Parked, LaneLost, LaneStale),
    *(asyncio.CancelledError, KeyboardInterrupt, GeneratorExit),
)
"""Exceptions that unwind a tool from outside; all others are the tool's own."""


class Scope:
    """A sequence of waits and steps within a run: the tool's own, or a branch's.

    `waits` are those that it has stopped at: whatever comes of unwinding it is no outcome.
    `parent` is the scope that awaits it, if it is a branch's.
    """

    waits: tuple[NewWait, ...] = ()
    in_transaction = False
    _is_withdrawn = False
    _deeds = 0
    _rested: asyncio.Future[None] | None = None

    def __init__(
        self, path: str, task: asyncio.Task[Any] | None = None, parent: "Scope | None" = None
    ) -> None:
        self.path = path
        self.task = task
        self._parent = parent
        self._counts: dict[str, int] = {}
        self._open_steps: set[str] = set()

    @property
    def is_withdrawn(self) -> bool:
        """Whether nothing awaits it any more: it ends where it uses the context next."""
        return self._is_withdrawn or (self._parent is not None and self._parent.is_withdrawn)

    def withdraw(self) -> None:
        self._is_withdrawn = True

    def count(self, kind: str, name: str) -> int:
        """Return how many of a name there were in this scope, this one included."""
        key = f"{kind}:{name}"
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    @contextmanager
    def step(self, name: str) -> Iterator[str]:
        """Give the step that is done meanwhile the key under which its result is kept.

        Its own waits are counted apart: once it is recorded, it does not come to them any more.
        """
        if name in self._open_steps:
            raise InvalidInput(
                f"the step {name!r} is done within a step of the same name: name them apart"
            )
        number = self.count("step", name)
        path, counts = self.path, self._counts
        key = wait_name(path, "step", name, number)
        self.path, self._counts = f"{key}/", {}
        self._open_steps.add(name)
        try:
            yield key
        finally:
            self.path, self._counts = path, counts
            self._open_steps.discard(name)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do something meanwhile that nothing may wait in, nor be recorded."""
        self.in_transaction = True
        try:
            yield
        finally:
            self.in_transaction = False

    @contextmanager
    def deed(self) -> Iterator[None]:
        """Do something meanwhile that the scope is not withdrawn in the middle of."""
        self._deeds += 1
        try:
            yield
        finally:
            self._deeds -= 1
            if not self._deeds and self._rested and not self._rested.done():
                self._rested.set_result(None)

    async def until_rest(self) -> None:
        """Let a step that it is at come to its end."""
        while self._deeds:
            self._rested = asyncio.get_running_loop().create_future()
            await self._rested


class WaitTracker:
    """The waits of one run of a call."""

    in_thread = False
    is_undoing = False
    """Whether the body is run only to collect what undoes it."""
    misfit: Failure | None = None
    _reconciles = 0
    _recorded: dict[str, set[str]] | None = None

    def __init__(self, call: OpenCall, journal: CallJournal) -> None:
        self.call_id = call.call_id
        self.tool = call.tool
        self.journal = journal
        self._asked: set[str] = set()
        self._lost: list[str] = []
        self._begin()

    def _begin(self) -> None:
        """Begin the tool's own scope, or that of what finds out about an attempt at it."""
        task = asyncio.current_task()
        assert task is not None
        # By the attempt: an answer about one attempt says nothing of another.
        path = wait_name("", RECONCILE, "", self._reconciles) + "/" if self._reconciles else ""
        self._main = Scope(path, task)
        self._scopes: dict[asyncio.Task[Any] | None, Scope] = {task: self._main}

    @property
    def is_parked(self) -> bool:
        """Whether the tool has been unwound at a wait, or is just being."""
        return bool(self._main.waits)

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The task of the call, and those of its branches."""
        return [task for task in self._scopes if task and not task.done()]

    @property
    def lane(self) -> Lane:
        return self.journal.lane

    @property
    def waits(self) -> ToolWaits:
        """The waits of the call, once it is parked."""
        named = {wait.name: wait for wait in self._main.waits}
        return ToolWaits(self.call_id, tuple(named.values()), self._reconciles, self._unused())

    def _unused(self) -> tuple[str, ...]:
        """Return the answers that have come, and that this run has not asked for.

        Those of branches that lost are not missed, nor those about another attempt.
        """
        return tuple(
            name
            for name in self.call.memo
            if is_wait(name)
            and name not in self._asked
            and name.startswith(self._main.path)
            and (self._reconciles or not name.startswith(RECONCILE))
            and not name.startswith(tuple(self._lost))
        )

    def check_new(self, wait: str) -> None:
        """Stop at a wait that is about to begin something, while only the undo is collected."""
        if self.is_undoing:
            raise self.stop_at(NewWait(wait))

    def begin_undo(self) -> None:
        """Begin the scope of what undoes a body, which has been run as far as it had come."""
        self.is_undoing = False
        task = asyncio.current_task()
        assert task is not None
        self._main = Scope(UNDO_SCOPE, task)
        self._scopes = {task: self._main}

    @contextmanager
    def finding_out(self, attempt: int) -> Iterator[None]:
        """Wait, meanwhile, for what finds out about an attempt: none of it is the tool's.

        Another attempt about which nothing is known is another question.
        """
        self._reconciles = attempt
        self._begin()
        yield
        self._reconciles = 0
        self._begin()

    # What a wait is, and what it has come to

    def rounds(self, kind: str, name: str) -> Iterator[tuple[str, str | None]]:
        """Name the next wait of this scope, and say what it has come to, if it has.

        Each time that what it came to cannot be used, it is asked anew: that is its next round.
        """
        scope = self.scope(kind)
        first = wait_name(scope.path, kind, name, scope.count(kind, name))
        for number in count(1):
            wait = first if number == 1 else f"{first}~{number}"
            # A wait that the tool gave up has come to nothing: asked for again, it is another.
            if (known := self.come_since(wait)) != WITHDRAWN:
                yield wait, known

    def next(self, kind: str, name: str) -> tuple[str, str | None]:
        """Return the same of a wait that can always use what it came to."""
        return next(self.rounds(kind, name))

    @property
    def in_transaction(self) -> bool:
        """Whether this is called in a step that is a transaction: nothing else is written in it."""
        scope = self._scopes.get(asyncio.current_task())
        return scope is not None and scope.in_transaction

    def scope(self, kind: str) -> Scope:
        """Return the scope of the task that this is called in."""
        self.check()
        # By the task: whatever the tool calls in between, its own task is the only thing that tells
        # scopes apart.
        scope = self._scopes.get(asyncio.current_task())
        if scope is None:
            raise InvalidInput(
                f"ctx.{METHODS.get(kind, kind)} was called in a task that {self.tool} started by"
                " itself, and could not be told from others when the tool is run again: write"
                " ctx.gather or ctx.first instead of asyncio.gather, create_task or a TaskGroup"
            )
        if scope.is_withdrawn or scope.waits:  # it was unwound, and goes on all the same
            raise asyncio.CancelledError
        return scope

    @property
    def call(self) -> OpenCall:
        """The call as it is now."""
        assert self.lane.turn is not None
        return self.lane.turn.calls[self.call_id]

    def come_since(self, name: str) -> str | None:
        """Return what a wait has come to by now, even if that was while this run was going on."""
        self.check()
        self._asked.add(name)
        return self.call.memo.get(name)

    # Code that does not fit

    def check_fits(self, scope: str, known_as: str, title: str) -> None:
        """Refuse a step that is new, while results of the same function are not asked for.

        It is known by its arguments, and these may be what has changed.
        """
        if not known_as.startswith("="):
            return  # its name is its author's word
        prefix = f"{scope}step:{known_as.rpartition('=')[0]}="
        if self._recorded is None:
            self._recorded = {}
            call = self.call
            for key in (*call.memo, *call.begun, *call.tried, *call.spoilt):
                if key.rpartition("/")[2].startswith("step:="):
                    self._recorded.setdefault(f"{key.rpartition('=')[0]}=", set()).add(key)
        if prefix not in self._recorded:
            return
        # What was asked for since the last look is taken off: a loop of a thousand steps looks at
        # each result once.
        left = self._recorded[prefix] = self._recorded[prefix] - self._asked
        if left:
            raise self.stop_for(
                f"the body does the step {title} with other arguments than it has recorded:"
                f" {len(left)} of {title} are recorded in this place and were not asked for. If it"
                f' is the same step, give it a name (name="{title}"); if it is a new one, put it'
                f' under `if ctx.patched("…")`; or go on with the code of before (a pinned'
                " deployment)"
            )

    def stop_for(self, why: str) -> Parked:
        """Stop because the code does not fit what the call has done; it waits for other code."""
        self.misfit = Failure(REPLAY_MISMATCH, why)
        log.error(
            "the code of %s does not fit what %s has done, which waits for code that does: %s",
            self.tool,
            self.lane.session,
            why,
            extra={"session": self.lane.session, "workflow": self.tool},
        )
        return self.stop_at(NewWait("=mismatch"))

    def ask_for(self, name: str) -> None:
        """Note that the result of something that is no wait was asked for."""
        self._asked.add(name)

    def is_replaying(self, scope: Scope) -> bool:
        """Say whether something is recorded in a scope that this run has not come to yet."""
        call = self.call
        known = (*call.memo, *call.begun, *call.spoilt, *call.waits_for)
        # Also what it waited for when it stopped: until it is there again, it does nothing that is
        # new.
        return any(key not in self._asked and key.startswith(scope.path) for key in known)

    def has_begun(self, name: str) -> bool:
        """Say whether a wait is for what is open already: a question, a sign-in, a child."""
        requests = self.lane.turn.requests.values() if self.lane.turn else ()
        return any((q.call_id, q.name) == (self.call_id, name) for q in requests)

    def lose(self, paths: tuple[str, ...]) -> None:
        """Note the scopes of branches that lost, in this run or an earlier one."""
        self._lost += paths

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Do something meanwhile that the tool is not unwound in the middle of."""
        self.check()
        scope = self._scopes.get(asyncio.current_task())
        if scope is None:  # a task of the tool's own, that tells of progress perhaps
            yield
            return
        with scope.deed():
            yield

    def check(self) -> None:
        """Raise CancelledError in what is left of a run that has been unwound, or has ended."""
        self.journal.check_awaited()
        if self.is_parked:
            raise asyncio.CancelledError

    # Parking

    def stop_at(self, *waits: NewWait) -> Parked:
        """Wait, and return what to raise: the tool is unwound until one of its waits is over."""
        # Noted before it is unwound: a tool that swallows the exception is found by this.
        self.scope("callback").waits = waits
        return Parked()

    def stop_until(self, name: str, milliseconds: int, *others: NewWait) -> Parked:
        """Stop likewise for a time that is counted from when the wait began."""
        # The first run has set the time. A sleep does not begin anew with each run.
        due_at = self.call.timers.get(name) or self.journal.latest() + max(1, milliseconds)
        return self.stop_at(NewWait(name, due_at=due_at), *others)

    def begin(self, scope: Scope, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a branch in a task of its own."""
        scope.task = task = asyncio.create_task(run, name=f"{self.tool}: {scope.path}")
        self._scopes[task] = scope
        return task

    async def withdraw(self, branches: list[Scope]) -> None:
        """End branches that nothing awaits any more. Steps that they are at are recorded first."""
        running = [scope for scope in branches if scope.task and not scope.task.done()]
        # All of them before any is waited for: a branch must not begin something while another one
        # ends.
        for scope in running:
            scope.withdraw()
        try:
            for scope in running:
                if not self.journal.is_stopped:
                    # A step that has done its work is recorded: cut off here, it would count as
                    # interrupted.
                    await scope.until_rest()
        finally:
            for scope in running:
                if scope.task:
                    scope.task.cancel()
            if tasks := [scope.task for scope in running if scope.task]:
                await asyncio.wait(tasks)


def digest(*said: Any) -> str:
    """Return the name of a wait that was not given one: what is asked, of whom."""
    encoded = msgspec.json.encode(said)
    return "=" + blake2b(encoded, digest_size=10).hexdigest()


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
