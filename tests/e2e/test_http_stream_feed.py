from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from stream_scene import ENOUGH, SPEECH, events_of, serving, talker

from outlast import Outlast, Session
from outlast.core.event import BEGINNING, Cursor
from outlast.errors import StoreUnavailable
from outlast.server.stream.encoding import EncodedEvent, Visibility
from outlast.server.stream.feed import SessionFeeds
from outlast.server.stream.reader import FeedReader, StreamCut
from outlast.server.stream.window import EventWindow, up_to_end
from outlast.store import LogPage, SessionInfo, Store
from outlast.testing.wrapped_store import WrappedStore

LONG = 5.0

ALL = Visibility(internals=True, sign_ins=True)


class CountingStore(WrappedStore):
    """Counts what is asked of it, and can be away, or as it once was."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: Counter[str] = Counter()
        self.is_away = False
        self.older: SessionInfo | None = None
        self.was_refused = asyncio.Event()

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        self._ask("read")
        return await super().read(session_id, after, limit, large=large, lane=lane)

    async def session(self, session_id: str) -> SessionInfo | None:
        self._ask("session")
        return self.older or await super().session(session_id)

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if self.is_away:
            self.was_refused.set()
            raise StoreUnavailable("the database is away")


class DeafStore(WrappedStore):
    """Hears of nothing."""

    def listen(
        self, heard: Callable[[str, bool], None], session_id: str = ""
    ) -> Callable[[], None]:
        return lambda: None


async def take(reader: FeedReader, end: int) -> list[int]:
    """Read up to an offset at least."""
    seen: list[int] = []
    while reader.cursor.offset < end:
        batch = await reader.next(LONG)
        assert batch is not None
        seen += [line.cursor.offset for line in batch.lines]
    return seen


async def turn(session: Session[str], message: str) -> int:
    """Have one more turn, and return the log's end after it."""
    await (await session.send(message)).result()
    await session.wait()
    return (await session.info()).end


async def test_a_thousand_readers_ask_no_more_of_the_database_than_one() -> None:
    async with Outlast([talker], store="memory://") as app, AsyncExitStack() as stack:
        store = CountingStore(app.store)
        feeds = SessionFeeds(store, app.clock)
        session = await app.start(talker, "look")
        await session.wait()
        info = await session.info()
        readers = []
        for place in range(1000):
            feed = await stack.enter_async_context(feeds.open(info))
            readers.append(FeedReader(feed, info, after=Cursor(place % info.end), seen=ALL))
        before = [asyncio.create_task(take(reader, info.end)) for reader in readers]
        await asyncio.gather(*before)
        assert store.asked.total() <= 4  # to begin with

        store.asked.clear()
        reading = [asyncio.create_task(take(reader, info.end + 1)) for reader in readers]
        await asyncio.sleep(0)
        end = await turn(session, "talk")
        await asyncio.gather(*reading)
        rest = await asyncio.gather(*(take(reader, end) for reader in readers))

        assert {
            tuple(first.result() + more) for first, more in zip(reading, rest, strict=True)
        } == {tuple(range(info.end + 1, end + 1))}
        assert store.asked.total() <= 2 * (end - info.end)
        feeds.close()


async def test_a_reader_who_is_slow_gets_all_and_holds_up_nobody() -> None:
    async with Outlast([talker], store="memory://") as app, AsyncExitStack() as stack:
        feeds = SessionFeeds(app.store, app.clock)
        session = await app.start(talker, "look")
        await session.wait()
        info = await session.info()
        feed = await stack.enter_async_context(feeds.open(info))
        slow, quick = (FeedReader(feed, info, after=BEGINNING, seen=ALL) for _ in range(2))
        first = await slow.next(LONG)
        assert first is not None

        seen: list[int] = []
        end = 0
        while feed.window.start <= slow.cursor.offset:  # it is left behind
            end = await turn(session, "long " * 10_000)
            seen += await take(quick, end)
        given = [line.cursor.offset for line in first.lines] + await take(slow, end)

        assert given == seen == list(range(1, end + 1))
        feeds.close()


async def test_a_reader_that_takes_nothing_is_given_one_piece_and_no_more() -> None:
    async with serving() as scene:
        session = await scene.start()
        for _ in range(4):
            await turn(session, "long " * 20_000)
        sent: list[bytes] = []
        is_full, takes = asyncio.Event(), asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message.get("body", b""))
            if len(sent) == 2:
                is_full.set()
                await takes.wait()

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError("nobody leaves")

        api: Any = scene.server.config.app
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/v1/sessions/{session.id}/stream",
            "query_string": b"follow=until_rest",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        answering = asyncio.create_task(api(scope, receive, send))
        await is_full.wait()
        await turn(session, "look")  # others go on meanwhile

        assert len(sent) == 2
        takes.set()
        await answering
        whole = b"".join(sent)
        assert len(sent[1]) < len(whole) / 3
        given = [json.loads(line)["offset"] for line in whole.splitlines()]
        assert given == await scene.log(session)


