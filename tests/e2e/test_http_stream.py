from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from stream_scene import end_cursor, events_of, sent_events_of, serving, talker

from outlast.core.instant import rfc3339
from outlast.server import ServerSettings
from outlast.server.key import revoke_key

QUICK = ServerSettings(heartbeat=0.05)


async def test_a_page_has_the_events_that_the_embedded_reader_gives() -> None:
    async with serving() as scene:
        session = await scene.start()

        seen = await scene.page(session)

        expected = [event async for event in session.events(follow=False)]
        assert [event["offset"] for event in seen] == [event.offset for event in expected]
        assert [event["type"] for event in seen] == [event.type for event in expected]
        assert [event["data"] for event in seen] == [
            json.loads(json.dumps(dict(event.data), default=rfc3339)) for event in expected
        ]
        [asked] = [event for event in seen if event["type"] == "tool.requested"]
        assert asked["data"]["args"] == {"item": "harbour"}
        assert (asked["turn"], asked["step"], asked["lane"]) == ("t1", 1, "main")
        assert asked["at"].endswith("Z")
        assert "delivery_id" not in asked


async def test_from_every_cursor_exactly_the_rest_is_given() -> None:
    async with serving() as scene:
        session = await scene.start()
        offsets = await scene.log(session)

        for cursor in range(offsets[-1] + 1):
            seen = await scene.page(session, after=cursor)

            assert [event["offset"] for event in seen] == [o for o in offsets if o > cursor]


async def test_what_is_committed_is_streamed_at_once_and_the_stream_ends_with_the_session() -> None:
    async with serving() as scene:
        session = await scene.start()
        async with scene.stream(session, after=0) as lines:
            events = events_of(lines)
            seen = [await anext(events) for _ in await scene.log(session)]
            receipt = await session.send("talk")
            seen += [await anext(events)]
            assert seen[-1]["delivery_id"] == receipt.delivery_id
            await receipt.result()
            await session.end("enough")
            seen += [event async for event in events]

        assert seen == await scene.page(session)
        assert "session.ended" in {event["type"] for event in seen}


async def test_a_stream_until_rest_ends_when_nothing_is_left_to_do() -> None:
    async with serving() as scene:
        session = await scene.app.start(talker, "talk")

        async with scene.stream(session, follow="until_rest") as lines:
            seen = [event async for event in events_of(lines)]

        assert [event["offset"] for event in seen] == await scene.log(session)
        assert seen[-1]["type"] == "session.waiting"


async def test_what_was_sent_before_a_stream_until_rest_was_opened_is_in_it(
    tmp_path: Path,
) -> None:
    async with serving(store=f"sqlite:///{tmp_path / 'run.db'}") as scene:
        session = await scene.start()
        async with scene.stream(session, follow="until_rest") as lines:
            await anext(aiter(lines))  # a feed is there now, which has seen the session at rest
            for _ in range(5):
                cursor = (await scene.log(session))[-1]
                await session.send("look")

                async with scene.stream(session, follow="until_rest", after=cursor) as more:
                    seen = [event["type"] async for event in events_of(more)]

                assert seen[0] == "delivery.queued"
                assert seen[-1] == "session.waiting"


async def test_internal_events_are_gaps_to_whoever_has_no_scope_for_them() -> None:
    async with serving() as scene:
        session = await scene.start()
        _, reader = await scene.key("read")
        _, insider = await scene.key("read", "internals")
        path, query = f"/sessions/{session.id}/stream", {"follow": "false", "internals": "true"}

        refused = await scene.http.get(path, params=query, headers=reader)
        whole = await scene.http.get(path, params=query, headers=insider)
        without = await scene.http.get(path, params={"follow": "false"}, headers=reader)

        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "MISSING_SCOPE")
        end = (await session.info()).end
        everything = [json.loads(line) for line in whole.text.splitlines()]
        assert [event["offset"] for event in everything] == list(range(1, end + 1))
        seen = [json.loads(line) for line in without.text.splitlines()]
        assert seen == [event for event in everything if event["type"] != "model.started"]
        assert len(seen) < len(everything)


async def test_a_page_says_where_it_ends_behind_what_is_hidden_too() -> None:
    async with serving() as scene:
        session = await scene.start()
        response = await scene.http.get(
            f"/sessions/{session.id}/stream", params={"follow": "false"}
        )

        assert response.headers["outlast-cursor"] == await end_cursor(session)
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.headers["cache-control"] == "no-cache, no-store"


@pytest.mark.parametrize(
    "path", ["/sessions/{}/stream?after={}", "/streams/sessions/{}?offset={:016}"]
)
async def test_a_cursor_beyond_the_end_is_gone(path: str) -> None:
    async with serving() as scene:
        session = await scene.start()
        end = (await session.info()).end

        beyond = await scene.http.get(path.format(session.id, end + 1))

        assert (beyond.status_code, beyond.json()["error"]["code"]) == (410, "CURSOR_AHEAD")


