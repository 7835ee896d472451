"""Tells the story once: sends what the human says, follows the events, lets the reaper strike."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from outlast.app import Outlast
from outlast.cli.demo.agent import FOLLOW_UP, JOB
from outlast.cli.demo.display import YOU, EventDisplay
from outlast.cli.demo.kill import Kill, ProcessKiller
from outlast.cli.demo.plan import KillPoint
from outlast.cli.demo.process import WorkerFailed, WorkerPool
from outlast.cli.demo.scenario import DemoProgress
from outlast.cli.demo.story import AGENT
from outlast.cli.demo.timeline import Timeline
from outlast.core.event import Event
from outlast.errors import OutlastError
from outlast.session import Session

WORKERS = 2
THINKING = 1.2
REST = 0.05


class DemoOutcome(Struct, frozen=True):
    """What was done in a telling: to whom, how often killed, which deliveries had a receipt."""

    session_id: str
    kills: list[Kill]
    receipts: list[str]
    status: str


class DemoRunner:
    """Holds the strings of one telling."""

    def __init__(
        self, app: Outlast, stage: WorkerPool, cues: list[KillPoint], timeline: Timeline
    ) -> None:
        self._app = app
        self._stage = stage
        self._timeline = timeline
        self._scene = DemoProgress()
        self._narrator = EventDisplay(timeline, self._scene)
        self._cues = cues
        self._receipts: list[str] = []
        self._aside = asyncio.TaskGroup()
        self._followed_up = False

    async def direct(self) -> DemoOutcome:
        """Tell the story to its end."""
        self._timeline.follow(self._scene, self._stage)
        for _ in range(WORKERS):
            await self._stage.start()
        await self._stage.until_ready(WORKERS)
        session: Session[str] = await self._app.start(AGENT, JOB, principal=YOU)
        assert session.receipt is not None
        self._receipts.append(session.receipt.delivery_id)
        try:
            return await self._tell(session)
        except* (WorkerFailed, OutlastError, OSError) as group:
            raise group.exceptions[0] from None

    async def _tell(self, session: Session[str]) -> DemoOutcome:
        reaper = ProcessKiller(
            self._cues,
            self._stage,
            self._scene,
            self._app.clock,
            self._aside.create_task,
            session.info,
            self._narrator.killed,
        )
        async with self._aside:
            watch = self._aside.create_task(self._stage.until_trouble())
            await self._follow(session, reaper)
            watch.cancel()
        result = await session.wait()
        return DemoOutcome(session.id, reaper.kills, self._receipts, result.status)

    async def _follow(self, session: Session[str], reaper: ProcessKiller) -> None:
        """Read the events to the end of the story; they pause while a human is awaited."""
        while not (self._followed_up and self._scene.is_over):
            async for event in session.events(self._scene.offset, internals=True):
                await self._see(event, session, reaper)
            await asyncio.sleep(REST)

    async def _see(self, event: Event, session: Session[str], reaper: ProcessKiller) -> None:
        self._scene.see(event)
        if event.type in ("turn.started", "session.resumed"):
            self._scene.worker = (await session.info()).lanes[0].worker or self._scene.worker
        if kill := reaper.saw(event):
            self._narrator.taken_over(kill)
        self._narrator.tell(event)
        self._act(event, session)

    # The human

    def _act(self, event: Event, session: Session[str]) -> None:
        if event.type == "input.requested":
            self._aside.create_task(self._approve(session, event.data["request_id"]))
        elif event.type == "message.completed" and not self._followed_up and event.step == 2:
            self._followed_up = True
            self._aside.create_task(self._follow_up(session))

    async def _approve(self, session: Session[str], request_id: str) -> None:
        await asyncio.sleep(THINKING)
        receipt = await session.answer(request_id, "approve", by=YOU)
        self._receipts.append(receipt.delivery_id)

    async def _follow_up(self, session: Session[str]) -> None:
        await asyncio.sleep(THINKING / 2)
        receipt = await session.send(FOLLOW_UP, by=YOU)
        self._receipts.append(receipt.delivery_id)
