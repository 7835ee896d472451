"""A conversation is read from every place in it: what is left of it, and nothing from before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from scene import FAST

from outlast import Agent, Outlast, Session, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import Message, ModelAnswer, UserMessage, text_of
from outlast.core.record import Entry
from outlast.core.view import View
from outlast.errors import InvalidCursor
from outlast.log.history import START, HistoryPlace, HistoryReader, Rest, place_of
from outlast.store import LogPage, Store
from outlast.testing.scripted import ScriptedError, ScriptedReply, call, say
from outlast.testing.scripted import ScriptedModel as Scripted
from outlast.testing.wrapped_store import WrappedLog, WrappedStore

SAID = ("tools", "cut", "plain", "fail", "after", "cut")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    return str(request.getfixturevalue("postgres_url"))


@tool
async def look(number: int) -> str:
    """Look something up."""
    return f"found {number}"


def reply(request: ModelRequest) -> ScriptedReply:
    last = request.view.messages[-1]
    asked = text_of(last.content) if isinstance(last, UserMessage) else ""
    if asked == "tools":
        return call("look", number=1)
    if asked == "cut":
        return ScriptedReply(text="abcdef", chunks=6, cut_after=3)
    if asked == "fail":
        raise ScriptedError("recoverable", "not this")
    said = request.view.messages[-2] if len(request.view.messages) > 1 else None
    if isinstance(said, ModelAnswer) and said.aborted:
        return say("def")
    return say(f"you said {asked}")


@pytest_asyncio.fixture
async def told(url: str) -> AsyncIterator[tuple[Store, Session[Any]]]:
    """A session whose messages all arrive before the first of them is taken up."""
    agent = Agent("a", Scripted(reply), tools=[look])
    async with Outlast([agent], store=url, worker=None) as quiet:
        session = await quiet.start("a", SAID[0])
        for text in SAID[1:]:
            await session.send(text)
        await session.send("elsewhere", lane="side")
    async with Outlast([agent], store=url, worker=FAST) as app:
        session = await app.session(session.id)
        async with asyncio.timeout(60):
            await session.wait()
        yield app.store, session


async def entries_of(store: Store, session: Session[Any]) -> list[Entry]:
    return [*(await store.log.read(session.id, 0, 100_000)).entries]


async def read(
    store: Store, session: Session[Any], place: HistoryPlace = START
) -> list[tuple[HistoryPlace, Message]]:
    return [each async for each in HistoryReader(store, session.id, "main", place).read()]


async def test_from_every_place_exactly_the_rest_is_read(told: tuple[Store, Session[Any]]) -> None:
    store, session = told
    view = View()
    view.see_all(await entries_of(store, session), "main")

    whole = await read(store, session)

    assert [message for _, message in whole] == view.messages
    texts = [text_of(m.parts) for m in view.messages if isinstance(m, ModelAnswer)]
    assert texts.count("abcdef") == 2
    for number, (place, _) in enumerate(whole, 1):
        assert await read(store, session, place_of(str(place))) == whole[number:]


class Watching(WrappedLog):
    """Notes what is read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.read_entries: list[int] = []

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        page = await super().read(session_id, after, limit, large=large, lane=lane)
        self.read_entries += [entry.offset for entry in page.entries]
        return page


class WatchedStore(WrappedStore):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._watching = Watching(store)

    @property
    def log(self) -> Watching:
        return self._watching


async def test_a_page_costs_what_is_on_it_and_not_what_was_said_before(
    told: tuple[Store, Session[Any]],
) -> None:
    store, session = told
    whole = await read(store, session)
    watched = WatchedStore(store)

    last = await read(watched, session, whole[-2][0])

    queued = {e.offset for e in await entries_of(store, session) if e.offset <= len(SAID) + 2}
    before = [offset for offset in watched.log.read_entries if offset < whole[-2][0].after]
    assert len(last) == 1
    assert len(before) <= 1  # what the last turn takes up, which arrived at the beginning
    assert set(before) <= queued


async def test_a_place_that_was_never_given_is_refused(told: tuple[Store, Session[Any]]) -> None:
    store, session = told
    entries = await entries_of(store, session)
    given = {e.offset for e in entries if isinstance(e.record, Rest) and e.lane == "main"}
    for offset in {*range(1, len(entries) + 3), 10**14} - given:
        with pytest.raises(InvalidCursor) as caught:
            await read(store, session, HistoryPlace(offset, 1))
        assert caught.value.details == {"cursor": "cursor"}
    for offset in given:
        await read(store, session, HistoryPlace(offset, 10**8))

    for text in ("", "1", "1.", ".1", "-1.0", "1.0\n", "1.-1", "9" * 20 + ".0", "\u0661.\u0660"):
        with pytest.raises(InvalidCursor):
            place_of(text)
