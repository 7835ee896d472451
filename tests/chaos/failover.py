"""A primary that is killed under load, its standby promoted, and the old one brought back.

With a synchronous standby nothing may be lost. With one that lags, what it had not got is lost, as
the guide says: receipts and answers from before the promotion. But never is a log wrong, a message
that was accepted afterwards left unanswered, or a model asked with words that are in no log.

`python -m chaos.failover URL LEDGER LEASE` is one of its workers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct
from postgres_pair import PostgresPair, ask, postgres_pair
from postgres_proxy import Wire

from chaos.fleet import Fleet
from chaos.ledger import Ledger
from chaos.worker import serve_as_worker
from outlast import Agent, Outlast, Receipt, Session
from outlast.agents.model.client import ModelRequest
from outlast.core import record as r
from outlast.core.message import ModelAnswer, UserMessage, text_of
from outlast.errors import StoreUnavailable, UnknownSession
from outlast.log.verify import verify
from outlast.testing import ScriptedModel, ScriptedReply, say

NAME = "scribe"
BEHIND = 1.0
"""Seconds for which a standby that lags has got nothing when it is promoted."""
PAUSE = 0.1
CUT = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE application_name = 'outlast' AND random() < 0.4"
)


class FailoverSettings(Struct, frozen=True, kw_only=True):
    """How a run goes. Durations are seconds."""

    synchronous: bool
    sessions: int = 40
    seconds: float = 12.0
    workers: int = 3
    lease: float = 6.0
    timeout: float = 120.0


class Acknowledged(Struct, frozen=True):
    """A receipt, and when its sender had it."""

    session: str
    delivery_id: str
    text: str
    at: float


def scribe(ledger: Ledger) -> Agent[Any, Any]:
    """An agent of which no two answers are alike; all that its model is asked is written down."""

    def script(request: ModelRequest) -> ScriptedReply:
        said = [text for message in request.view.messages if (text := words(message))]
        ledger.mark("asked", call=request.call_id, key=msgspec.json.encode(said).decode())
        return say(f"answer {uuid4()}")

    return Agent(NAME, ScriptedModel(script))


def words(message: Any) -> str:
    match message:
        case UserMessage(content=content):
            return text_of(content)
        case ModelAnswer(parts=parts):
            return text_of(parts)
    return ""


class PairPlace:
    """Where the sessions are: at one of two servers."""

    name = "postgres with a standby"

    def __init__(self, pair: PostgresPair) -> None:
        self.url = pair.url

    async def route(self) -> tuple[str, Wire | None]:
        return self.url, None


class FailoverRun:
    """The director: users write, the primary dies, and all that was said is held together."""

    def __init__(self, settings: FailoverSettings, directory: Path, pair: PostgresPair) -> None:
        self._settings = settings
        self._pair = pair
        self._ledger = Ledger(directory / "ledger.jsonl")
        self._accepted: list[Acknowledged] = []
        self._over = asyncio.Event()
        self._promoted_at = 0.0

    async def run(self) -> list[str]:
        """Return what was found wrong."""
        place, lease = PairPlace(self._pair), self._settings.lease
        app = Outlast([scribe(self._ledger)], store=place.url, worker=None)
        fleet = Fleet(place, self._ledger.path, lease, program="chaos.failover")
        async with app, fleet:
            for _ in range(self._settings.workers):
                await fleet.start()
            users = [
                asyncio.create_task(self._talk(app, n)) for n in range(self._settings.sessions)
            ]
            await self._fail_over()
            self._over.set()
            _, late = await asyncio.wait(users, timeout=self._settings.timeout)
            found = [f"{len(late)} users got no answer"] if late else []
            for task in late:
                task.cancel()
            results = await asyncio.gather(*users, return_exceptions=True)
            found += [f"a user met {e!r}" for e in results if isinstance(e, Exception)]
            found += [problem async for problem in self._check(app)]
            await fleet.dismiss()
            return found + fleet.trouble

    async def _fail_over(self) -> None:
        await asyncio.sleep(self._settings.seconds / 3)
        if not self._settings.synchronous:
            await asyncio.to_thread(self._pair.cut)
            await asyncio.sleep(BEHIND)
        await asyncio.to_thread(self._pair.fail_over)
        self._promoted_at = time.monotonic()
        await asyncio.sleep(self._settings.seconds / 6)
        await asyncio.to_thread(self._pair.bring_back)
        await asyncio.to_thread(ask, self._pair.second, CUT)
        await asyncio.sleep(self._settings.seconds / 2)

    # Users

    async def _talk(self, app: Outlast, number: int) -> None:
        """Write to one session after the other that is lost, until the run is over; then wait."""
        session: Session[Any] | None = None
        said = 0
        while not self._over.is_set():
            said += 1
            text = f"user {number}, message {said}"
            try:
                session = await self._say(app, session, text)
            except UnknownSession:  # its start was lost
                if self._settings.synchronous:
                    raise
                session = None
            await asyncio.sleep(PAUSE * (1 + number % 5))
        if session:
            await insist(session.wait)

    async def _say(self, app: Outlast, session: Session[Any] | None, text: str) -> Session[Any]:
        async def start() -> Session[Any]:
            return await app.start(NAME, text, dispatch_id=text)

        async def send(to: Session[Any]) -> Receipt[Any]:
            return await to.send(text, dispatch_id=text)

        if session is None:
            session = await insist(start)
            receipt = session.receipt
        else:
            to = session
            receipt = await insist(lambda: send(to))
        assert receipt is not None
        known = (receipt.session_id, receipt.delivery_id, text)
        self._accepted.append(Acknowledged(*known, time.monotonic()))
        return session

    # What is left

    async def _check(self, app: Outlast) -> AsyncIterator[str]:
        logs: dict[str, list[r.AnyRecord]] = {}
        for session_id in sorted({receipt.session for receipt in self._accepted}):
            try:
                logs[session_id] = [e.record for e in await read_log(app, session_id)]
            except UnknownSession:
                continue
            for finding in await verify(app.store, session_id):
                yield str(finding)
        for problem in (*self._wrong_receipts(logs), *self._unheard_of(logs)):
            yield problem

    def _wrong_receipts(self, logs: dict[str, list[r.AnyRecord]]) -> Iterator[str]:
        """Each receipt that may not be lost is of a message that was answered once."""
        for receipt in self._accepted:
            if not self._settings.synchronous and receipt.at < self._promoted_at:
                continue
            log = logs.get(receipt.session, [])
            queued = [e for e in log if isinstance(e, r.DeliveryQueued)]
            settled = [e for e in log if isinstance(e, r.DeliverySettled)]
            times = sum(e.delivery_id == receipt.delivery_id for e in queued)
            ends = [e.outcome for e in settled if e.delivery_id == receipt.delivery_id]
            if times != 1 or ends != ["completed"]:
                yield f"{receipt}: it is in the log {times} times, and ended as {ends}"

    def _unheard_of(self, logs: dict[str, list[r.AnyRecord]]) -> Iterator[str]:
        """No model was asked after the promotion with words that are in no log."""
        for mark in self._ledger.read():
            if mark.what == "lost":
                yield f"worker {mark.pid}: {mark.key}"
            if mark.what != "asked" or mark.at < self._promoted_at:
                continue
            log = logs.get(mark.session, [])
            known = {text_of(e.content) for e in log if isinstance(e, r.DeliveryQueued)}
            known |= {text_of(e.parts) for e in log if isinstance(e, r.MessageCompleted)}
            for text in msgspec.json.decode(mark.key, type=list[str]):
                if text not in known:
                    yield f"{mark.session} {mark.call} was asked with {text!r}"


async def insist(question: Any) -> Any:
    """Ask for as long as the store is away."""
    while True:
        try:
            return await question()
        except StoreUnavailable:
            await asyncio.sleep(PAUSE)


async def read_log(app: Outlast, session_id: str) -> list[Any]:
    entries: list[Any] = []
    cursor = 0
    while True:
        page = await app.store.log.read(session_id, cursor)
        entries += page.entries
        if page.cursor >= page.end:
            return entries
        cursor = page.cursor


@asynccontextmanager
async def two_servers(*, synchronous: bool) -> AsyncIterator[PostgresPair]:
    pair = postgres_pair(synchronous=synchronous)
    made = await asyncio.to_thread(pair.__enter__)
    try:
        yield made
    finally:
        await asyncio.to_thread(pair.__exit__, None, None, None)


async def run_failover(settings: FailoverSettings, directory: Path) -> list[str]:
    """Let a failover happen in a directory that is its own; return what was found wrong."""
    async with two_servers(synchronous=settings.synchronous) as pair:
        return await FailoverRun(settings, directory, pair).run()


if __name__ == "__main__":
    serve_as_worker(sys.argv[1:], lambda ledger, _: scribe(ledger))
