"""The demo's application: one agent, its store, and the ledgers that watch it from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from outlast.agents.agent import Agent
from outlast.agents.model.client import ModelRequest
from outlast.app import Outlast
from outlast.cli.demo.agent import scripted_model
from outlast.cli.demo.effect import DemoEffect, EffectFile, ModelAsked
from outlast.cli.demo.world import TOOLS, OutsideWorld
from outlast.clock import Clock
from outlast.engine.settings import WorkerSettings

AGENT = "claims"


class DemoFiles:
    """Where a telling of the story keeps its things."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.store = self.directory / "outlast.db"
        self.worker_log = self.directory / "workers.log"
        self.asked = EffectFile(self.directory / "model.jsonl", ModelAsked)
        self.effects = EffectFile(self.directory / "world.jsonl", DemoEffect)

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.store}"


def make_app(directory: Path, worker: str = "") -> Outlast:
    """Return the story's application: one that works under a name, or one that only watches."""
    files, clock = DemoFiles(directory), Clock()

    def pay(request: ModelRequest) -> None:
        files.asked.write(ModelAsked(clock.now(), worker, request.call_id, request.attempt))

    @asynccontextmanager
    async def world() -> AsyncIterator[OutsideWorld]:
        yield OutsideWorld(files.effects, worker, clock)

    agent: Agent[OutsideWorld, str] = Agent(
        AGENT,
        scripted_model(pay),
        instructions="You settle the claims of a small shop.",
        tools=TOOLS,
    )
    settings = WorkerSettings(name=worker) if worker else None
    return Outlast([agent], store=files.store_url, worker=settings, deps=world, clock=clock)
