"""The store's one writer: a connection on which groups are committed.

A group is what waited while the last one was made durable; there is no timer. When enough waits
for another, it goes out behind the first, so that the server has its next work while ours is done.
A group is one batch, hence one transaction and one round trip, whatever it holds. If it fails for a
reason of its own, its works are done one by one, so that the one at fault fails alone. If the
connection fails, the same group goes out again on the next: every work finds what it has written
before. If that fails as well, the group may be why, and its works are done one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

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
"""How much a group of several works has at most, so that no other waits long for it."""
LARGEST_MESSAGE = 1_000_000_000
"""How much one work may have: the server takes no message over 1 GiB, with all that is round it."""
BESIDE_LIMITS = 256 * 1024
"""How much goes out with a work that holds limits: what the system takes from us in one piece. Were
this process to stand still in the middle of more, all under those limits would wait for it."""
MOST_LOSSES = 2
"""How many connections a group of several works may lose."""
AT_ONCE = 2
"""How many groups are under way at most: the server does one after the other."""
WORTH_A_GROUP = 24
"""How many works go out behind a group that is under way: of fewer each would cost more."""

Hints = dict[str, bool]

_encode = msgspec.json.Encoder().encode


class WriteAnswer(msgspec.Struct):
    """What the function `write` says: an answer to each, and sessions where somebody was woken."""

    answers: list[list[Any]]
    woken: list[str]


_decode = msgspec.json.Decoder(WriteAnswer).decode


class GroupBuffer:
    """The bytes of a group, of which each work names its parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> tuple[int, int]:
        """Return where the part begins, and its size."""
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
    """What the function `write` is told of one entry."""

    session: str

    @property
    def has_permits(self) -> bool:
        """Whether permits may be given back or looked for."""
        return False


class BatchItem(Protocol):
    """What goes out with a group."""

    @property
    def size(self) -> int:
        """How many bytes it has before they are compressed."""
        ...

    @property
    def limits(self) -> Sequence[str]:
        """The limits that are held for it before anything else of its group is done."""
        ...


class WriteItem(BatchItem, Protocol):
    """A commit or an admission: what it says to the function `write`, and makes of the answer."""

    @property
    def session_id(self) -> str: ...

    def keys(self) -> Sequence[object]:
        """Name what no other entry of the same round may touch: the session, and more."""
        ...

    def prepare(self, buffer: GroupBuffer) -> WriteRequest:
        """Say what is wanted; asked again with another buffer if it has to be said again."""
        ...

    def alone(self) -> Statement | None:
        """Return what is quicker where no other goes along, if there is something.

        It answers with the first offset and the time; with nothing, if nothing was written.
        """
        ...

    def accept(self, answer: list[Any], hints: Hints) -> Any:
        """Return the result, or `AGAIN` if it has to be said otherwise."""
        ...

    def doubt(self) -> None:
        """The connection was lost: it may have been written already."""
        ...


AGAIN = object()


class StatementItem(BatchItem, Protocol):
    """Statements of another kind that go out with a group."""

    def compose(self) -> Sequence[Statement]: ...

    def take(self, answers: Sequence[Rows], hints: Hints) -> Any: ...


class PendingItem:
    """A work, who waits for it, and what it came to."""

    __slots__ = ("error", "future", "holds_limits", "result", "size", "was_alone", "work")

    def __init__(self, work: Any, future: asyncio.Future[Any]) -> None:
        self.work = work
        self.size: int = work.size
        self.holds_limits = bool(work.limits)
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.was_alone = False


session_of = attrgetter("work.session_id")


