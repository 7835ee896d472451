"""Several waits at once: `ctx.gather` and `ctx.first`.

Each branch is a scope of its own, named by its keyword or function and by how many of that name
there were, and runs in a task of its own. How a tool parks when no branch can go on is in
`durable_wait.py`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from outlast.agents.runtime.durable_wait import Scope, WaitTracker, for_async_tools
from outlast.agents.runtime.json_value import to_json
from outlast.core.message import check_text
from outlast.core.name import args_digest, branch_scope, quoted, wait_name
from outlast.core.result import NewWait
from outlast.core.setting import count_of
from outlast.engine.lane_folds import LaneLost, LaneStale
from outlast.errors import InvalidInput

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")
Item = TypeVar("Item")

Branch = Awaitable[T] | Callable[[], Awaitable[T]]
"""A branch: a coroutine, as `ctx.ask(…)` returns one, or a function without arguments."""


class FirstResult(NamedTuple, Generic[T]):
    """The branch that ended first, and what it returned."""

    name: str
    value: T


class ConcurrentWaits:
    """The part of a tool's context that does several things at once."""

    _path: ClassVar[str] = "ctx"
    _waiting: WaitTracker

    def _not_in_transaction(self, what: str) -> None: ...

    @overload
    async def gather(self, a: Branch[A], /) -> tuple[A]: ...
    @overload
    async def gather(self, a: Branch[A], b: Branch[B], /) -> tuple[A, B]: ...
    @overload
    async def gather(self, a: Branch[A], b: Branch[B], c: Branch[C], /) -> tuple[A, B, C]: ...
    @overload
    async def gather(
        self, a: Branch[A], b: Branch[B], c: Branch[C], d: Branch[D], /
    ) -> tuple[A, B, C, D]: ...
    @overload
    async def gather(self, /, *branches: Branch[T]) -> tuple[T, ...]: ...
    @overload
    async def gather(self, /, **named: Branch[T]) -> dict[str, T]: ...
    @for_async_tools
    async def gather(self, /, *branches: Branch[Any], **named: Branch[Any]) -> Any:
        """Do several things at once that may wait, and return what each returned.

        Keywords name the branches, and the results; otherwise a branch has its function's name,
        and the results come in order. All begin at once. The tool parks when each has ended or
        waits, and is run again when the first of these waits is over. An error in one withdraws the
        others and is raised.
        """
        # Before any branch begins: a mistake in one must not cut off what another has begun.
        self._check_branches("gather", branches, named)
        joined = Join(self._waiting, "gather", branches, named)
        await joined.run(joined.branches)
        values = [branch.value for branch in joined.branches]
        return dict(zip(named, values, strict=True)) if named else tuple(values)

    @overload
    async def first(self, a: Branch[A], b: Branch[B], /) -> FirstResult[A | B]: ...
    @overload
    async def first(
        self, a: Branch[A], b: Branch[B], c: Branch[C], /
    ) -> FirstResult[A | B | C]: ...
    @overload
    async def first(self, /, *branches: Branch[T]) -> FirstResult[T]: ...
    @overload
    async def first(self, /, **named: Branch[T]) -> FirstResult[T]: ...
    @for_async_tools
    async def first(self, /, *branches: Branch[Any], **named: Branch[Any]) -> FirstResult[Any]:
        """Do several things at once, and return the name and the value of the first to end.

        It is recorded before this returns, so that the same one comes first in every later run.
        The others are withdrawn: their questions are closed, their children ended. One that raises
        has ended, too: then its error is raised.
        """
        self._check_branches("first", branches, named)
        joined = Join(self._waiting, "first", branches, named)
        if not joined.branches:
            raise InvalidInput("ctx.first needs at least one branch")
        winner = await joined.race()
        return FirstResult(winner.name, winner.value)

    def _check_branches(
        self, what: str, branches: tuple[Branch[Any], ...], named: dict[str, Branch[Any]]
    ) -> None:
        """Refuse what cannot be run as branches, and leave no coroutine behind unawaited."""
        try:
            self._not_in_transaction(what)
            self._waiting.scope(what)
            if branches and named:
                raise InvalidInput(f"ctx.{what} takes branches with names or without, not both")
            for branch in (*branches, *named.values()):
                check_branch(what, branch)
        except BaseException:
            for branch in (*branches, *named.values()):
                close(branch)
            raise

    async def map(
        self,
        function: Callable[[Item], Awaitable[T]],
        items: Iterable[Item],
        *,
        concurrency: int = 0,
        name: str | None = None,
    ) -> list[T]:
        """Do the same with each of several items, and return what came of each, in their order.

        Each is a branch, known by a digest of the item, so that items may be added, removed and
        reordered. At most `concurrency` go on at once, those that wait included; 0 is any number.
        Readers are told how many are done (`tool.progress`). Two maps are told apart by their
        function, or by a `name`, and by how many came before.
        """
        self._not_in_transaction("map")
        given = list(items)
        count_of("concurrency of ctx.map", concurrency, least=0)
        joined = MapJoin(self._waiting, function, given, name)
        await joined.run(joined.branches, concurrency)
        return [branch.value for branch in joined.branches]