async def test_pieces_of_an_answer_are_heard_of_and_so_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.server.stream.feed.POLL", 60.0)  # nothing is found by chance
    monkeypatch.setattr("outlast.server.stream.feed.AT_REST_POLL", 60.0)
    enough = tmp_path / "enough"
    monkeypatch.setenv(ENOUGH, str(enough))
    async with serving() as scene:
        session = await scene.app.start(talker, SPEECH)
        async with scene.stream(session, follow="until_rest") as lines:
            types: list[str] = []
            async for event in events_of(lines):
                types.append(event["type"])
                if types.count("message.delta") == 3:
                    enough.touch()

        assert types[-1] == "session.waiting"
        async with scene.stream(session) as lines:
            events = events_of(lines)
            await anext(events)
            await session.end()
            assert "session.ended" in [event["type"] async for event in events]


async def test_without_any_hint_a_feed_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.server.stream.feed.AT_REST_POLL", 0.01)
    async with Outlast([talker], store="memory://") as app, AsyncExitStack() as stack:
        feeds = SessionFeeds(DeafStore(app.store), app.clock)
        session = await app.start(talker, "look")
        await session.wait()
        info = await session.info()
        feed = await stack.enter_async_context(feeds.open(info))
        reader = FeedReader(feed, info, after=BEGINNING, seen=ALL)
        await take(reader, info.end)

        end = await turn(session, "look")

        assert await take(reader, end)
        feeds.close()


async def test_a_page_ends_where_the_log_ended_when_it_was_asked_for() -> None:
    async with Outlast([talker], store="memory://") as app:
        session = await app.start(talker, "look")
        await session.wait()
        info = await session.info()
        await turn(session, "look")

        batches = [batch async for batch in up_to_end(app.store, info, BEGINNING, ALL)]

        offsets = [line.cursor.offset for batch in batches for line in batch.lines]
        assert offsets == list(range(1, info.end + 1))
        assert batches[-1].cursor.offset == info.end


async def test_a_feed_waits_for_a_database_that_is_away() -> None:
    async with Outlast([talker], store="memory://") as app, AsyncExitStack() as stack:
        store = CountingStore(app.store)
        feeds = SessionFeeds(store, app.clock)
        session = await app.start(talker, "look")
        await session.wait()
        info = await session.info()
        feed = await stack.enter_async_context(feeds.open(info))
        reader = FeedReader(feed, info, after=BEGINNING, seen=ALL)
        await take(reader, info.end)

        store.is_away = True
        await turn(session, "look")
        await store.was_refused.wait()
        store.is_away = False
        end = await turn(session, "look")

        assert await take(reader, end)
        feeds.close()


async def test_readers_of_a_history_that_is_no_more_are_sent_away() -> None:
    async with Outlast([talker], store="memory://") as app, AsyncExitStack() as stack:
        store = CountingStore(app.store)
        feeds = SessionFeeds(store, app.clock)
        session = await app.start(talker, "look")
        await session.wait()
        info = await session.info()
        feed = await stack.enter_async_context(feeds.open(info))
        reader = FeedReader(feed, info, after=BEGINNING, seen=ALL)
        await take(reader, info.end)

        store.older = replace(info, end=info.end - 1)  # restored from a backup
        feed.look_soon()

        with pytest.raises(StreamCut):
            await reader.next(LONG)


async def test_readers_of_feeds_that_are_closed_are_sent_away() -> None:
    async with Outlast([talker], store="memory://") as app:
        feeds = SessionFeeds(app.store, app.clock)
        session = await app.start(talker, "look")
        await session.wait()
        info = await session.info()
        async with feeds.open(info) as feed:
            reader = FeedReader(feed, info, after=Cursor(info.end), seen=ALL)
            waiting = asyncio.create_task(reader.next(LONG))
            await asyncio.sleep(0)

            feeds.close()

            with pytest.raises(StreamCut):
                await waiting
        async with feeds.open(info) as feed:
            with pytest.raises(StreamCut):
                await FeedReader(feed, info, after=BEGINNING, seen=ALL).next(LONG)


@given(
    sizes=st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=8),
    most=st.tuples(st.integers(1, 10), st.integers(1, 100)),
)
def test_a_window_has_the_newest_lines_that_fit(
    sizes: list[list[int]], most: tuple[int, int]
) -> None:
    window = EventWindow(7, most_lines=most[0], most_bytes=most[1])
    lines: list[EncodedEvent] = []
    for page in sizes:
        added = [
            EncodedEvent(Cursor(8 + len(lines) + n), False, b"x" * size)
            for n, size in enumerate(page)
        ]
        window.add(added)
        lines += added

        kept = lines[window.start - 7 :]
        assert window.end == 7 + len(lines)
        assert list(window.after(Cursor(window.start)).lines) == kept
        assert len(kept) <= most[0]
        assert len(kept) <= 1 or sum(len(line.data) for line in kept) <= most[1]
        for cursor in range(window.start, window.end + 1):
            assert [line.cursor.offset for line in window.after(Cursor(cursor)).lines] == list(
                range(cursor + 1, window.end + 1)
            )