class Writer:
    """Owns the order in which things are written."""

    def __init__(
        self,
        line: ReconnectingConnection,
        query: Query,
        hold_limits: Query,
        label: str,
        announce: Callable[[Hints], None],
    ) -> None:
        self._line = line
        self._query = query
        self._hold_limits = hold_limits
        self._label = label
        self._announce = announce
        self.submitted = 0
        self.counts = {"groups": 0, "grouped": 0}
        self._waiting: list[PendingItem] = []
        self._serving: set[asyncio.Future[Any]] = set()

    def submit(self, work: WriteItem | StatementItem) -> asyncio.Future[Any]:
        """Have a work done with the next group; await the future."""
        job = self._job(work)
        self._waiting.append(job)
        is_worth_it = len(self._waiting) >= WORTH_A_GROUP
        if not self._serving or (is_worth_it and len(self._serving) < AT_ONCE):
            self._begin()
        return job.future

    async def write(self, work: WriteItem | StatementItem) -> Any:
        """Have a work done: by who asks for it while nobody else does, else with the next group.

        So a lone session's commit is on its way before its event loop does anything else.
        """
        if self._serving:
            return await self.submit(work)
        job = self._job(work)
        self._serving.add(job.future)
        try:
            await self._write_group([job])
        except BaseException:  # who asked is being stopped
            job.future.cancel()
            raise
        finally:
            self._serving.discard(job.future)
            if self._waiting and not self._serving:
                self._begin()
        return await job.future

    def _job(self, work: WriteItem | StatementItem) -> PendingItem:
        self.submitted += 1
        return PendingItem(work, asyncio.get_running_loop().create_future())

    def _begin(self) -> None:
        self._serving.add(asyncio.create_task(self._serve(), name="outlast writer"))

    async def stop(self) -> None:
        """Finish what was submitted, then close the connection."""
        while self._serving:
            await asyncio.wait(self._serving)
        self._line.close()

    async def _serve(self) -> None:
        try:
            while jobs := first_group(self._waiting):
                del self._waiting[: len(jobs)]
                await self._write_group(jobs)
        finally:
            self._serving.discard(asyncio.current_task())

    async def _write_group(self, jobs: list[PendingItem]) -> None:
        try:
            await self._write(jobs)
        except StoreUnavailable as error:
            jobs, self._waiting = jobs + self._waiting, []  # they would wait for it in vain
            self._fail(jobs, error)
        except Exception as error:  # noqa: BLE001 - told to who asked
            await self._write_singly(jobs, error)

    async def _write_singly(self, jobs: Sequence[PendingItem], error: Exception) -> None:
        """Do each work in a transaction of its own; only the one at fault fails."""
        if len(jobs) == 1:
            return self._fail(jobs, self._explain(error))
        for place, job in enumerate(jobs):
            await self._write_group([job])
            if isinstance(job.error, ServerAway):  # the others would find the same, after a while
                return self._fail(jobs[place + 1 :], job.error)
        return None

    def _fail(self, jobs: Sequence[PendingItem], error: Exception) -> None:
        for job in jobs:
            job.error = error
        self._resolve(jobs, {})

    def _explain(self, error: Exception) -> Exception:
        return explain(error, self._label) if isinstance(error, psycopg.Error) else error

    async def _write(self, jobs: Sequence[PendingItem]) -> None:
        """Send a group, and tell those who wait what came of it."""
        group = WriteGroup(jobs, self._query, self._hold_limits)
        answers = await self._line.send(group.compose, group.doubt)
        hints: Hints = {}
        group.accept(answers, hints)
        self.counts["groups"] += 1
        self.counts["grouped"] += len(jobs)
        self._resolve(jobs, hints)

    def _resolve(self, jobs: Sequence[PendingItem], hints: Hints) -> None:
        for job in jobs:
            if job.result is AGAIN:
                job.result = None
                self._waiting.append(job)
            elif job.future.done():  # whoever asked has gone
                continue
            elif job.error:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if hints:
            self._announce(hints)


def first_group(waiting: list[PendingItem]) -> list[PendingItem]:
    """Return those that go out next: in their order, and one at least, however large."""
    group, size, most = waiting[:LARGEST_GROUP], 0, LARGEST_BYTES
    for place, job in enumerate(group):
        size += job.size
        if job.holds_limits:
            most = BESIDE_LIMITS
        if size > most:
            return group[: max(place, 1)]
    return group


class GroupLost(Exception):
    """A group has lost one connection after the other."""


