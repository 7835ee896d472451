"""People with sessions: they start them, write again, answer, cancel, and try again.

A user sees what a client sees. While the store is away, a call is made again under the same
dispatch id; whatever was accepted is written down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from chaos.agent import NAME
from chaos.plan import draw_plan, write_plan
from outlast import Outlast, Receipt, Request, Session
from outlast.errors import RequestClosed, StoreFull, StoreUnavailable

T = TypeVar("T")

PAUSE = 0.1
TWICE, CANCELS, DENIES = 0.2, 0.05, 0.25
MOST_FOLLOW_UPS = 2


class Accepted(Struct, frozen=True):
    """A receipt that a user has."""

    session: str
    delivery_id: str
    offset: int
    what: str


class Diary:
    """What users were promised, and what they found wrong by themselves."""

    def __init__(self) -> None:
        self.accepted: list[Accepted] = []
        self.complaints: list[str] = []
        self.runs: list[str] = []
        self.tried_again = 0

    def note(self, receipt: Receipt[Any], what: str) -> None:
        facts = (receipt.session_id, receipt.delivery_id, receipt.offset)
        self.accepted.append(Accepted(*facts, what))

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask for as long as the store is away, or has no room."""
        while True:
            try:
                return await ask()
            except (StoreUnavailable, StoreFull):
                self.tried_again += 1
                await asyncio.sleep(PAUSE)


class User:
    """One user with one session."""

    def __init__(self, name: str, app: Outlast, diary: Diary, chance: Random) -> None:
        self._name = name
        self._app = app
        self._diary = diary
        self._chance = chance

    async def start(self) -> Session[Any]:
        """Start the session, sometimes more often than once: it is the same session."""
        plan = write_plan(draw_plan(self._chance, self._name))

        async def ask() -> Session[Any]:
            return await self._app.start(NAME, plan, dispatch_id=f"start {self._name}")

        session = await self._diary.insist(ask)
        for _ in range(2 if self._maybe(TWICE) else 0):
            again = await self._diary.insist(ask)
            self._compare(session.receipt, again.receipt, "start")
        assert session.receipt is not None
        self._diary.note(session.receipt, "start")
        return session

    async def talk(self, session: Session[Any]) -> None:
        """Write again while a turn is under way, answer what is asked, until all is at rest."""
        for number in range(self._chance.randint(0, MOST_FOLLOW_UPS)):
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            await self._follow_up(session, number)
        if self._maybe(CANCELS):
            await self._diary.insist(lambda: session.cancel("changed my mind"))
        while (result := await self._diary.insist(session.wait)).requests:
            for request in result.requests:
                await self._answer(session, request)

    async def _follow_up(self, session: Session[Any], number: int) -> None:
        plan = write_plan(draw_plan(self._chance, f"{self._name}+{number}"))

        async def ask() -> Receipt[Any]:
            return await session.send(plan, dispatch_id=f"more {number}")

        receipt = await self._diary.insist(ask)
        self._diary.note(receipt, "follow-up")
        if self._maybe(TWICE):
            self._compare(receipt, await self._diary.insist(ask), "follow-up")

    async def _answer(self, session: Session[Any], request: Request) -> None:
        option = "deny" if self._maybe(DENIES) else "approve"

        async def ask(dispatch_id: str = "answer") -> Receipt[Any]:
            return await session.answer(request.request_id, option, dispatch_id=dispatch_id)

        try:
            receipt = await self._diary.insist(ask)
        except RequestClosed:
            return  # by a cancel
        self._diary.note(receipt, "answer")
        if self._maybe(TWICE):
            self._compare(receipt, await self._diary.insist(ask), "answer")
        if self._maybe(TWICE):
            await self._answer_too_late(request, lambda: ask("too late"))

    async def _answer_too_late(self, request: Request, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            await self._diary.insist(ask)
        except RequestClosed:
            return
        self._diary.complaints.append(f"{request.request_id} could be answered twice")

    def _compare(self, first: Receipt[Any] | None, again: Receipt[Any] | None, what: str) -> None:
        assert first is not None
        assert again is not None
        if (first.session_id, first.delivery_id) != (again.session_id, again.delivery_id):
            self._diary.complaints.append(
                f"a {what} that was repeated became {again.delivery_id}, not {first.delivery_id}"
            )

    def _maybe(self, share: float) -> bool:
        return self._chance.random() < share