async def test_server_sent_events_go_on_after_the_last_id() -> None:
    async with serving() as scene:
        session = await scene.start()
        offsets = await scene.log(session)
        headers = {"Last-Event-ID": str(offsets[2])}

        async with scene.stream(session, sse=True, follow="until_rest") as lines:
            assert [await anext(lines), await anext(lines)] == ["retry: 1000", ""]
            seen = [(number, event) async for number, event in sent_events_of(lines)]
        async with scene.stream(
            session, sse=True, headers=headers, after=0, follow="until_rest"
        ) as lines:
            rest = [(number, event) async for number, event in sent_events_of(lines)]

        assert [number for number, _ in seen] == [event["cursor"] for _, event in seen]
        assert [event["offset"] for _, event in seen] == offsets
        assert [event for _, event in seen] == await scene.page(session)
        assert rest == seen[3:]


async def test_a_browser_that_has_all_of_a_session_that_is_over_is_kept_from_coming_again() -> None:
    async with serving() as scene:
        session = await scene.start()
        await session.end()
        async with scene.stream(session, sse=True) as lines:
            seen = [number async for number, _ in sent_events_of(lines)]
        headers = {"Accept": "text/event-stream", "Last-Event-ID": seen[-1]}

        again = await scene.http.get(f"/sessions/{session.id}/stream", headers=headers)

        assert (again.status_code, again.content) == (204, b"")


async def test_an_id_that_is_no_cursor_is_refused() -> None:
    async with serving() as scene:
        session = await scene.start()
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1e3"}

        refused = await scene.http.get(f"/sessions/{session.id}/stream", headers=headers)

        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_CURSOR")


@pytest.mark.parametrize(("sse", "sign"), [(False, ""), (True, ":")])
async def test_a_stream_that_has_nothing_to_say_shows_that_it_lives(sse: bool, sign: str) -> None:
    async with serving(QUICK) as scene:
        session = await scene.start()
        end = (await session.info()).end

        async with scene.stream(session, sse=sse, after=end) as lines:
            opening = [await anext(lines) for _ in range(2)] if sse else []
            said = [await anext(lines) for _ in range(4)]

        assert opening == (["retry: 1000", ""] if sse else [])
        assert said == ([sign, ""] * 2 if sse else [sign] * 4)


async def test_a_session_that_is_erased_takes_its_streams_with_it() -> None:
    async with serving() as scene:
        session = await scene.start()
        async with scene.stream(session) as lines:
            events = events_of(lines)
            await anext(events)

            await scene.app.erase(session.id)

            async with asyncio.timeout(60):
                assert [event async for event in events][-1]["type"] == "session.waiting"
        gone = await scene.http.get(f"/sessions/{session.id}/stream")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "UNKNOWN_SESSION")


async def test_a_stream_whose_key_is_revoked_is_cut_at_the_next_heartbeat() -> None:
    async with serving(QUICK) as scene:
        session = await scene.start()
        key_id, header = await scene.key("read")
        async with scene.stream(session, headers=header) as lines:
            events = events_of(lines)
            await anext(events)

            await revoke_key(scene.app.store, key_id, scene.app.clock.now())

            with pytest.raises(httpx.RemoteProtocolError):
                async with asyncio.timeout(60):
                    [event async for event in events]


async def test_streams_are_cut_when_the_server_is_about_to_stop() -> None:
    async with serving() as scene:
        session = await scene.start()
        async with scene.stream(session) as lines:
            events = events_of(lines)
            await anext(events)

            scene.backend.feeds.close()

            with pytest.raises(httpx.RemoteProtocolError):  # it is seen not to be the end
                async with asyncio.timeout(60):
                    [event async for event in events]
        again = await scene.http.get(f"/sessions/{session.id}/stream")
        assert (again.status_code, again.json()["error"]["code"]) == (503, "STREAM_CUT")
        assert again.headers["connection"] == "close"


async def test_a_reader_who_leaves_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.server.stream.feed.LINGER", 0.0)
    async with serving() as scene:
        session = await scene.start()
        _, header = await scene.key("read")
        async with scene.stream(session, headers=header) as lines:
            await anext(lines)
            assert (len(scene.backend.feeds), scene.backend.streams.total) == (1, 1)
            [feed] = [t for t in asyncio.all_tasks() if t.get_name() == f"feed of {session.id}"]

        async with asyncio.timeout(60):
            await asyncio.wait([feed])
        assert (len(scene.backend.feeds), scene.backend.streams.total) == (0, 0)


async def test_more_streams_than_a_key_may_have_are_refused() -> None:
    async with serving(ServerSettings(max_streams_per_key=1)) as scene:
        session = await scene.start()
        _, header = await scene.key("read")
        async with scene.stream(session, headers=header) as lines:
            await anext(lines)

            second = await scene.http.get(f"/sessions/{session.id}/stream", headers=header)

        assert (second.status_code, second.json()["error"]["code"]) == (429, "TOO_MANY_STREAMS")