class WriteGroup:
    """Works that go out together. Sessions come in the order in which they are locked.

    Limits come before them: where a work that asks for permits is not alone, all that the group
    will hold are held first.
    """

    def __init__(self, jobs: Sequence[PendingItem], query: Query, hold_limits: Query) -> None:
        self._query = query
        self._hold_limits = hold_limits
        self._entries = [job for job in jobs if hasattr(job.work, "prepare")]
        self._errands = [job for job in jobs if not hasattr(job.work, "prepare")]
        if len(self._entries) > 1:
            self._entries.sort(key=session_of)
        self._is_one = len(jobs) == 1
        self._in_doubt = False
        self._losses = 0

    def compose(self) -> list[Statement]:
        """Return what goes out. Raises LostTogether if each work should go by itself."""
        if self._in_doubt:  # and the server is there again
            self._in_doubt = False
            self._losses += 1
            if self._losses == MOST_LOSSES and not self._is_one:
                raise GroupLost
        statements: list[Statement] = []
        wanted: list[WriteRequest] = []
        if statement := self._alone():
            statements.append(statement)
        elif self._entries:
            buffer = GroupBuffer()
            rounds = into_rounds(self._entries)
            self._entries = [job for jobs in rounds for job in jobs]
            told = [[job.work.prepare(buffer) for job in jobs] for jobs in rounds]
            wanted = [one for jobs in told for one in jobs]
            values: list[Value] = [_encode(told), buffer.join()]
            statements.append(Statement(self._query.text, values, [JSONB, BYTEA], [TEXT, BINARY]))
        self._sizes = []
        for job in self._errands:
            own = job.work.compose()
            self._sizes.append(len(own))
            statements += own
        self._is_held = len(statements) > 1 and any(job.work.limits for job in self._errands)
        return [self._hold(wanted), *statements] if self._is_held else statements

    def _hold(self, wanted: Sequence[WriteRequest]) -> Statement:
        names = sorted({name for job in self._errands for name in job.work.limits})
        commits = [one for one in wanted if one.has_permits]
        params = {"names": _encode(names).decode(), "commits": _encode(commits).decode()}
        return self._hold_limits.bind(params)

    def _alone(self) -> Statement | None:
        """Return the statement of an entry that goes alone; not twice, if it was not written."""
        self._is_alone = False
        if len(self._entries) != 1 or self._entries[0].was_alone:
            return None
        statement: Statement | None = self._entries[0].work.alone()
        self._is_alone = statement is not None
        return statement

    def accept(self, answers: Sequence[Rows], hints: Hints) -> None:
        if self._is_held:
            answers = answers[1:]
        if self._is_alone:
            accept_alone(self._entries[0], answers[0], hints)
        elif self._entries:
            [[(text,)]] = answers[:1]
            written = _decode(text)
            for job, answer in zip(self._entries, written.answers, strict=True):
                job.result = job.work.accept(answer, hints)
            hints.update(dict.fromkeys(written.woken, True))
        place = 1 if self._entries else 0
        for job, size in zip(self._errands, self._sizes, strict=True):
            job.result = job.work.take(answers[place : place + size], hints)
            place += size

    def doubt(self) -> None:
        self._in_doubt = True
        for job in self._entries:
            job.work.doubt()


def accept_alone(job: PendingItem, rows: Rows, hints: Hints) -> None:
    """Take in what came of a lone entry. Of one that was not written, `write` says why not."""
    job.was_alone = True
    [[written]] = rows
    job.result = job.work.accept(["written", *written, "", []], hints) if written else AGAIN


def into_rounds(jobs: list[PendingItem]) -> list[list[PendingItem]]:
    """Split works so that none touches what another one of its round does; keep their order."""
    if len(jobs) == 1:
        return [jobs]
    rounds: list[list[PendingItem]] = []
    last: dict[object, int] = {}
    for job in jobs:
        keys = job.work.keys()
        number = max(last.get(key, 0) for key in keys)
        last.update(dict.fromkeys(keys, number + 1))
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(job)
    return rounds