class NamedBranch:
    """One branch of a `gather` or `first`, the scope of its waits, and what it came to.

    `won` is the name under which it is recorded that it came first.
    """

    def __init__(self, name: str, given: Branch[Any], scope: Scope, won: str) -> None:
        self.name = name
        self.given = given
        self.scope = scope
        self.won = won
        self.value: Any = None
        self.error: BaseException | None = asyncio.CancelledError()

    async def run(self) -> None:
        """Keep what it comes to: a task that raised SystemExit would end the event loop."""
        try:
            self.value = await (self.given() if callable(self.given) else self.given)
            self.error = None
        except BaseException as error:  # noqa: BLE001 - raised again where the branches are awaited
            self.error = error


class Join:
    """The branches of one `gather` or `first`, and the scope that awaits them."""

    def __init__(
        self,
        waiting: WaitTracker,
        kind: str,
        branches: tuple[Branch[Any], ...],
        named: dict[str, Branch[Any]],
    ) -> None:
        self._waiting = waiting
        self._parent = waiting.scope(kind)
        self._is_race = kind == "first"
        self._ended: list[NamedBranch] = []
        self._queue: list[NamedBranch] = []
        given = list(named.items()) or [(name_of(branch), branch) for branch in branches]
        self.branches = [self._branch(name, branch) for name, branch in given]
        self._left = 0

    def _branch(self, name: str, given: Branch[Any]) -> NamedBranch:
        known_as = quoted(name)
        number = self._parent.count("branch", known_as)
        path = branch_scope(self._parent.path, known_as, number)
        won = wait_name(self._parent.path, "won", known_as, number)
        return NamedBranch(name, given, Scope(path, parent=self._parent), won)

    async def run(self, branches: list[NamedBranch], at_once: int = 0) -> None:
        """Run branches until all have ended, or one has raised; of a race, until one has ended.

        Where all that have not ended have stopped at waits, what awaits them stops there, too. At
        most so many go on `at_once`, those that wait included; 0 is any number.
        """
        if not branches:
            return
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        first = branches[:at_once] if at_once else branches
        self._queue = branches[len(first) :]
        self._left = len(first)
        for branch in first:
            self._begin(branch, joined)
        try:
            # Not `asyncio.gather`: this ends as soon as it is decided, while others still run.
            await joined
        finally:
            # In any case: a tool that was cancelled must leave no branch behind that goes on by
            # itself.
            await self._waiting.withdraw([branch.scope for branch in branches])
        if self._is_race and self._ended:
            return
        if error := next((branch.error for branch in self._ended if branch.error), None):
            raise error
        if waits := tuple(wait for branch in branches for wait in branch.scope.waits):
            raise self._waiting.stop_at(*waits)

    def _begin(self, branch: NamedBranch, joined: asyncio.Future[None]) -> None:
        task = self._waiting.begin(branch.scope, self._run(branch))
        task.add_done_callback(partial(self._end, branch, joined))

    async def _run(self, branch: NamedBranch) -> None:
        """Run a branch. Where its end decides, the others take nothing that has come from then on.

        They may be due to go on before this task's callback is: an event that they took then would
        be lost with them.
        """
        await branch.run()
        if self._decides(branch) and not branch.scope.is_withdrawn:
            for other in self.branches:
                if other is not branch:
                    other.scope.withdraw()

    def _decides(self, branch: NamedBranch) -> bool:
        """Say whether it does not matter any more what the other branches come to."""
        has_ended = not branch.scope.waits and not self._waiting.is_undoing
        return has_ended and bool(self._is_race or branch.error)

    def _end(
        self, branch: NamedBranch, joined: asyncio.Future[None], _: asyncio.Task[None]
    ) -> None:
        close(branch.given)  # which a branch that was cancelled early has not begun
        has_ended = not branch.scope.waits
        # Undo functions were registered in all branches, also in those that lost or were not
        # awaited. To collect them, each is run as far as it had come.
        is_undoing = self._waiting.is_undoing
        goes_on = is_undoing or (has_ended and not branch.error)
        if self._queue and goes_on and not joined.done():
            self._begin(self._queue.pop(0), joined)
        else:
            self._left -= 1
        if has_ended and not joined.done():
            self._ended.append(branch)
        if (self._decides(branch) or not self._left) and not joined.done():
            joined.set_result(None)

    async def race(self) -> NamedBranch:
        """Return the branch that ended first, in this run or in the one that recorded it."""
        waiting = self._waiting
        # The log decides, not the clock of this run: another branch might be quicker this time.
        winner = next((b for b in self.branches if waiting.come_since(b.won)), None)
        if winner:
            others = [branch for branch in self.branches if branch is not winner]
            waiting.lose(tuple(branch.scope.path for branch in others))
            if waiting.is_undoing and others:
                tasks = [waiting.begin(branch.scope, branch.run()) for branch in others]
                await asyncio.wait(tasks)
            for branch in others:
                close(branch.given)
            await self.run([winner])
        else:
            await self.run(self.branches)
            winner = self._ended[0]
            await self._record(winner)
        if winner.error:
            raise winner.error
        return winner

    async def _record(self, winner: NamedBranch) -> None:
        waiting = self._waiting
        # It was unwound from outside, with the whole tool: no branch has come first.
        if winner.error and not is_outcome(winner.error):
            return
        if waiting.is_undoing:
            raise waiting.stop_at(NewWait(winner.won))
        lost = tuple(branch.scope.path for branch in self.branches if branch is not winner)
        # Recorded before anything is done with the result: a crash after that comes to the same
        # winner.
        with waiting.busy():
            await waiting.journal.record_first(waiting.call_id, winner.won, lost)
        waiting.lose(lost)


