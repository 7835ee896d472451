"""Snapshots that are damaged: told, left out, and made again from the log, which is whole."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from scene import FAST, log_of
from typer.testing import CliRunner

from outlast import Agent, Context, Outlast, tool
from outlast.cli import make_app
from outlast.core.codec import Packer
from outlast.log.verify import verify
from outlast.stores.postgres.url import read_url
from outlast.testing.scripted import ScriptedModel, call, say

TEXT = "enough words for a snapshot. " * 4000

TRUNCATED = "cut short"
NO_ZSTD = "not compressed"
NO_MSGPACK = "not what is expected"
ANOTHER_TYPE = "something else"
BEYOND = "of more than the log"
OLD_FOLD = "of another fold"
DAMAGES = [TRUNCATED, NO_ZSTD, NO_MSGPACK, ANOTHER_TYPE, BEYOND, OLD_FOLD]


class Note(msgspec.Struct):
    text: str


@tool
async def keep(ctx: Context, text: str) -> str:
    """Keep a note in the session's state."""
    ctx.session.mutate(Note).seed(Note(text))
    return "kept"


def made() -> Agent[Any, Any]:
    script = [call("keep", text="one"), say(TEXT), say("two"), say("three")]
    return Agent("writer", ScriptedModel(script), tools=[keep])


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    return str(request.getfixturevalue("postgres_url"))


def run(url: str, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Run a statement in which a table is called `{}name`."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
            return db.execute(statement.replace("{}", "outlast_"), values).fetchall()
    place = read_url(url)
    with psycopg.connect(place.direct, autocommit=True) as connection:
        text = statement.replace("{}", f"{place.schema}.")
        for name in values:
            text = text.replace(f":{name}", f"%({name})s")
        cursor = connection.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def damage(url: str, table: str, how: str) -> None:
    packer = Packer()
    [(data,)] = run(url, f"SELECT data FROM {{}}{table}")  # noqa: S608 - ours
    changed = {
        TRUNCATED: bytes(data)[:-3],
        NO_ZSTD: b"\x00\x01\x02",
        NO_MSGPACK: packer.squeeze(b"\xc1\xc1"),
        ANOTHER_TYPE: packer.squeeze(msgspec.msgpack.encode([1, 2])),
    }.get(how, bytes(data))
    offset, fold = 100_000 if how == BEYOND else None, 999 if how == OLD_FOLD else None
    run(
        url,
        f"UPDATE {{}}{table} SET data = :data,"  # noqa: S608 - ours
        " last_offset = coalesce(:offset, last_offset), fold = coalesce(:fold, fold)",
        data=changed,
        offset=offset,
        fold=fold,
    )


async def with_snapshots(url: str) -> str:
    """Make a session whose lane and slices have a snapshot."""
    async with Outlast([made()], store=url, worker=FAST) as app:
        session = await app.start("writer", "go")
        await session.wait()
        await (await session.send("more")).result()
        loaded = await app.store.log.load(session.id, "main")
        assert loaded.snapshot
        assert loaded.slices
    return session.id


@pytest.mark.parametrize("table", ["snapshots", "slices"])
@pytest.mark.parametrize("how", DAMAGES)
async def test_a_session_goes_on_without_a_damaged_snapshot_and_makes_another(
    url: str, table: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    session_id = await with_snapshots(url)
    damage(url, table, how)
    async with Outlast([made()], store=url, worker=FAST) as app:
        session = await app.session(session_id)
        with caplog.at_level(logging.WARNING):
            assert (await (await session.send("on")).result()).unwrap() == "three"
        told = [entry.message for entry in caplog.records]
        is_told = "a snapshot cannot be read, and the log is folded from its beginning" in told
        assert is_told == (how != OLD_FOLD)
        assert await session.query(Note).all()
        assert len(await log_of(session)) > 20
        if how != OLD_FOLD:  # one of another fold is made again when there is enough to keep
            assert await verify(app.store, session_id) == []
            loaded = await app.store.log.load(session_id, "main")
            assert loaded.snapshot
            assert loaded.slices


@pytest.mark.parametrize("table", ["snapshots", "slices"])
@pytest.mark.parametrize("how", [TRUNCATED, NO_MSGPACK, BEYOND])
async def test_verify_tells_of_damaged_snapshots_and_explain_does_without_them(
    url: str, table: str, how: str
) -> None:
    session_id = await with_snapshots(url)
    damage(url, table, how)
    async with Outlast([made()], store=url, worker=FAST) as app:
        [finding] = await verify(app.store, session_id)
        assert finding.code in ("SNAPSHOT", "SLICES")
        assert (await (await app.session(session_id)).explain()).lanes


@pytest.mark.parametrize("how", [TRUNCATED, NO_MSGPACK])
def test_the_command_repairs_all_sessions(url: str, how: str) -> None:
    asyncio.run(with_snapshots(url))
    damage(url, "snapshots", how)
    runner = CliRunner()
    assert runner.invoke(make_app(), ["verify", "--store", url]).exit_code == 1
    repaired = runner.invoke(make_app(), ["verify", "--repair", "--store", url])
    assert (repaired.exit_code, "all sound" in repaired.output) == (0, True)
    assert run(url, "SELECT count(*) FROM {}snapshots") == [(0,)]
    assert runner.invoke(make_app(), ["verify", "--store", url]).exit_code == 0
