"""The store's writer: one connection on which groups of items are committed.

A group is all that waited while the last one was made durable; there is no timer. When enough
items wait for another, it goes out behind the first, so that the server has its next work while
this process handles the answers. A group is one batch, hence one transaction and one round trip.
If it fails for a reason of its own, its items are written one by one, so that only the one at fault
fails. If the connection fails, the same group goes out again on the next one: every item finds
what it has written before. If that fails as well, the group may be the cause, and its items are
written one by one.

Knows nothing of what the items say: see `commit.py` and `admission.py` for those of the function
`write` (functions/write.sql), and `claim.py`, `limit.py` for other statements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import psycopg

from outlast.errors import StoreError, StoreUnavailable
from outlast.stores.postgres.error import ServerAway, explain
from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.statement import BINARY, BYTEA, TEXT, Query, Statement, Value

JSONB = 3802
LARGEST_GROUP = 64
LARGEST_BYTES = 16 * 1024 * 1024
"""The size of a group of several items at most, so that no other waits long for it."""
LARGEST_MESSAGE = 1_000_000_000
"""The size of one item at most: the server takes no message over 1 GiB, its frame included."""
LARGEST_WITH_LIMITS = 256 * 1024
"""The size of a group that locks limits at most: what the system takes in one piece. If this
process stopped in the middle of more, all calls under those limits would wait for it."""
MOST_LOSSES = 2
"""How many connections a group of several items may lose."""
AT_ONCE = 2
"""How many groups are under way at most: the server does one after the other."""
WORTH_A_GROUP = 24
"""How many items go out behind a group that is under way: of fewer, each would cost more."""

Hints = dict[str, bool]
"""The sessions that were written to; true: something arrived there, or a lane became free."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_encode = msgspec.json.Encoder().encode


class WriteAnswer(msgspec.Struct):
    """The result of the function `write`: an answer to each item, and sessions with woken calls."""

    answers: list[list[Any]]
    woken: list[str]


_decode = msgspec.json.Decoder(WriteAnswer).decode


class GroupBuffer:
    """The bytes of a group, of which each item names its parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> tuple[int, int]:
        """Append the part, and return where it begins and its size."""
        start = self._size
        self._parts.append(part)
        self._size = start + len(part)
        return start, len(part)

    def join(self) -> bytes:
        if self._size > LARGEST_MESSAGE:  # it would close the connection, each time
            raise StoreError(
                f"{self._size:,} bytes are more than PostgreSQL takes at once (1 GB); keep such"
                " values elsewhere, and their address here"
            )
        return b"".join(self._parts)


class WriteRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One item as the function `write` takes it."""

    session: str

    @property
    def has_permits(self) -> bool:
        """Whether permits may be released or looked for."""
        return False


class WriteItem(Generic[T]):
    """A commit or an admission: what it tells the function `write`, and makes of the answer."""

    limits: Sequence[str] = ()
    was_alone = False
    """Whether its own statement (`alone`) went out already, and did not write it."""

    def __init__(self, session_id: str, size: int) -> None:
        self.session_id = session_id
        self.size = size
        """How many bytes it has before they are compressed."""

    def keys(self) -> Sequence[object]:
        """Name what no other item of the same round may touch: the session, and more."""
        return [self.session_id]

    def prepare(self, buffer: GroupBuffer) -> WriteRequest:
        """Say what is to be written; called again with another buffer for every try."""
        raise NotImplementedError

    def alone(self) -> Statement | None:
        """Return a quicker statement for an item without others, if there is one.

        It answers with the first offset and the time, or with NULL if it wrote nothing.
        """
        return None

    def accept(self, answer: list[Any], hints: Hints) -> T | None:
        """Return the result, or None if the item has to go out again, changed."""
        raise NotImplementedError

    def doubt(self) -> None:
        """Note that the connection was lost, so that the item may have been written already."""


class StatementItem(Protocol[T_co]):
    """Statements of another kind that go out with a group."""

    @property
    def size(self) -> int: ...

    @property
    def limits(self) -> Sequence[str]:
        """The limits that are locked before anything else of the group is done."""
        ...

    def compose(self) -> Sequence[Statement]: ...

    def take(self, answers: Sequence[Rows], hints: Hints) -> T_co: ...


class PendingItem(Generic[T]):
    """An item on its way, and its result once there is one."""

    __slots__ = ("error", "future", "item", "result")

    def __init__(self, item: WriteItem[T] | StatementItem[T], future: asyncio.Future[T]) -> None:
        self.item = item
        self.future = future
        self.result: T | None = None
        self.error: Exception | None = None