class MapJoin(Join):
    """The branches of one `map`: one for each item, known by a digest of it."""

    def __init__(
        self,
        waiting: WaitTracker,
        function: Callable[[Any], Any],
        items: list[Any],
        name: str | None,
    ) -> None:
        super().__init__(waiting, "map", (), {})
        self._done = 0
        self._total = len(items)
        known_as = quoted(check_text("the name of a map", name) if name else name_of(function))
        number = self._parent.count("map", known_as)
        self._path = branch_scope(self._parent.path, f"map:{known_as}", number)
        counts: dict[str, int] = {}
        for item in items:
            found = digest_of(item)
            # Equal items are told apart by how many came before: which of them is which does not
            # matter.
            counts[found] = counts.get(found, 0) + 1
            path = branch_scope(self._path, found, counts[found])
            run = partial(self._do, function, item)
            scope = Scope(path, parent=self._parent)
            self.branches.append(NamedBranch(found, run, scope, ""))

    async def _do(self, function: Callable[[Any], Any], item: Any) -> Any:
        value = function(item)
        value = await value if inspect.isawaitable(value) else value
        self._done += 1
        await tell_progress(self._waiting, self._path, self._done, self._total)
        return value


def digest_of(item: Any) -> str:
    """Return what the branch of an item is known by."""
    text = to_json(item, "an item of ctx.map is", stable=True)
    return f"={args_digest('map', text)[:20]}"


async def tell_progress(waiting: WaitTracker, name: str, done: int, total: int) -> None:
    """Tell readers how much is done, unless they have been told in an earlier run of the call."""
    if waiting.is_undoing or done <= waiting.call.progress.get(name, 0):
        return
    said: dict[str, Any] = {"done": done, "total": total}
    if name:
        said["name"] = name.rstrip("/")
    with waiting.busy():
        await waiting.journal.progress(waiting.call_id, to_json(said), name, done)


def is_outcome(error: BaseException) -> bool:
    """Say whether an error is a branch's own, and does not unwind the tool as a whole."""
    return isinstance(error, Exception) and not isinstance(error, LaneLost | LaneStale)


def check_branch(what: str, branch: Any) -> None:
    if isinstance(branch, asyncio.Future):
        raise InvalidInput(
            f"ctx.{what} runs each branch in a task of its own: give the coroutine or function, not"
            " a task or future"
        )
    if not (callable(branch) or inspect.isawaitable(branch)):
        raise InvalidInput(
            f"a branch of ctx.{what} is a coroutine, or a function that returns one, not"
            f" {type(branch).__name__}"
        )


def name_of(branch: Any) -> str:
    """Return the name of a branch that was not given one: its function's."""
    while isinstance(branch, partial):
        branch = branch.func
    return getattr(branch, "__name__", "") or type(branch).__name__


def close(branch: Any) -> None:
    """Close a coroutine that is not run; one that has ended is closed already."""
    if inspect.iscoroutine(branch) and inspect.getcoroutinestate(branch) != inspect.CORO_RUNNING:
        branch.close()
