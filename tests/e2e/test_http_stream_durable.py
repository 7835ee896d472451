from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from stream_scene import Scene, end_offset, serving

from outlast import Key, Session
from outlast.clock import Clock
from outlast.server import ServerSettings
from outlast.server.stream.protocol import next_cursor

QUICK = ServerSettings(heartbeat=0.05, long_poll=0.05)


async def read(scene: Scene, session: Session[Any], **query: Any) -> httpx.Response:
    return await scene.http.get(f"/streams/sessions/{session.id}", params=query)


def marks(response: httpx.Response) -> tuple[bool, bool]:
    """Return whether a response says that it is up to date, and that the stream is closed."""
    headers = response.headers
    return headers.get("stream-up-to-date") == "true", headers.get("stream-closed") == "true"


async def sent(
    scene: Scene, session: Session[Any], *, until: str = "upToDate", **query: Any
) -> list[tuple[str, Any]]:
    """Return the events of a stream up to the first that says it is up to date, or its end."""
    query = {"live": "sse", **query}
    seen: list[tuple[str, Any]] = []
    async with scene.http.stream(
        "GET", f"/streams/sessions/{session.id}", params=query
    ) as response:
        assert response.headers["content-type"] == "text/event-stream"
        kind = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data:"):
                seen.append((kind, json.loads(line[5:])))
                if kind == "control" and seen[-1][1].get(until):
                    break
    return seen


async def test_pages_are_arrays_that_lead_to_the_end_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outlast.server.stream.durable.CHUNK", 1)
    monkeypatch.setattr("outlast.server.stream.durable.PAGE", 3)
    async with serving() as scene:
        session = await scene.start()
        seen, offset, offsets = [], "-1", []
        response = await read(scene, session)
        assert response.json() == (await read(scene, session, offset="-1")).json()
        while not marks(response)[0]:
            response = await read(scene, session, offset=offset)
            seen += response.json()
            offset = response.headers["stream-next-offset"]
            offsets.append(offset)

        assert seen == await scene.page(session)
        assert len(offsets) > 2
        assert offsets == sorted(offsets)
        assert response.headers["content-type"] == "application/json"
        assert marks(response) == (True, False)
        at_tail = await read(scene, session, offset=offset)
        assert (at_tail.json(), marks(at_tail)) == ([], (True, False))
        assert at_tail.headers["stream-next-offset"] == offset


async def test_a_page_that_a_client_has_is_not_sent_again() -> None:
    async with serving() as scene:
        session = await scene.start()
        path = f"/streams/sessions/{session.id}"
        first = await scene.http.get(path)
        condition = {"If-None-Match": f'"other", {first.headers["etag"]}'}

        again = await scene.http.get(path, headers=condition)
        inside = await scene.http.get(path, params={"internals": "true"}, headers=condition)
        await session.send("look")
        grown = await scene.http.get(path, headers=condition)

        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["stream-next-offset"] == first.headers["stream-next-offset"]
        assert first.headers["cache-control"] == "private, no-cache"
        assert inside.status_code == grown.status_code == 200
        assert len({first.headers["etag"], inside.headers["etag"], grown.headers["etag"]}) == 3


async def test_now_is_the_end_of_the_stream() -> None:
    async with serving(QUICK) as scene:
        session = await scene.start()
        end = await end_offset(session)

        now = await read(scene, session, offset="now")
        polled = await read(scene, session, offset="now", live="long-poll")
        [control] = await sent(scene, session, offset="now")

        assert (now.json(), marks(now)) == ([], (True, False))
        assert now.headers["stream-next-offset"] == end
        assert now.headers["cache-control"] == "no-store"
        assert "etag" not in now.headers
        assert (polled.status_code, polled.headers["stream-next-offset"]) == (204, end)
        assert control[1]["streamNextOffset"] == end


NO_OFFSETS = (
    "offset=",
    "offset=1,2",
    "offset=1%202",
    "offset=17",
    "offset=-2",
    "offset=%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1",
    "offset=-1&offset=now",
    "offset=../../etc",
    "live=long-poll",
    "live=sse",
    "offset=-1&live=websocket",
)


async def test_what_is_no_offset_is_refused() -> None:
    async with serving() as scene:
        session = await scene.start()

        for query in NO_OFFSETS:
            refused = await scene.http.get(f"/streams/sessions/{session.id}?{query}")

            assert refused.status_code == 400, query
            assert refused.json()["error"]["code"] == "INVALID_OFFSET"


async def test_a_poll_waits_for_what_comes_and_no_longer_than_it_may() -> None:
    async with serving() as scene:
        session = await scene.start()
        end = (await session.info()).end
        polling = asyncio.create_task(read(scene, session, offset=f"{end:016d}", live="long-poll"))
        while not len(scene.backend.feeds):  # noqa: ASYNC110 - a request has no event
            await asyncio.sleep(0)
        await session.send("look")

        response = await polling

        assert response.status_code == 200
        assert response.json()[0]["type"] == "delivery.queued"
        assert response.json()[0]["offset"] == end + 1
        cursor = int(response.headers["stream-cursor"])
        offset = response.headers["stream-next-offset"]
        after = await read(scene, session, offset=offset, live="long-poll", cursor=cursor)
        assert after.json()[0]["offset"] > response.json()[-1]["offset"]
        assert int(after.headers["stream-cursor"]) > cursor


