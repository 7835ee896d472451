"""What the command line shows of schedules, and does with them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from terminal import Place

from outlast.core.instant import date_of
from outlast.integration.schedule.state import ScheduleState, arm_schedule
from outlast.stores.sqlite import SqliteStore

APP = """
from outlast import Agent, Outlast, Schedule
from outlast.testing import ScriptedModel, say

digest = Agent("digest", ScriptedModel(lambda asked: say("Nothing new.")))
morning = Schedule("30 2 * * *", agent=digest, message="Go.", timezone="Europe/Berlin")
evening = Schedule("0 18 * * 1-5", agent=digest, message="Go.", name="evening")
app = Outlast([digest], schedules=[morning, evening])
"""

SPRING = int(datetime(2126, 3, 31, 1, tzinfo=UTC).timestamp() * 1000)
DAY = 86_400_000
ROWS = [
    ScheduleState(
        name="digest",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        tenant="default",
        next_at=SPRING,
        settled_at=SPRING - DAY,
        last_outcome="skipped",
        session_id="ses_1",
    ),
    ScheduleState(name="old", cron="0 9 * * *", timezone="UTC", tenant="default", next_at=SPRING),
]


async def armed(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    for row in ROWS:
        await arm_schedule(store, row)
    await store.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "daily.py").write_text(APP, "utf-8")
    asyncio.run(armed(tmp_path / "outlast.db"))
    return Place(tmp_path)


def cells(printed: str) -> dict[str, list[str]]:
    lines = [line.split("  ") for line in printed.splitlines()[1:]]
    return {line[0]: [cell.strip() for cell in line if cell.strip()] for line in lines}


def statuses(listed: Any) -> dict[str, str]:
    return {each["name"]: each["status"] for each in listed}


def test_schedules_are_listed_with_when_they_are_due_and_what_they_did(place: Place) -> None:
    plain = place.run("schedules", "list")
    known = place.json("schedules", "list", "daily:app")

    assert plain.stderr == ""
    assert cells(plain.stdout)["digest"] == [
        "digest",
        "armed",
        "30 2 * * *",
        "Europe/Berlin",
        "2126-03-31 01:00:00Z",
        "2126-03-30 01:00:00Z",
        "skipped",
        "ses_1",
    ]
    assert statuses(known) == {"digest": "armed", "evening": "new", "old": "gone"}


def test_the_next_instants_are_shown_where_they_are(place: Place) -> None:
    shown = place.run("schedules", "next", "digest", "--count", "2").stdout

    assert shown.splitlines() == [
        "digest  Sun 2126-03-31 03:00 CEST  2126-03-31 01:00:00Z",
        "digest  Mon 2126-04-01 02:30 CEST  2126-04-01 00:30:00Z",
    ]


def test_a_schedule_is_paused_resumed_and_forgotten(place: Place) -> None:
    paused = place.run("schedules", "pause", "digest").stdout
    listed = place.json("schedules", "list")
    shown = cells(place.run("schedules", "list").stdout)["digest"]
    resumed = place.json("schedules", "resume", "digest")
    forgotten = place.run("schedules", "forget", "old").stdout
    again = place.run("schedules", "forget", "old")

    assert (paused, statuses(listed)["digest"]) == ("paused digest\n", "paused")
    assert (shown[1], shown[4]) == ("paused", "-")
    assert (resumed["paused"], datetime.fromisoformat(resumed["next_at"]) < date_of(SPRING)) == (
        False,
        True,
    )
    assert (forgotten, again.returncode) == ("forgot old\n", 1)
    assert "error: this store knows no schedule 'old'" in again.stderr
    assert "code: UNKNOWN_SCHEDULE" in again.stderr
    assert "help: `outlast schedules list`" in again.stderr


def test_a_schedule_is_triggered_by_hand(place: Place) -> None:
    first = place.run("schedules", "trigger", "daily:app", "evening", "--dispatch-id", "d")
    again = place.json("schedules", "trigger", "daily:app", "evening", "--dispatch-id", "d")
    told = place.run("schedules", "trigger", "daily:app", "evening", "--dispatch-id", "d")
    unknown = place.run("schedules", "trigger", "daily:app", "morning")

    assert first.stdout == f"started {again['session_id']}\n"
    assert again["duplicate"]
    assert told.stdout == f"{again['session_id']} was started before; nothing was started\n"
    assert "no worker is running" in first.stderr
    assert "this app has no schedule 'morning'; it has: digest, evening" in unknown.stderr
    [session] = place.json("sessions")
    assert (session["agent"], session["mode"], session["status"]) == ("digest", "task", "queued")
