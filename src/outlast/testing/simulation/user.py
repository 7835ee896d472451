"""The users of a simulation: they start sessions, talk, answer, change their minds and read.

They use Outlast as any program would, over connections as bad as the workers', and insist: what
was not acknowledged is sent again under the same dispatch id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

import msgspec

from outlast.agents.state.snapshot import Snapshot
from outlast.app import Outlast
from outlast.core.lane import StartMode
from outlast.core.name import MAIN, callback_name, turn_name
from outlast.core.record import AuthorizationRequired
from outlast.errors import (
    DispatchConflict,
    InvalidAnswer,
    NoActiveSession,
    NothingToRetry,
    RequestClosed,
    SessionOver,
    StoreUnavailable,
    TaskCannotWait,
    TokenTaken,
    UnknownCallback,
    UnknownLane,
)
from outlast.session import Receipt, Request, Session
from outlast.session.router import Token
from outlast.testing.simulation.history import (
    CallbackMade,
    History,
    ReceiptReceived,
    UnexpectedError,
    UserAsked,
)
from outlast.testing.simulation.oauth_service import NAME as HUB
from outlast.testing.simulation.random_agent import OTHER_LANE, OrderLine, OutsideService
from outlast.testing.simulation.random_queue import random_place

T = TypeVar("T")

NO = (
    DispatchConflict,
    NoActiveSession,
    NothingToRetry,
    RequestClosed,
    SessionOver,
    TaskCannotWait,
    TokenTaken,
    UnknownCallback,
    UnknownLane,
)
"""Refusals that a user may meet."""


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer; a store that is away comes back."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(0.2)


class SimulatedUser:
    """A user with a few sessions, who sends some of `messages`."""

    def __init__(
        self,
        name: str,
        app: Outlast,
        history: History,
        chance: Random,
        messages: Sequence[str],
        outside: OutsideService,
        in_queues: bool = False,
    ) -> None:
        self.name = name
        self._app = app
        self._history = history
        self._chance = chance
        self._messages = messages
        self._outside = outside
        self._in_queues = in_queues
        self._sessions: list[Session[Any]] = []
        self._sent: list[tuple[Session[Any], str, dict[str, Any], str]] = []
        self._backs: list[dict[str, str]] = []
        self._snapshots: list[tuple[Session[Any], Snapshot]] = []
        self._said = 0

    async def live(self, moments: int) -> None:
        """Do one thing after the other, with pauses."""
        acts = [self._start, self._start, *[self._send] * 6, self._send_again, self._conflict]
        acts += [*[self._answer] * 8, self._cancel, self._cancel, self._end, self._retry]
        acts += [self._deliver, self._deliver, *[self._call_back] * 3]
        acts += [*[self._sign_in] * 4, self._come_again]
        acts += [self._change_state, self._change_state, self._roll_back, self._roll_back]
        acts += [self._compact, self._compact, self._rewind]
        await self._start()
        for _ in range(moments):
            await asyncio.sleep(self._chance.choice([0.0, 0.1, 1.0, 5.0, 20.0]))
            try:
                await self._chance.choice(acts)()
            except NO as refusal:
                self._history.note(UserAsked, what=f"refused: {refusal.code}", session_id="")

    # Saying things

    def _words(self) -> tuple[str, str]:
        """Return something to say, and the dispatch id to say it under."""
        self._said += 1
        words = self._chance.choice(self._messages) if self._messages else "Go on, please."
        return (f"{words} ({self.name}, {self._said})", f"{self.name}-{self._said}")

    async def _start(self) -> None:
        text, dispatch = self._words()
        agent = self._chance.choice(list(self._app.agents))
        tenant = self._chance.choice(["default", "acme"])
        modes: list[StartMode] = ["conversation", "conversation", "conversation", "task"]
        mode = self._chance.choice(modes)
        can_ask = self._chance.random() < 0.8
        deadline = self._deadline()
        principal = self._chance.choice(["ada", "bob"])

        async def start() -> Session[Any]:
            return await self._app.start(
                agent,
                text,
                mode=mode,
                dispatch_id=dispatch,
                continuation_token=f"token of {dispatch}",
                tenant=tenant,
                principal=principal,
                capabilities={"request_input": can_ask},
                deadline=deadline,
                tags={"start": dispatch},
                queue=random_place(dispatch) if self._in_queues else None,
            )

        session = await insist(start)
        assert session.receipt is not None
        self._keep(session.receipt, "message")
        self._sessions.append(session)

    def _deadline(self) -> timedelta | None:
        """Return how long something may take: any time, or so little that it may be too late."""
        seconds = self._chance.choice([*[0] * 26, 1, 20, 60, 150])
        return timedelta(seconds=seconds) if seconds else None

    def _keep(self, receipt: Receipt[Any], kind: str) -> None:
        self._history.note(
            ReceiptReceived,
            session_id=receipt.session_id,
            lane=receipt.lane,
            delivery_id=receipt.delivery_id,
            kind=kind,
            offset=receipt.offset,
        )

    def _session(self) -> Session[Any]:
        return self._chance.choice(self._sessions)

    async def _send(self) -> None:
        session, (text, dispatch) = self._session(), self._words()
        lane = self._chance.choice([MAIN, MAIN, MAIN, OTHER_LANE])
        how: dict[str, Any] = {"dispatch_id": dispatch, "lane": lane, "deadline": self._deadline()}
        self._history.note(UserAsked, what="send", session_id=session.id, lane=lane)
        receipt = await insist(lambda: session.send(text, **how))
        self._keep(receipt, "message")
        self._sent.append((session, text, how, receipt.delivery_id))

    async def _send_again(self) -> None:
        """A double click: the first receipt comes back."""
        if self._sent:
            session, text, how, delivery_id = self._chance.choice(self._sent)
            receipt = await insist(lambda: session.send(text, **how))
            if receipt.delivery_id != delivery_id:
                self._history.note(UnexpectedError, what=f"{how['dispatch_id']} was accepted twice")

    async def _conflict(self) -> None:
        """Other words under an id that was used."""
        if self._sent:
            session, _, how, _ = self._chance.choice(self._sent)
            await insist(lambda: session.send("Other words", **how))
            self._history.note(
                UnexpectedError, what=f"{how['dispatch_id']} was taken for other words"
            )

    async def _deliver(self) -> None:
        """Send to the session that has a continuation token now, or start one there."""
        text, dispatch = self._words()
        tenant, number = self._chance.choice(["default", "acme"]), self._chance.randrange(20)
        agent = self._chance.choice([None, *self._app.agents])
        principal = self._chance.choice(["ada", "bob"])

        async def deliver() -> Receipt[Any]:
            return await self._app.send(
                Token(f"{tenant} {number}", agent),
                text,
                dispatch_id=dispatch,
                tenant=tenant,
                principal=principal,
                tags={"start": dispatch},
            )

        receipt = await insist(deliver)
        self._keep(receipt, "message")
        self._sessions.append(receipt.session)

    # Answering

    async def _answer(self) -> None:
        session = self._session()
        for request in await insist(session.requests):
            if self._chance.random() < 0.7:
                await self.answer(session, request)
                if self._chance.random() < 0.1:
                    await self.answer(session, request)

    async def answer(self, session: Session[Any], request: Request) -> None:
        """Answer a request, in one of the ways in which it can be."""
        option, text, args = random_answer(self._chance, request)
        dispatch = f"{self.name}-{self._chance.randrange(10**9)}"
        self._history.note(
            UserAsked,
            what=f"answer {option or text}",
            session_id=session.id,
            lane=request.request_id,
        )
        try:
            receipt = await insist(
                lambda: session.answer(
                    request.request_id, option, text=text, args=args, dispatch_id=dispatch
                )
            )
        except (RequestClosed, SessionOver, InvalidAnswer):
            return
        self._keep(receipt, "reply")

    async def _call_back(self) -> None:
        """Call a tool that gave out its address: soon, late, once more, or with other words."""
        if not self._outside.addresses:
            return
        address = self._chance.choice(self._outside.addresses[-6:])
        token, body = address.rpartition("/")[2], f"call {self._chance.randrange(3)}"
        self._history.note(CallbackMade, request_id=callback_name(token), body=body)
        receipt = await insist(
            lambda: self._app.callbacks.receive(token, body.encode(), "text/plain; charset=utf-8")
        )
        assert receipt is not None, "no tool here takes only what is signed"
        self._keep(receipt, "reply")

    # Signing in

    async def _sign_in(self) -> None:
        """Open a sign-in page, grant or deny, and return to the app."""
        waiting = await self._app.store.listing.requests(kinds=("authorization",), limit=50)
        if not waiting:
            return
        request = self._chance.choice(waiting)
        asked = msgspec.json.decode(request.data, type=AuthorizationRequired)
        owner, says_yes = f"{request.tenant}/{asked.principal}", self._chance.random() < 0.8
        back = self._outside.oauth_service.sign_in(asked.url, owner, says_yes=says_yes)
        self._backs.append(back)
        await asyncio.sleep(self._chance.choice([0.0, 0.1, 5.0]))
        await self._come_back(back)

    async def _come_again(self) -> None:
        """A reload of the page that one came back to."""
        if self._backs:
            await self._come_back(self._chance.choice(self._backs))

    async def _come_back(self, back: dict[str, str]) -> None:
        ending = await insist(lambda: self._app.connections.complete(HUB, **back))
        self._history.note(UserAsked, what=f"sign in: {ending}", session_id="")

    # Changing state from outside

    async def _change_state(self) -> None:
        """Add a line to those that tools write, or keep what there is for later."""
        session, (text, dispatch) = self._session(), self._words()
        if self._chance.random() < 0.5:
            self._snapshots.append((session, await insist(session.snapshot)))
            return
        lines = session.mutate(OrderLine)
        receipt = await insist(lambda: lines.append(OrderLine(text), dispatch_id=dispatch))
        self._keep(receipt, "change")

    async def _roll_back(self) -> None:
        """Have all state as it was in a snapshot, or as in the beginning."""
        if not self._snapshots:
            return
        session, snapshot = self._chance.choice(self._snapshots)
        state, dispatch = session.mutate(), f"{self.name}-{self._chance.randrange(10**9)}"
        if self._chance.random() < 0.2:
            receipt = await insist(lambda: state.reset(dispatch_id=dispatch))
        else:
            receipt = await insist(lambda: state.rollback(snapshot, dispatch_id=dispatch))
        self._keep(receipt, "change")

    # Changing what the model sees

    async def _compact(self) -> None:
        session, lane = self._session(), self._chance.choice([MAIN, MAIN, OTHER_LANE])
        dispatch = f"{self.name}-{self._chance.randrange(10**9)}"
        receipt = await insist(lambda: session.compact(lane=lane, dispatch_id=dispatch))
        self._keep(receipt, "view")

    async def _rewind(self) -> None:
        """Go back behind one of the first turns, which the lane may not have had yet."""
        session, number = self._session(), self._chance.choice([1, 1, 2, 3])
        turn = turn_name(self._chance.choice([MAIN, MAIN, OTHER_LANE]), number)
        dispatch = f"{self.name}-{self._chance.randrange(10**9)}"
        receipt = await insist(lambda: session.rewind(turn, dispatch_id=dispatch))
        self._keep(receipt, "view")

    # Changing one's mind

    async def _cancel(self) -> None:
        session = self._session()
        self._history.note(UserAsked, what="cancel", session_id=session.id)
        await insist(lambda: session.cancel("changed my mind"))

    async def _end(self) -> None:
        session = self._session()
        if self._chance.random() < 0.5:
            self._history.note(UserAsked, what="end", session_id=session.id)
            await insist(lambda: session.end("enough"))

    async def _retry(self) -> None:
        session = self._session()
        self._keep(await insist(session.retry), "retry")


def random_answer(
    chance: Random, request: Request
) -> tuple[str | None, str | None, dict[str, Any] | None]:
    options = [option.id for option in request.options]
    if not options:
        return None, f"answer {chance.randrange(100)}", None
    option = chance.choice([options[0], *options])
    edits = option == "approve" and isinstance(request.args, dict) and chance.random() < 0.2
    args = {**request.args, **edited(request.args, chance)} if edits else None
    return option, "so be it" if option == "done" else None, args


def edited(args: dict[str, Any], chance: Random) -> dict[str, Any]:
    return {name: chance.randrange(20) for name, value in args.items() if type(value) is int}