async def test_a_poll_in_vain_is_answered_with_nothing() -> None:
    async with serving(QUICK) as scene:
        session = await scene.start()
        end = await end_offset(session)

        response = await read(scene, session, offset=end, live="long-poll")

        assert (response.status_code, response.content) == (204, b"")
        assert response.headers["stream-next-offset"] == end
        assert marks(response) == (True, False)
        assert int(response.headers["stream-cursor"]) > 0


async def test_a_server_that_is_about_to_stop_sends_its_readers_away() -> None:
    async with serving() as scene:
        session = await scene.start()
        polling = asyncio.create_task(read(scene, session, offset="now", live="long-poll"))
        listening = asyncio.create_task(sent(scene, session, offset="now", until="end"))
        while scene.backend.feeds.readers < 2:  # noqa: ASYNC110 - a request has no event
            await asyncio.sleep(0)

        scene.backend.feeds.close()

        cut = await polling
        assert (cut.status_code, cut.headers["connection"]) == (503, "close")
        [(kind, control)] = await listening  # ends in good order, and does not say it is closed
        assert (kind, "streamClosed" in control) == ("control", False)
        again = await read(scene, session, offset="-1", live="sse")
        assert (again.status_code, again.json()["error"]["code"]) == (503, "STREAM_CUT")


async def test_a_session_that_is_over_is_a_stream_that_is_closed() -> None:
    async with serving() as scene:
        session = await scene.start()
        end = await end_offset(session)
        polling = asyncio.create_task(read(scene, session, offset=end, live="long-poll"))
        await session.end()
        response = await polling
        while not marks(response)[1]:
            offset = response.headers["stream-next-offset"]
            response = await read(scene, session, offset=offset, live="long-poll")
        offset = response.headers["stream-next-offset"]

        whole, tail, polled = (
            await read(scene, session),
            await read(scene, session, offset=offset),
            await read(scene, session, offset=offset, live="long-poll"),
        )
        head = await scene.http.head(f"/streams/sessions/{session.id}")
        controls = [
            what for kind, what in await sent(scene, session, offset="-1") if kind == "control"
        ]

        assert [marks(each) for each in (whole, tail, polled)] == [(True, True)] * 3
        assert (tail.json(), polled.status_code) == ([], 204)
        assert whole.json() == await scene.page(session)
        assert (head.headers["stream-closed"], head.headers["stream-next-offset"]) == (
            "true",
            offset,
        )
        assert controls[-1] == {"streamNextOffset": offset, "streamClosed": True}


async def test_who_listens_when_the_session_ends_is_told_that_the_stream_is_closed(
    tmp_path: Path,
) -> None:
    async with serving(store=f"sqlite:///{tmp_path / 'run.db'}") as scene:
        session = await scene.start()
        listening = asyncio.create_task(sent(scene, session, offset="now", until="end"))
        while not scene.backend.feeds.readers:  # noqa: ASYNC110 - a request has no event
            await asyncio.sleep(0)

        await session.end()

        seen = await listening
        assert "session.ended" in {e["type"] for kind, data in seen if kind == "data" for e in data}
        closings = [what for kind, what in seen if kind == "control" and "streamClosed" in what]
        assert closings == [seen[-1][1]]
        assert closings[0]["streamNextOffset"] == await end_offset(session)


async def test_the_head_says_where_the_stream_ends_and_keeps_nobody() -> None:
    async with serving() as scene:
        session = await scene.start()

        head = await scene.http.head(f"/streams/sessions/{session.id}")

        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == "application/json"
        assert head.headers["stream-next-offset"] == await end_offset(session)
        assert head.headers["cache-control"] == "no-store"
        assert "stream-closed" not in head.headers
        nobody = await scene.http.head("/streams/sessions/ses_unknown")
        assert nobody.status_code == 404


async def test_every_event_that_carries_data_is_followed_by_where_it_ends() -> None:
    async with serving() as scene:
        session = await scene.start()

        seen = await sent(scene, session, offset="-1", cursor="999999999999")

        assert [kind for kind, _ in seen] == ["data", "control"] * (len(seen) // 2)
        assert [event for kind, data in seen if kind == "data" for event in data] == (
            await scene.page(session)
        )
        control = seen[-1][1]
        assert control["upToDate"] is True
        assert int(control["streamCursor"]) > 999999999999
        assert await sent(scene, session, offset=control["streamNextOffset"]) != []


async def test_the_cursor_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    present = next_cursor(clock, None)

    assert next_cursor(clock, 5) == present
    assert all(next_cursor(clock, given) > given for given in range(present, present + 50))


async def test_an_agent_and_a_key_lead_to_the_same_stream() -> None:
    async with serving() as scene:
        receipt = await scene.app.send(Key("talker", "customer 7"), "look")
        await receipt.session.wait()

        page = await scene.http.get("/agents/talker/customer 7")

        assert page.json() == await scene.page(receipt.session)
        assert marks(page) == (True, False)