class Writer:
    """Owns the order in which items are written."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        query: Query,
        lock_limits: Query,
        label: str,
        announce: Callable[[Hints], None],
    ) -> None:
        self._connection = connection
        self._query = query
        self._lock_limits = lock_limits
        self._label = label
        self._announce = announce
        self.submitted = 0
        self.counts = {"groups": 0, "grouped": 0}
        self._waiting: list[PendingItem[Any]] = []
        self._serving: set[asyncio.Future[Any]] = set()

    def submit(self, item: WriteItem[T] | StatementItem[T]) -> asyncio.Future[T]:
        """Have an item written with the next group; await the future."""
        self.submitted += 1
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingItem(item, future))
        is_worth_it = len(self._waiting) >= WORTH_A_GROUP
        # While a group is under way, items that come wait for the next: that is what makes groups.
        if not self._serving or (is_worth_it and len(self._serving) < AT_ONCE):
            self._begin()
        return future

    async def write(self, item: WriteItem[T]) -> T:
        """Have an item written: by the caller if no group is under way, else with the next one.

        So a lone session's commit is on its way before its event loop does anything else.
        """
        if self._serving:
            return await self.submit(item)
        self.submitted += 1
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # Items that come from now on go into the next group, as behind any other.
        self._serving.add(future)
        try:
            await self._write_group([PendingItem(item, future)])
        except BaseException:  # the caller is being cancelled
            future.cancel()
            raise
        finally:
            self._serving.discard(future)
            if self._waiting and not self._serving:
                self._begin()
        return await future

    def _begin(self) -> None:
        self._serving.add(asyncio.create_task(self._serve(), name="outlast writer"))

    async def stop(self) -> None:
        """Finish what was submitted, then close the connection."""
        while self._serving:
            await asyncio.wait(self._serving)
        self._connection.close()

    async def _serve(self) -> None:
        try:
            while group := first_group(self._waiting):
                del self._waiting[: len(group)]
                await self._write_group(group)
        finally:
            self._serving.discard(asyncio.current_task())

    async def _write_group(self, pending: list[PendingItem[Any]]) -> None:
        """Send a group, and resolve the futures of its items."""
        group = WriteGroup(pending, self._query, self._lock_limits)
        hints: Hints = {}
        try:
            group.accept(await self._connection.send(group.compose, group.doubt), hints)
        except StoreUnavailable as error:
            pending, self._waiting = pending + self._waiting, []  # they would wait for it in vain
            self._fail(pending, error)
        # One of the items is at fault, and it is not known which.
        except Exception as error:  # noqa: BLE001 - told to the callers
            await self._write_singly(pending, error)
        else:
            self.counts["groups"] += 1
            self.counts["grouped"] += len(pending)
            self._resolve(pending, hints)

    async def _write_singly(self, pending: Sequence[PendingItem[Any]], error: Exception) -> None:
        """Write each item in a transaction of its own; only the one at fault fails."""
        if len(pending) == 1:
            if isinstance(error, psycopg.Error):
                error = explain(error, self._label)
            return self._fail(pending, error)
        for place, one in enumerate(pending):
            await self._write_group([one])
            if isinstance(one.error, ServerAway):  # the others would find the same, after a while
                return self._fail(pending[place + 1 :], one.error)
        return None

    def _fail(self, pending: Sequence[PendingItem[Any]], error: Exception) -> None:
        for one in pending:
            one.error = error
        self._resolve(pending, {})

    def _resolve(self, pending: Sequence[PendingItem[Any]], hints: Hints) -> None:
        for one in pending:
            if one.future.done():  # its caller was cancelled
                continue
            if one.error:
                one.future.set_exception(one.error)
            elif one.result is not None:
                one.future.set_result(one.result)
            else:
                self._waiting.append(one)
        if hints:
            self._announce(hints)


def first_group(waiting: list[PendingItem[Any]]) -> list[PendingItem[Any]]:
    """Return the items that go out next: in their order, and one at least, however large."""
    group, size, most = waiting[:LARGEST_GROUP], 0, LARGEST_BYTES
    for place, one in enumerate(group):
        size += one.item.size
        # A message in several pieces keeps the server waiting with its locks, should this process
        # stop in between.
        if one.item.limits:
            most = LARGEST_WITH_LIMITS
        if size > most:
            return group[: max(place, 1)]
    return group


class GroupLost(Exception):
    """A group has lost one connection after the other."""


class WriteGroup:
    """Items that go out together; sessions come in the order in which they are locked.

    Limits come before sessions: where statements that ask for permits are not alone, all limits of
    the group are locked first, by a statement of their own.
    """

    def __init__(
        self, pending: Sequence[PendingItem[Any]], query: Query, lock_limits: Query
    ) -> None:
        self._query = query
        self._lock_limits = lock_limits
        writes: list[PendingWrite] = []
        self._others: list[tuple[PendingItem[Any], StatementItem[Any]]] = []
        for one in pending:
            if isinstance(one.item, WriteItem):
                writes.append((one, one.item))
            else:
                self._others.append((one, one.item))
        self._rounds = into_rounds(writes) if len(writes) > 1 else [writes] if writes else []
        self._is_one = len(pending) == 1
        self._in_doubt = False
        self._losses = 0

    def compose(self) -> list[Statement]:
        """Return the statements. Raises GroupLost if each item should go out by itself."""
        if self._in_doubt:  # and the server is there again
            self._in_doubt = False
            self._losses += 1
            if self._losses == MOST_LOSSES and not self._is_one:
                raise GroupLost
        statements: list[Statement] = []
        rounds: list[list[WriteRequest]] = []
        if statement := self._compose_alone():
            statements.append(statement)
        elif self._rounds:
            buffer = GroupBuffer()
            rounds = [[item.prepare(buffer) for _, item in writes] for writes in self._rounds]
            values: list[Value] = [_encode(rounds), buffer.join()]
            statements.append(Statement(self._query.text, values, [JSONB, BYTEA], [TEXT, BINARY]))
        self._sizes = []
        for _, other in self._others:
            own = other.compose()
            self._sizes.append(len(own))
            statements += own
        self._is_held = len(statements) > 1 and any(other.limits for _, other in self._others)
        return [self._hold(rounds), *statements] if self._is_held else statements

    def _compose_alone(self) -> Statement | None:
        """Return the statement of an item that goes alone; not twice, if it was not written."""
        self._is_alone = False
        if len(self._rounds) != 1 or len(self._rounds[0]) != 1:
            return None
        [(_, item)] = self._rounds[0]
        if item.was_alone or not (statement := item.alone()):
            return None
        self._is_alone = True
        return statement

    def _hold(self, rounds: Sequence[Sequence[WriteRequest]]) -> Statement:
        # In one order everywhere, as with all locks: two groups would else wait for each other.
        names = sorted({name for _, other in self._others for name in other.limits})
        commits = [one for requests in rounds for one in requests if one.has_permits]
        params = {"names": _encode(names).decode(), "commits": _encode(commits).decode()}
        return self._lock_limits.bind(params)

    def accept(self, answers: Sequence[Rows], hints: Hints) -> None:
        """Give every item its result; one that has to go out again has none."""
        rest = iter(answers)
        if self._is_held:
            next(rest)
        if self._is_alone:
            self._accept_alone(next(rest), hints)
        elif self._rounds:
            [[text]] = next(rest)
            written = _decode(text)
            writes = [write for writes in self._rounds for write in writes]
            for (one, item), answer in zip(writes, written.answers, strict=True):
                one.result = item.accept(answer, hints)
            hints.update(dict.fromkeys(written.woken, True))
        for (one, other), size in zip(self._others, self._sizes, strict=True):
            one.result = other.take([next(rest) for _ in range(size)], hints)

    def _accept_alone(self, rows: Rows, hints: Hints) -> None:
        """Take the answer of a lone item. If it was not written, `write` says why not."""
        [(one, item)] = self._rounds[0]
        item.was_alone = True
        [[written]] = rows
        if written:
            one.result = item.accept(["written", *written, "", []], hints)

    def doubt(self) -> None:
        self._in_doubt = True
        for writes in self._rounds:
            for _, item in writes:
                item.doubt()


PendingWrite = tuple[PendingItem[Any], WriteItem[Any]]


def into_rounds(writes: list[PendingWrite]) -> list[list[PendingWrite]]:
    """Split items so that none touches what another one of its round does; keep their order."""
    rounds: list[list[PendingWrite]] = []
    last: dict[object, int] = {}
    # The order in which sessions are locked. The sort is stable, so one session's items keep
    # theirs.
    for write in sorted(writes, key=lambda write: write[1].session_id):
        keys = write[1].keys()
        # Set-wise statements see the tables as they were before the round, not what its other items
        # write.
        number = max(last.get(key, 0) for key in keys)
        last.update(dict.fromkeys(keys, number + 1))
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(write)
    return rounds
