"""A remote agent with both sides killed and the network cut between, by real SIGKILL."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from crash_process import Process, Zygote
from crash_remote import READY, app_of
from free_port import free_port
from postgres_proxy import Wire

from outlast import Outlast, Session
from outlast.log.reader import Wakeups
from outlast.log.verify import verify
from outlast.server.key import add_key, mint
from outlast.server.principal import SCOPES

BOTH = ("near", "far")


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Zygote]:
    """A process that forks servers."""
    zygote = await Zygote.start("crash_remote")
    yield zygote
    await zygote.stop()


class Network:
    """The ways between both sides: to the far one, and back to the near one."""

    def __init__(self, forth: Wire, back: Wire) -> None:
        self.forth = forth
        self._wires = (forth, back)

    def cut(self) -> None:
        for wire in self._wires:
            wire.lets_nobody_through = True
            wire.refused.clear()
            wire.cut()

    async def missed(self) -> None:
        """Wait until somebody has tried in vain."""
        async with asyncio.timeout(60):
            waits = [asyncio.ensure_future(wire.refused.wait()) for wire in self._wires]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()

    def mend(self) -> None:
        for wire in self._wires:
            wire.lets_nobody_through = False


class Scene:
    """Both apps as the test sees them, the processes that work for them, and what is between."""

    def __init__(self, zygote: Zygote, network: Network, orders: dict[str, Any]) -> None:
        self.network = network
        self._zygote = zygote
        self._orders = orders
        self._processes: dict[str, Process] = {}
        self.apps: dict[str, Outlast] = {}

    async def start(self, *sides: str) -> None:
        for side in sides:
            self._processes[side] = await self._zygote.run("serve", **self._orders[side])
        for side in sides:
            await self._processes[side].until_said(READY)

    async def kill(self, *sides: str) -> None:
        for side in sides:
            self._processes[side].signal(signal.SIGKILL)
        for side in sides:
            assert await self._processes[side].until_exit() == -signal.SIGKILL

    async def restart(self, *sides: str) -> None:
        await self.kill(*sides)
        await self.start(*sides)

    async def session(self, side: str) -> Session[Any]:
        """Return the only session of a side, once there is one."""
        app = self.apps[side]
        with Wakeups(app.store, "") as wakeups:
            while not (found := await app.sessions()):
                wakeups.clear()
                await wakeups.wait()
        [info] = found
        return await app.session(info.session_id)

    async def until(self, side: str, kind: str) -> Any:
        """Wait for an event of a type in the session of a side, however often that rests."""
        session = await self.session(side)
        async with asyncio.timeout(60):
            with Wakeups(self.apps[side].store, session.id) as wakeups:
                while True:
                    wakeups.clear()
                    async for event in session.events(follow=False):
                        if event.type == kind:
                            return event
                    await wakeups.wait()


@asynccontextmanager
async def two_sides(zygote: Zygote, folder: Path) -> AsyncIterator[Scene]:
    ports = {side: free_port() for side in BOTH}
    stores = {side: f"sqlite:///{folder / side}.db" for side in BOTH}
    async with AsyncExitStack() as stack:
        wires = {side: Wire(f"http://127.0.0.1:{ports[side]}") for side in BOTH}
        ways = {s: await stack.enter_async_context(wires[s].opened()) for s in BOTH}
        urls = {side: f"http://127.0.0.1:{port}" for side, port in ways.items()}
        far = await stack.enter_async_context(app_of("far", stores["far"], worker=None))
        token, key = mint(far.clock, tenant="default", name="near", scopes=tuple(SCOPES))
        await add_key(far.store, key)
        with closing(sqlite3.connect(folder / "far.db")) as database:
            database.execute("CREATE TABLE paid (cents INTEGER)")
        asks = {"url": urls["far"], "token": token, "public_url": urls["near"]}
        near = await stack.enter_async_context(app_of("near", stores["near"], worker=None, **asks))
        orders = {side: {"side": side, "store": stores[side], "port": ports[side]} for side in BOTH}
        orders["near"] |= asks
        scene = Scene(zygote, Network(wires["far"], wires["near"]), orders)
        scene.apps = {"near": near, "far": far}
        await scene.start(*BOTH)
        yield scene


def paid(folder: Path) -> list[tuple[int]]:
    with closing(sqlite3.connect(folder / "far.db")) as database:
        return database.execute("SELECT cents FROM paid").fetchall()


KILLED = [
    [("near",), ("far",), BOTH, ("near",)],
    [("far",), BOTH, ("near",), BOTH],
    [BOTH, ("near",), ("far",), ("far",)],
]
"""Who is killed: when the far side has started and the near one does not know it, when the far
side asks, at the answer, and when the work is done."""


@pytest.mark.parametrize("by", ["model", "order"])
@pytest.mark.parametrize("killed", KILLED, ids=["near-first", "far-first", "both-first"])
async def test_a_remote_call_is_made_once_whoever_is_killed_and_though_the_network_is_cut(
    killed: list[tuple[str, ...]], by: str, servers: Zygote, tmp_path: Path
) -> None:
    """`order` is a tool whose outcome would be unknown, were it running when its worker is killed.

    So the near side, where it runs when all is done, is not killed at the end.
    """
    at_start, at_question, at_answer, at_end = killed
    async with two_sides(servers, tmp_path) as scene:
        scene.network.forth.loses_the_answer_to = b"POST /v1/sessions HTTP"
        session = await scene.apps["near"].start("shop", by)
        await scene.network.forth.lost.wait()
        await scene.restart(*at_start)
        await scene.until("far", "request.opened")
        await scene.restart(*at_question)
        asked = await scene.until("near", "request.opened")
        scene.network.cut()
        await session.answer(asked.data["request_id"], "approve")
        await scene.restart(*at_answer)
        await scene.network.missed()
        scene.network.mend()
        await scene.until("far", "tool.completed")
        await scene.restart(*(at_end if by == "model" else ("far",)))
        await scene.until("near", "turn.completed")

        assert (await session.wait()).output == "Done."
        [outcome] = [e async for e in session.events(follow=False) if e.type == "tool.completed"]
        assert outcome.data["value"] == "It is paid."
        if by == "order":
            assert outcome.attempt_id.endswith("#2")  # before its wait and after, and for no poll
        assert paid(tmp_path) == [(5,)]
        for side, app in scene.apps.items():
            assert not await verify(app.store, (await scene.session(side)).id)


async def test_a_cancel_reaches_the_far_side_though_both_are_killed_right_there(
    servers: Zygote, tmp_path: Path
) -> None:
    async with two_sides(servers, tmp_path) as scene:
        session = await scene.apps["near"].start("shop", "go")
        await scene.until("near", "request.opened")
        await scene.kill(*BOTH)
        await session.cancel("enough")
        scene.network.forth.refused.clear()
        await scene.start("near")
        await scene.until("near", "turn.cancelled")
        await scene.network.forth.refused.wait()
        await scene.start("far")

        await scene.until("far", "session.ended")
        assert paid(tmp_path) == []
