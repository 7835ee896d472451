"""A worker that takes up a lane reads what the model sees of it, and nothing of other lanes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scene import FAST, Watched

from outlast import Agent, Outlast, Session
from outlast.core.message import UserMessage, text_of
from outlast.engine import lane_folds
from outlast.store import LogPage, Store
from outlast.stores.sqlite import SqliteStore
from outlast.testing.scripted import ScriptedModel, say
from outlast.testing.wrapped_store import WrappedStore


class NotingReads(WrappedStore):
    """Notes of which lane each entry is that is read page by page."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.read_lanes: list[str] = []

    async def read(self, *args: Any, **named: Any) -> LogPage:
        page = await super().read(*args, **named)
        self.read_lanes += [entry.lane for entry in page.entries]
        return page


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    monkeypatch.setattr(lane_folds, "SNAPSHOT_OVER", 300)  # else a lane is folded from its log
    store = SqliteStore(tmp_path / "outlast.db")
    await store.migrate()
    yield store
    await store.close()


async def talk(session: Session[Any], lanes: list[str], first: int = 0) -> None:
    for number, lane in enumerate(lanes, first):
        await (await session.send(f"{lane} {number}", lane=lane)).result()


async def test_of_several_lanes_only_the_one_that_goes_on_is_read(store: SqliteStore) -> None:
    parrot = Agent("parrot", ScriptedModel(lambda _: say("I see. " * 20)))
    async with Outlast([parrot], store=store, worker=FAST) as app:
        session = await app.start(parrot, "hello")
        await session.wait()
        await talk(session, ["a", "b", "a", "b", "main"])
        session_id = session.id

    noting, model = NotingReads(store), Watched(lambda _: say("Again."))
    async with Outlast([Agent("parrot", model)], store=noting, worker=FAST) as app:
        session = await app.session(session_id)
        noting.read_lanes.clear()
        await talk(session, ["a"], first=5)
        lanes = {*noting.read_lanes}
        await talk(session, ["a", "main", "a"], first=6)

    assert lanes == {"a"}
    said = [
        [text_of(message.content) for message in seen if isinstance(message, UserMessage)]
        for seen in model.seen
    ]
    assert said == [
        ["a 0", "a 2", "a 5"],
        ["a 0", "a 2", "a 5", "a 6"],
        ["hello", "main 4", "main 7"],
        ["a 0", "a 2", "a 5", "a 6", "a 8"],
    ]
