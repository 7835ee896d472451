"""Where a tool's waits stand: named so that every run finds them, known by what they came to.

A tool that has to wait is unwound by `Parked`, and run again from its first line when it
wakes; a wait that is over returns at once then. One that does several things at once stops when
each of its tasks has to wait, and wakes when the first of these waits is over.
"""

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from hashlib import blake2b
from math import ceil, log2
from types import coroutine
from typing import Any, TypeVar, cast

from msgspec import Struct

from outlast.core.lane import Lane, OpenCall
from outlast.core.name import PAUSE
from outlast.core.result import NewWait, ToolWaits
from outlast.engine.executor import CallJournal
from outlast.errors import InvalidInput

ROUNDS = 20
"""Loop iterations to spin before we conclude that every task is blocked.

A finished task needs about two iterations per nesting level to wake its awaiter.
"""


A_MILLISECOND = timedelta(milliseconds=1)

LOOK, LOOKS = 0.01, 10
"""How often it is looked at a tool that waits for something unknown, every so many seconds, before
that is taken for its tasks."""

T = TypeVar("T")

_deeds_around: ContextVar[tuple[asyncio.Future[None], ...]] = ContextVar("deeds", default=())


class Parked(BaseException):
    """Unwinds a tool that waits. Private, and not an Exception: tools cannot swallow it."""

    def __init__(self) -> None:
        super().__init__("the tool waits")


class TaskPath(Struct):
    """The waits of one task of a tool, in order; `count` is how many there were so far."""

    name: str
    count: int = 0


class WaitTracker:
    """The waits of one run of a call. It `is_parked` when it has been unwound at one.

    Waits that follow one another are told apart by their order. Tasks that a tool starts may
    come in another order each time: each is known by the step or wait that it comes to first.
    """

    def __init__(self, call: OpenCall, journal: CallJournal) -> None:
        self.call_id = call.call_id
        self.tool = call.tool
        self.journal = journal
        self.in_thread = False
        self.is_parked = False
        main = asyncio.current_task()
        assert main is not None
        self._main = main
        self._awaits: Any = None
        self._reconciles = 0
        self._begin()
        self._stopped: dict[asyncio.Task[Any], NewWait] = {}
        self._deeds: set[asyncio.Future[None]] = set()

    @property
    def lane(self) -> Lane:
        return self.journal.lane

    @property
    def waits(self) -> ToolWaits:
        """The waits of the call, once it is parked."""
        named = {wait.name: wait for wait in self._stopped.values()}
        return ToolWaits(self.call_id, tuple(named.values()), self._reconciles)

    @property
    def of(self) -> str:
        """The prefix of the names of steps and waits: the call that they belong to."""
        return f"reconcile{self._reconciles}." if self._reconciles else ""

    def _begin(self) -> None:
        self._courses: dict[asyncio.Task[Any] | None, TaskPath] = {self._main: TaskPath(self.of)}

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

    def next(self, kind: str, about: str = "") -> tuple[str, str | None]:
        """Name the next wait of this task, and return what it has come to, if it has.

        What it is `about` has to be the same in every run where tasks are told apart by it.
        """
        course = self.course(kind, about)
        course.count += 1
        name = f"{kind}:{course.name}{course.count}"
        return name, self.come_since(name)

    def course(self, kind: str, about: str) -> TaskPath:
        """Return what this task has done so far; it is known from now on by what it does first."""
        task = asyncio.current_task()
        if task not in self._courses:
            said = f"{kind}\n{about}".encode(errors="surrogatepass")
            first = self.of + blake2b(said, digest_size=10).hexdigest()
            twins = sum(each.name.startswith(first) for each in self._courses.values())
            self._courses[task] = TaskPath(f"{first}.{twins + 1}.")
        return self._courses[task]

    @property
    def _call(self) -> OpenCall:
        """The call as it is now, for a run of it that goes on."""
        self.check()
        assert self.lane.turn is not None
        return self.lane.turn.calls[self.call_id]

    def come_since(self, name: str) -> str | None:
        """Return what a wait has come to by now, even if that was while this run was going on."""
        return self._call.memo.get(name)

    def count(self, prefix: str) -> int:
        """Count the steps and waits of the call that are over and whose name begins so."""
        return sum(name.startswith(prefix) for name in self._call.memo)

    def has_begun(self, name: str) -> bool:
        """Say whether a wait is for what is open already: a question, a sign-in, a child."""
        requests = self.lane.turn.requests.values() if self.lane.turn else ()
        return any((q.call_id, q.name) == (self.call_id, name) for q in requests)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Do something meanwhile that the tool is not unwound in the middle of."""
        self.check()
        deed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deeds.add(deed)
        environment = _deeds_around.set((*_deeds_around.get(), deed))
        try:
            yield
        finally:
            _deeds_around.reset(environment)
            self._leave(deed)

    def _leave(self, deed: asyncio.Future[None]) -> None:
        self._deeds.discard(deed)
        if not deed.done():
            deed.set_result(None)

    async def until_not_busy(self) -> None:
        """Let what other tasks are at come to its end."""
        while self._deeds:
            await asyncio.wait(self._deeds)

    def check(self) -> None:
        """Raise CancelledError in what is left of a run that has been unwound, or has ended."""
        self.journal.check_awaited()
        if self.is_parked:
            raise asyncio.CancelledError

    # Unwinding

    @coroutine
    def watch(self, run: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await a run of the tool, and note what it waits for itself."""
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                self._awaits = run.throw(error) if error else run.send(value)
            except StopIteration as end:
                return cast("T", end.value)
            value, error = None, None
            try:
                value = yield self._awaits
            except BaseException as thrown:  # noqa: BLE001 - the run is the one that it is for
                error = thrown

    def leave(self) -> None:
        """Stop the tasks that wait, when the run is over: nothing would ever resume them."""
        for task in self._stopped:
            if task is not self._main:
                task.cancel()

    async def stop_at(self, wait: NewWait) -> Parked:
        """Wait, and so have the tool unwound until one of its waits is over.

        What its other tasks can do goes first, up to their waits, and the tool may come to its end
        with that. Then it is unwound as a whole: in the task that it began in, by what this returns
        or by being cancelled there, so that it never takes a wait that is not over for an outcome.
        """
        task = asyncio.current_task()
        assert task is not None
        self._stopped[task] = wait
        for deed in _deeds_around.get():  # which is unwound, too
            self._leave(deed)
        try:
            await self._until_the_tool_waits(task)
        except asyncio.CancelledError:
            if not self.is_parked:  # the tool does without it
                del self._stopped[task]
            raise
        if not self.is_parked:
            self.is_parked = True
            if task is not self._main:
                self._main.cancel()
        if task is not self._main:
            await asyncio.get_running_loop().create_future()  # until it is left
        return Parked()

    async def _until_the_tool_waits(self, task: asyncio.Task[Any]) -> None:
        looks, awaits = 0, self._awaits
        while True:
            await self._until_others_stop()
            if task is self._main or self.is_parked:
                return
            if self._awaits is not awaits:
                looks, awaits = 0, self._awaits
            if is_awaited(task) and (is_of_tasks(awaits) or looks >= LOOKS):
                return
            await asyncio.sleep(LOOK)
            looks += 1

    async def _until_others_stop(self) -> None:
        rounds = 0
        while rounds < ROUNDS:
            await asyncio.sleep(0)
            rounds += 1
            if self._deeds:
                await self.until_not_busy()
                rounds = 0

    async def stop_until(self, name: str, milliseconds: int) -> Parked:
        """Return the same for a wait that takes so long from when it began."""
        due_at = self._call.timers.get(name) or self.journal.now() + max(1, milliseconds)
        return await self.stop_at(NewWait(name, due_at=due_at))

    async def pause(
        self, awaited: str, since: int, *, first: timedelta, longest: timedelta
    ) -> Parked:
        """Return what unwinds the tool until something has come, or a time has passed.

        The time is doubled with every pause, up to the longest; pauses `since` another number
        begin anew. All of the longest have one name: a call remembers no more than a few.
        """
        name = f"{awaited}{PAUSE}{since}."
        first = max(first, A_MILLISECOND)
        doublings = ceil(log2(max(1.0, longest / first)))
        over = min(self.count(name), doublings)
        length = int(min(first * 2**over, longest) / A_MILLISECOND)
        return await self.stop_until(f"{name}{over + 1}", length)


