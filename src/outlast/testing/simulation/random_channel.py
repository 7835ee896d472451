"""Channels in some simulations: who posts to them, anchors sessions in them, and tells them.

What is drawn here is drawn from seeds of its own: a simulation without channels is not changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from outlast.agents.agent import Agent
from outlast.app import Outlast
from outlast.core.name import OF_CHANNEL
from outlast.errors import Unreachable
from outlast.integration.channel import Channel, Inbound, InboundRequest, Outgoing
from outlast.integration.outbox.dispatcher import OutboxDispatcher
from outlast.integration.outbox.settings import WebhookSettings
from outlast.session import Receipt
from outlast.stores.sqlite import MemoryStore
from outlast.testing.simulation.history import (
    History,
    ReceiptReceived,
    TellerKilled,
    ThreadPosted,
    ThreadTold,
    UnexpectedError,
)
from outlast.testing.simulation.loop import ProcessLife
from outlast.testing.simulation.random_answer import chance_of
from outlast.testing.simulation.user import NO, insist

SHARE = 0.3
"""Of the simulations whose sessions are anchored in threads."""
NAMES = ("board", "wall")
THREADS = 8
TELLERS = 2
LONGEST_SETTLE = 900.0

MakeApp = Callable[[ProcessLife, Sequence[Channel]], Outlast]


class SimulatedChannel(Channel):
    """A place whose threads may have taken what they say that they have not."""

    def __init__(self, name: str, agent: str, seed: int, history: History) -> None:
        super().__init__(name, agent)
        self._chance = chance_of(seed, "channel", name)
        self._history = history
        self.is_well = False

    def verify(self, request: InboundRequest) -> None:
        """Everyone here is who they say."""

    def read(self, request: InboundRequest) -> Inbound:
        return Inbound(**request.json())

    async def send(self, outgoing: Outgoing, thread: str) -> None:
        await asyncio.sleep(self._chance.choice([0.0, 0.1, 2.0]))
        fault = 1.0 if self.is_well else self._chance.random()
        if fault < 0.1:
            raise Unreachable("it is away")
        self._history.note(
            ThreadTold,
            token=self.token(thread),
            session_id=outgoing.session_id,
            offset=outgoing.event.offset,
            event=outgoing.type,
            taken=fault >= 0.2,
        )
        if fault < 0.2:
            raise Unreachable("it has taken it, and the answer was lost")


class RandomChannels:
    """Threads of two channels; `make_app` gives the app of a process."""

    def __init__(
        self,
        seed: int,
        agents: Sequence[Agent[object, object]],
        memory: MemoryStore,
        history: History,
        make_app: MakeApp,
        *,
        wanted: bool,
    ) -> None:
        self._chance = chance_of(seed, "channels")
        self._is_there = wanted and self._chance.random() < SHARE
        self._memory = memory
        self._history = history
        self._make_app = make_app
        # A simulation of workflows has no agents of its own.
        self._channels = [
            SimulatedChannel(name, agent.name, seed, history)
            for agent in agents[:1]
            for name in NAMES
        ]
        self._lives: list[ProcessLife] = []
        self._started = self._said = 0
        self._posts: list[tuple[str, dict[str, Any]]] = []

    async def live(self) -> None:
        """Post, anchor, and have those that tell die, one thing after the other."""
        if not self._is_there:
            return
        life = ProcessLife("operator of channels")
        app = self._make_app(life, self._channels)
        while True:
            await asyncio.sleep(self._chance.uniform(0.2, 6.0))
            while len(self._lives) < TELLERS:
                self._start_teller()
            act = self._chance.choice([self._anchor, self._anchor, self._post, self._post_again])
            with suppress(*NO):
                await act(app)
            if self._chance.random() < 0.1:
                self._kill_teller()

    def _start_teller(self) -> None:
        self._started += 1
        life = ProcessLife(f"t{self._started}")
        app = self._make_app(life, self._channels)
        settings = WebhookSettings(timeout=5.0, poll=3.0)
        dispatcher = OutboxDispatcher(app.store, app.clock, app._outbox, settings)
        life.context().run(dispatcher.start)
        self._lives.append(life)

    def _kill_teller(self) -> None:
        life = self._lives.pop(0)
        life.stop()
        self._history.note(TellerKilled, teller=life.name)

    def _next(self) -> str:
        self._said += 1
        return f"channels-{self._said}"

    def _thread(self) -> str:
        return f"thread-{self._chance.randrange(THREADS)}"

    async def _anchor(self, app: Outlast) -> None:
        """Anchor some session in some thread, which another may have."""
        found = await self._memory.listing.sessions(kind="session", limit=1000)
        if not (living := [info for info in found if not info.over]):
            return
        session, dispatch = self._chance.choice(living).session_id, self._next()
        channel, thread = self._chance.choice(NAMES), self._thread()
        receipt = await insist(
            lambda: app.channels.anchor(session, channel, thread, dispatch_id=dispatch)
        )
        self._keep(receipt, "change")

    async def _post(self, app: Outlast) -> None:
        """Say something in a thread: to the session that has it, or to a new one."""
        said: dict[str, Any] = {
            "id": self._next(),
            "thread": self._thread(),
            "message": "Go on there, please.",
        }
        said["tags"] = {"start": said["id"]}
        said["tenant"] = self._chance.choice(["default", "acme"])
        self._posts.append((self._chance.choice(NAMES), said))
        await self._bring(app, *self._posts[-1])

    async def _post_again(self, app: Outlast) -> None:
        """What a sender tries again that has heard nothing."""
        if self._posts:
            await self._bring(app, *self._chance.choice(self._posts))

    async def _bring(self, app: Outlast, channel: str, said: dict[str, Any]) -> None:
        body, asked_at = json.dumps(said).encode(), len(self._history.notes)
        got = await insist(lambda: app.channels.receive(channel, {}, body))
        assert got.receipt is not None
        self._keep(got.receipt, "message")
        self._history.note(
            ThreadPosted,
            token=f"{OF_CHANNEL}{channel}:{said['thread']}",
            tenant=said["tenant"],
            post=said["id"],
            session_id=got.receipt.session_id,
            offset=got.receipt.offset,
            asked_at=asked_at,
        )

    def _keep(self, receipt: Receipt[object], kind: str) -> None:
        self._history.note(
            ReceiptReceived,
            session_id=receipt.session_id,
            lane=receipt.lane,
            delivery_id=receipt.delivery_id,
            kind=kind,
            offset=receipt.offset,
        )

    async def settle(self) -> None:
        """Have all be told that is to be told, once nothing goes wrong any more."""
        if not self._is_there:
            return
        for channel in self._channels:
            channel.is_well = True
        if not self._lives:
            self._start_teller()
        for _ in range(int(LONGEST_SETTLE)):
            if await self._memory.outbox.next_due_at() is None:
                return
            await asyncio.sleep(1.0)
        self._history.note(UnexpectedError, what="what is to be told in threads is not told")
