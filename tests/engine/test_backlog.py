"""What a worker says of sessions that were left unfinished, and that it can leave them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST

from outlast import Agent, Outlast, WorkerSettings
from outlast.engine.backlog import sentence
from outlast.errors import InvalidDefinition
from outlast.store import Unfinished
from outlast.testing.scripted import ScriptedModel, say

LEAVES = replace(FAST, resume=False)


def poet() -> Agent[Any, Any]:
    return Agent("poet", ScriptedModel(lambda _: say("A rhyme.")))


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/backlog.db"


async def test_a_worker_can_leave_what_was_unfinished_and_another_resumes_it(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outlast.engine")
    async with Outlast([poet()], store=database, worker=None) as app:
        old = (await app.start("poet", "Rhyme!")).id
        addressed = (await app.start("poet", "Rhyme!")).id

    async with Outlast([poet()], store=database, worker=LEAVES) as app:
        assert "the worker leaves 2 unfinished sessions, oldest " in caplog.text
        new = await app.start("poet", "And now?")
        assert (await new.wait()).output == "A rhyme."
        receipt = await (await app.session(addressed)).send("Now, please!")
        assert (await receipt.result()).output == "A rhyme."
        left = await app.session(old)
        assert (await left.info()).status == "queued"
        assert "resume=False" in str(await left.explain())

    async with Outlast([poet()], store=database, worker=FAST) as app:
        assert "the worker resumes 1 unfinished session, oldest " in caplog.text
        assert (await (await app.session(old)).wait()).output == "A rhyme."


async def test_a_worker_says_what_no_worker_serves(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outlast.engine")
    async with Outlast([Agent("old", ScriptedModel([]))], store=database, worker=None) as app:
        await app.start("old", "Hello?")
    async with Outlast([poet()], store=database, worker=FAST) as app:
        assert app.worker is not None
        assert app.worker.unserved == "no worker serves what is ready: 1 of old"
        assert app.worker.unserved in caplog.text


async def test_a_worker_that_finds_nothing_says_nothing(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outlast.engine")
    async with Outlast([poet()], store=database, worker=FAST) as app:
        await (await app.start("poet", "Rhyme!")).wait()
    async with Outlast([poet()], store=database, worker=FAST):
        pass
    assert not [line for line in caplog.messages if "unfinished" in line or "serves" in line]


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Unfinished({"a": 3}, HOUR, 3 * HOUR), "resumes 3 unfinished sessions, oldest 2 h"),
        (
            Unfinished({"b": 1, "a": 2}, 0, 60 * HOUR),
            "resumes 3 unfinished sessions (a 2, b 1), oldest 2 d",
        ),
        (
            Unfinished({"a": 1000}, 0, 90_000, is_whole=False),
            "resumes more than 1,000 unfinished sessions, oldest 1 min",
        ),
        (Unfinished({}, None, 0), ""),
    ],
)
def test_what_is_unfinished_is_told_in_a_sentence(found: Unfinished, told: str) -> None:
    assert sentence(found, resumes=True) == told


def test_resume_is_true_or_false() -> None:
    with pytest.raises(InvalidDefinition, match="resume has to be True or False, not 'no'"):
        WorkerSettings(resume="no")  # type: ignore[arg-type]
