"""Sessions get tags at their start, and are listed by them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scene import agent, log_of, running

from outlast import Key, Outlast, Token
from outlast.errors import DispatchConflict, InvalidInput, InvalidName
from outlast.integration.schedule import Schedule
from outlast.log.verify import verify
from outlast.testing.scripted import call, say

URGENT = {"customer": "42", "urgency": "high"}

say_ok = agent(lambda _: say("ok"))


async def tagged(app: Outlast, **tags: str) -> list[str]:
    return [info.session_id for info in await app.sessions(tags=tags)]


async def test_a_session_has_the_tags_of_its_start_wherever_it_is_told_of() -> None:
    async with running(say_ok) as app:
        session = await app.start("a", "hi", tags={"urgency": "high", "customer": "42"})
        plain = await app.start("a", "hi")
        [started, *_] = await log_of(session)

        assert (await session.info()).tags == (await session.snapshot()).tags == URGENT
        assert started.data["tags"] == URGENT
        assert list(started.data["tags"]) == ["customer", "urgency"]
        assert (await plain.info()).tags == {}
        assert await tagged(app, customer="42") == await tagged(app, **URGENT) == [session.id]
        assert await tagged(app, customer="42", urgency="low") == []
        assert await tagged(app) == [plain.id, session.id]


@pytest.mark.parametrize("to", [Key("a", "k"), Token("t", "a")])
async def test_only_the_message_that_starts_a_session_at_an_address_tags_it(
    to: Key | Token,
) -> None:
    async with running(say_ok) as app:
        first = await app.send(to, "hi", tags=URGENT, dispatch_id="one")
        again = await app.send(to, "hi", tags={"customer": "1"}, dispatch_id="one")
        second = await app.send(to, "and?", tags={"customer": "1"})

        assert again.delivery_id == first.delivery_id
        assert second.session_id == first.session_id
        assert (await first.session.info()).tags == URGENT
        assert await tagged(app, customer="1") == []


async def test_the_same_start_with_other_tags_is_another_start() -> None:
    async with running(say_ok) as app:
        first = await app.start("a", "hi", tags=URGENT, dispatch_id="one")
        backwards = dict(reversed(URGENT.items()))
        same = await app.start("a", "hi", tags=backwards, dispatch_id="one")
        with pytest.raises(DispatchConflict):
            await app.start("a", "hi", dispatch_id="one")

        assert same.id == first.id
        assert await tagged(app) == [first.id]


async def test_a_child_has_none_of_the_tags_of_its_parent() -> None:
    below = agent([say("done")])
    below.name = "below"
    above = agent([call("below", message="go"), say("so it is")], subagents=[below])
    async with running(above) as app:
        session = await app.start("a", "hi", tags=URGENT)
        await session.wait()
        children = [info for info in await app.sessions() if info.parent == session.id]

        assert [info.tags for info in children] == [{}]
        assert await tagged(app, **URGENT) == [session.id]


async def test_the_sessions_of_a_schedule_have_its_tags() -> None:
    daily = Schedule("0 9 * * *", agent="a", message="go", tags={"job": "daily"})
    async with running(say_ok, schedules=[daily]) as app:
        session = await app.schedules.trigger("a")

        assert await tagged(app, job="daily") == [session.id]
        assert (await session.info()).tags == {"job": "daily"}


MANY = {f"n{number}": "x" for number in range(17)}
BAD: dict[str, tuple[Any, str]] = {
    "names alone": (["customer"], "tags are at most 16 texts by name"),
    "too many": (MANY, "these are 17"),
    "a name with a space": ({"my customer": "42"}, "'my customer' is no such name"),
    "a name with =": ({"a=b": "c"}, "'a=b' is no such name"),
    "no name": ({"": "c"}, "'' is no such name"),
    "a long name": ({"n" * 65: "c"}, "is no such name"),
    "a number as a name": ({7: "c"}, "7 is no such name"),
    "a number": ({"customer": 42}, "the tag customer is a text, not 42"),
    "nothing": ({"customer": None}, "the tag customer is a text, not None"),
}
BAD_VALUES = {"empty": "", "long": "x" * 257, "NUL": "a\0b", "half a character": "\ud800"}


@pytest.mark.parametrize(("tags", "told"), BAD.values(), ids=BAD)
async def test_tags_that_cannot_be_are_refused_and_nothing_is_started(tags: Any, told: str) -> None:
    await refused(tags, told, InvalidInput)


@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES)
async def test_a_value_that_cannot_be_is_refused_and_nothing_is_started(value: str) -> None:
    await refused({"customer": value}, "tag customer", InvalidName)


async def refused(tags: Mapping[str, str], told: str, kind: type[Exception]) -> None:
    async with Outlast([say_ok], store="memory://", worker=None) as app:
        for attempt in (
            app.start("a", "hi", tags=tags),
            app.send(Key("a", "k"), "hi", tags=tags),
            app.send(Token("t", "a"), "hi", tags=tags),
            app.sessions(tags=tags),
        ):
            with pytest.raises(kind) as refusal:
                await attempt
            assert told in str(refusal.value)
        assert await app.sessions() == []
    with pytest.raises(kind, match="tag"):
        Schedule("0 9 * * *", agent="a", message="go", tags=tags)


async def test_as_many_and_as_long_tags_as_may_be_are_found() -> None:
    most = {f"{number:02}" + "n" * 62: "ü" * 256 for number in range(16)}
    async with Outlast([say_ok], store="memory://", worker=None) as app:
        session = await app.start("a", "hi", tags=most, tenant="t" * 256)

        assert await tagged(app, **most) == [session.id]


async def test_verify_tells_tags_that_are_not_those_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "outlast.db"
    async with Outlast([say_ok], store=f"sqlite:///{path}", worker=None) as app:
        session = await app.start("a", "hi", tags=URGENT)
        right = await verify(app.store, session.id)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE outlast_tags SET value = '43' WHERE name = 'customer'")
        [wrong] = await verify(app.store, session.id)

    assert not right
    assert "tags is {'customer': '43', 'urgency': 'high'}; by the log" in str(wrong)


async def test_equal_starts_at_once_tag_one_session() -> None:
    async with running(say_ok) as app:
        starts = [app.start("a", "hi", tags=URGENT, dispatch_id="one") for _ in range(10)]
        started = await asyncio.gather(*starts)

        assert await tagged(app, **URGENT) == [started[0].id]
        assert len({session.id for session in started}) == 1
