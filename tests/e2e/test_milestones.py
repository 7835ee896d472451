"""Milestones as people see them: here, over HTTP, in blocking code, and in a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from http_scene import on_a_socket
from scene import FAST
from terminal import Place

import outlast.sync
from outlast import Agent, Outlast
from outlast.client import Client
from outlast.errors import InvalidInput
from outlast.planning import Plan, Planning
from outlast.testing import ScriptedModel, call, say


def host() -> Agent[Any, Any]:
    script = [
        call("planning_setup_plan", objective="tea", initial_steps=["boil", "pour"]),
        call("planning_update_step", step_id=1, status="done"),
        call("planning_update_step", step_id=2, status="done"),
        say("Served."),
    ]
    return Agent("host", ScriptedModel(script), planning=Planning())


async def test_the_state_at_a_milestone_can_be_had_and_gone_back_to() -> None:
    async with Outlast([host()], store="memory://", worker=FAST) as app:
        session = await app.start("host", "Tea, please")
        await session.wait()

        first, second = await session.milestones()
        assert (first.title, first.lane, first.turn) == ("boil", "main", "t1")
        assert (second.title, second.call_id) == ("pour", "t1.s3.c1")
        then = await session.snapshot(at=first.offset)
        plan = then.query(Plan).latest()
        assert plan is not None
        assert [step.title for step in plan.done] == ["boil"]
        assert (then.offset, then.taken_at) == (first.offset, first.at)
        assert not (await session.snapshot(at=1)).slices
        await (await session.mutate().rollback(then)).result()
        assert await session.query(Plan).latest() == plan
        for wrong in (0, 10_000, "1"):
            with pytest.raises(InvalidInput, match="a place in the session's log, from 1 to"):
                await session.snapshot(at=wrong)  # type: ignore[arg-type]


async def test_a_client_lists_them_page_by_page() -> None:
    async with (
        Outlast([host()], store="memory://", worker=FAST) as app,
        on_a_socket(app) as (name, port),
        Client(f"http://{name}:{port}") as client,
    ):
        near = await app.start("host", "Tea, please")
        await near.wait()
        far = await client.session(near.id)

        assert await far.milestones() == await near.milestones()
        path = f"/sessions/{near.id}/milestones"
        page = json.loads(await client._connection.call("GET", path, query={"limit": 1}))
        assert [each["title"] for each in page["milestones"]] == ["boil"]
        query = {"cursor": page["next_cursor"], "limit": 1}
        page = json.loads(await client._connection.call("GET", path, query=query))
        assert ([each["title"] for each in page["milestones"]], page["next_cursor"]) == (
            ["pour"],
            None,
        )


def test_a_script_and_a_terminal_list_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tea.db"
    with outlast.sync.opened(Outlast([host()], store=url)) as app:
        session = app.start("host", "Tea, please")
        session.wait()
        assert [each.title for each in session.milestones()] == ["boil", "pour"]
    place = Place(tmp_path)

    head, *rows = place.run("milestones", session.id, "--store", url).stdout.splitlines()
    assert head.split() == ["LANE", "REACHED", "CALL", "OFFSET", "TITLE"]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [
        ("main", "boil"),
        ("main", "pour"),
    ]
    assert place.json("milestones", session.id, "--store", url)[1]["title"] == "pour"
    logs = place.run("logs", session.id, "--store", url).stdout
    assert "milestone.reached" in logs
    assert "t1.s3.c1" in logs
