"""A backup that is put back: a reader whose events are gone is told for ever, however it reads."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from http_scene import on_a_socket
from scene import FAST

from outlast import Agent, Outlast
from outlast.client import Client
from outlast.client.session import Bookmark
from outlast.errors import CursorAhead, HistoryGone
from outlast.testing.scripted import ScriptedModel, say


@asynccontextmanager
async def app_on(path: Path) -> AsyncIterator[Outlast]:
    agent = Agent("parrot", ScriptedModel(lambda _: say("a long answer", chunks=3)))
    async with Outlast([agent], store=f"sqlite:///{path}", worker=FAST) as app:
        yield app


def back_up(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def put_back(copy: Path, path: Path) -> None:
    """Restore as the guide says, while no process works on the file."""
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    shutil.copyfile(copy, path)


class LostPast:
    """A session of which a reader has read more than the backup has."""

    session_id: str
    kept: str
    """A cursor that is in the backup as well."""
    lost: str
    bookmark: Bookmark
    etag: str
    page: str


async def read_and_restore(path: Path) -> LostPast:
    past, copy = LostPast(), path.with_name("backup.db")
    async with app_on(path) as app:
        session = await app.start("parrot", "one")
        past.session_id = session.id
        await session.wait()
        past.kept = [event.cursor async for event in session.events()][-1]
        back_up(path, copy)
        await (await session.send("two")).result()
        past.lost = [event.cursor async for event in session.events()][-1]
        async with on_a_socket(app) as (host, port), Client(f"http://{host}:{port}") as client:
            remote = client.session(session.id)
            assert [event async for event in remote.events(follow=False)]
            past.bookmark = remote.bookmark
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}/v1") as http:
                page = await http.get(f"/streams/sessions/{session.id}", params={"offset": "-1"})
                past.etag, past.page = page.headers["etag"], page.text
    put_back(copy, path)
    return past


async def grow_past(app: Outlast, past: LostPast) -> None:
    """Let the log grow beyond all that was lost."""
    session = await app.session(past.session_id)
    for text in ("three", "four"):
        await (await session.send(text)).result()
    assert (await session.info()).end > int(past.lost.partition("-")[0])


async def test_a_reader_of_lost_events_is_told_before_and_after_the_log_has_outgrown_them(
    path: Path,
) -> None:
    past = await read_and_restore(path)
    async with app_on(path) as app:
        session = await app.session(past.session_id)
        with pytest.raises(CursorAhead):
            [event async for event in session.events(after=past.lost)]
        await grow_past(app, past)
        for follow in (True, False):
            for children in (True, False):
                events = session.events(after=past.lost, follow=follow, children=children)
                with pytest.raises(HistoryGone, match="restored from a backup"):
                    [event async for event in events]
        rest = [event.cursor async for event in session.events(after=past.kept)]
        whole = [event.cursor async for event in session.events()]
        assert whole[-len(rest) :] == rest
        assert whole[-len(rest) - 1] == past.kept


async def test_readers_over_http_are_told(path: Path) -> None:
    past = await read_and_restore(path)
    offset, _, checksum = past.lost.partition("-")
    async with app_on(path) as app, on_a_socket(app) as (host, port):
        await grow_past(app, past)
        base = f"http://{host}:{port}/v1"
        async with httpx.AsyncClient(base_url=base) as http:
            stream = f"/sessions/{past.session_id}/stream"
            durable = f"/streams/sessions/{past.session_id}"
            sse = {"Accept": "text/event-stream", "Last-Event-ID": past.lost}
            place = f"{int(offset):016d}-{checksum}"
            answers = [
                await http.get(stream, params={"after": past.lost}),
                await http.get(stream, params={"after": past.lost, "follow": "false"}),
                await http.get(stream, headers=sse),
                await http.get(durable, params={"offset": place}),
                await http.get(durable, params={"offset": place, "live": "long-poll"}),
                await http.get(durable, params={"offset": place, "live": "sse"}),
            ]
            for answer in answers:
                assert answer.status_code == 410
                assert answer.json()["error"]["code"] == "HISTORY_GONE"
            page = await http.get(
                durable, params={"offset": "-1"}, headers={"If-None-Match": past.etag}
            )
            assert page.status_code == 200
            assert page.text != past.page


async def test_a_page_of_the_new_history_has_another_name(path: Path) -> None:
    """The restored log grows to where the lost one ended, record by record."""
    past = await read_and_restore(path)
    async with app_on(path) as app, on_a_socket(app) as (host, port):
        session = await app.session(past.session_id)
        await (await session.send("two")).result()
        again = [event.cursor async for event in session.events()][-1]
        assert again.partition("-")[0] == past.lost.partition("-")[0]
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}/v1") as http:
            page = await http.get(
                f"/streams/sessions/{past.session_id}",
                params={"offset": "-1"},
                headers={"If-None-Match": past.etag},
            )
            assert (page.status_code, page.headers["etag"] != past.etag) == (200, True)


async def test_a_client_that_resumes_is_told(path: Path) -> None:
    past = await read_and_restore(path)
    async with (
        app_on(path) as app,
        on_a_socket(app) as (host, port),
        Client(f"http://{host}:{port}") as client,
    ):
        await grow_past(app, past)
        for children in (True, False):
            with pytest.raises(HistoryGone):
                [e async for e in client.resume(past.bookmark).events(children=children)]
        whole = [e async for e in client.resume(past.bookmark).events(0)]
        assert past.kept in [event.cursor for event in whole]