def is_awaited(task: asyncio.Task[Any]) -> bool:
    """Whether a task is awaited. One that is not awaited stops no tool."""
    return bool(getattr(task, "_callbacks", True))


def is_of_tasks(awaited: Any) -> bool:
    """Whether an awaited object is a task or several, and not the outside world."""
    return isinstance(awaited, asyncio.Future) and type(awaited) is not asyncio.Future


class Steps:
    """The steps of one run by name: how many have returned, and which task was at the last."""

    def __init__(self) -> None:
        self._main = asyncio.current_task()
        self._returned: dict[str, int] = {}
        self._begun_by: dict[str, asyncio.Task[Any] | None] = {}
        self._open: set[str] = set()

    @contextmanager
    def next(self, name: str, of: str) -> Iterator[str]:
        """Give the step that is done meanwhile the key under which its result is kept.

        One that raises has not happened: the next of its name is the same step again. `of` says
        whose steps these are: what finds out about the tool has its own.
        """
        name = f"{of}{name}"
        self._check_alone(name)
        before = self._returned.get(name, 0)
        self._begun_by[name] = asyncio.current_task()
        self._open.add(name)
        try:
            yield f"step{before + 1}:{name}" if before else f"step:{name}"
            self._returned[name] = before + 1
        finally:
            self._open.discard(name)

    def _check_alone(self, name: str) -> None:
        """Refuse what another run might come to in another order."""
        other = self._begun_by.get(name)
        is_other = other not in (None, self._main, asyncio.current_task())
        if name in self._open or (other and is_other and not other.done()):
            raise InvalidInput(
                f"two steps are done at once under one name, {name!r}, and could not be told apart"
                " when the call is run again: name them apart"
            )
