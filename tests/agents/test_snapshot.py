"""Snapshots of a session's state: taken, kept as JSON, and gone back to by a tool."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from scene import agent, log_of, running

from outlast import Context, tool
from outlast.errors import InvalidInput, SliceChanged
from outlast.state import Snapshot, slice_type
from outlast.testing import call, say


@slice_type("snapshot-note")
@dataclass
class Note:
    text: str


@slice_type("snapshot-mood", version=2, migrate={1: lambda old: {"word": old["feeling"]}})
class Mood(pydantic.BaseModel):
    word: str


@slice_type("snapshot-visit", kind="log")
class Visit(msgspec.Struct):
    page: str


@tool
async def note(ctx: Context, text: str) -> None:
    """Note something."""
    ctx.session.mutate(Note).append(Note(text))
    ctx.session.mutate(Mood).seed(Mood(word=text))
    ctx.session.mutate(Visit).append(Visit(text))


kept: list[Snapshot] = []


@tool
async def back(ctx: Context) -> None:
    """Go back."""
    ctx.session.mutate().rollback(kept[-1])


async def test_a_snapshot_has_all_slices_and_what_the_session_is_known_by() -> None:
    async with running(agent([call("note", text="a"), say("ok")], tools=[note])) as app:
        session = await app.start("a", "go")
        await session.wait()
        snapshot = await session.snapshot()
        info = await session.info()

        assert snapshot.session_id == session.id
        assert snapshot.created_at == info.created_at
        assert (snapshot.parent, snapshot.children, snapshot.tags) == (None, (), {})
        assert sorted(snapshot.slices) == ["snapshot-mood", "snapshot-note", "snapshot-visit"]
        assert snapshot.query(Note).all() == [Note("a")]
        assert Snapshot.from_json(snapshot.to_json()) == snapshot
        assert "history" not in json.loads(snapshot.to_json())


async def test_a_tool_rolls_the_session_back_and_its_logs_go_on() -> None:
    script = [call("note", text="a"), say("ok"), call("note", text="b"), call("back"), say("ok")]
    async with running(agent(script, tools=[note, back])) as app:
        session = await app.start("a", "go")
        await session.wait()
        kept.append(Snapshot.from_json((await session.snapshot()).to_json()))
        await (await session.send("more")).result()

        assert await session.query(Note).all() == [Note("a")]
        assert await session.query(Mood).latest() == Mood(word="a")
        assert await session.query(Visit).all() == [Visit("a"), Visit("b")]
        events = await log_of(session, internals=True)
        [rolled] = [event for event in events if event.type == "state.rolled_back"]
        assert sorted(rolled.data["slices"]) == ["snapshot-mood", "snapshot-note"]


async def test_another_session_gets_all_of_a_snapshot_its_logs_too() -> None:
    model = [call("note", text="a"), say("ok"), call("back"), say("ok")]
    async with running(agent(model, tools=[note, back])) as app:
        first = await app.start("a", "go")
        await first.wait()
        kept.append(await first.snapshot())
        second = await app.start("a", "go on")
        await second.wait()

        assert (await second.snapshot()).slices == kept[-1].slices
        assert await second.query(Visit).all() == [Visit("a")]


async def test_what_nobody_has_declared_yet_is_adopted_and_typed_later() -> None:
    text = snapshot_text({"snapshot-later": {"values": [{"value": {"n": 3}, "version": 1}]}})
    kept.append(Snapshot.from_json(text))
    async with running(agent([call("back"), say("ok")], tools=[back])) as app:
        session = await app.start("a", "go")
        await session.wait()

        @slice_type("snapshot-later", version=2, migrate={1: lambda old: {"number": old["n"]}})
        @dataclass
        class Later:
            number: int

        assert await session.query(Later).all() == [Later(3)]


async def test_what_cannot_be_migrated_is_kept_and_told_with_a_code_of_its_own() -> None:
    old = {"values": [{"value": {"mood": "calm"}, "version": 1}]}
    kept.append(Snapshot.from_json(snapshot_text({"snapshot-mood": old})))
    async with running(agent([call("back"), say("ok")], tools=[back])) as app:
        session = await app.start("a", "go")
        await session.wait()

        with pytest.raises(SliceChanged, match="migration from version 1 raised KeyError") as error:
            await session.query(Mood).all()
        assert error.value.code == "SLICE_CHANGED"
        assert "nothing of it is lost" in error.value.message
        stored = json.loads((await session.snapshot()).to_json())["slices"]
        assert stored["snapshot-mood"]["values"] == old["values"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a snapshot"),
        ("[]", "is not a snapshot"),
        ("{}", "is not a snapshot"),
        (b"\xff", "is not a snapshot"),
        ('{"format": 1, "session_id": 3}', "is not a snapshot"),
        (lambda: snapshot_text({}, format=7), "is of the format 7, and 1 is known here"),
        (lambda: snapshot_text({"outlast:granted": {}}), "Outlast's own: outlast:granted"),
        (lambda: snapshot_text({"x": {"values": [{"value": 1}, 2]}}), "is not a snapshot"),
        (lambda: snapshot_text({"x": {"values": [{"value": deep(150)}]}}), "at most 100 deep"),
    ],
)
def test_a_text_that_is_no_snapshot_is_refused(text: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Snapshot.from_json(text() if callable(text) else text)


def snapshot_text(slices: dict[str, Any], **more: Any) -> str:
    at = "2026-01-01T00:00:00Z"
    known = {"format": 1, "session_id": "ses_1", "created_at": at, "taken_at": at, "offset": 1}
    return json.dumps({**known, "slices": slices, **more})


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value
