"""Schedules as they are written, and what is refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from outlast import Agent, Outlast, Schedule, WorkflowContext, workflow
from outlast.core.message import Text
from outlast.errors import (
    InvalidInput,
    InvalidMessage,
    OutlastError,
    UnknownAgent,
    UnknownWorkflow,
)
from outlast.integration.schedule.state import ScheduleState, from_document, to_document
from outlast.testing import ScriptedModel

SPRING = 1_774_746_000_000  # 2026-03-29 01:00 UTC: the clock in Berlin is set forward


def schedule(cron: str = "0 9 * * 1-5", **options: Any) -> Schedule:
    return Schedule(cron, **{"agent": "digest", "message": "Go.", **options})


def digest() -> Agent:
    return Agent("digest", ScriptedModel([]))


def test_a_schedule_is_named_after_its_agent() -> None:
    assert schedule().name == "digest"
    assert schedule(agent=digest()).name == "digest"
    assert schedule(name="monday").name == "monday"


def test_a_message_may_be_made_of_the_instant_where_the_schedule_is() -> None:
    def say(at: datetime) -> str:
        return f"{at:%Y-%m-%d %H:%M %Z}"

    made = schedule(message=say, timezone="Europe/Berlin")

    assert made.message_at(SPRING) == (Text("2026-03-29 03:00 CEST"),)
    assert schedule().message_at(SPRING) == (Text("Go."),)


def test_the_line_is_written_with_single_spaces() -> None:
    written = schedule("0  9 * *   MON-FRI", timezone="Europe/Berlin", tenant="a c m e")

    assert (written.timetable.line, written.tenant) == ("0 9 * * MON-FRI", "a c m e")


STATE = ScheduleState(
    name="a", cron="0 9 * * *", timezone="UTC", tenant="default", next_at=SPRING, paused=True
)


@pytest.mark.parametrize(
    "change", [{"message": "Other."}, {"overlap": "queue"}, {"catch_up": "one"}]
)
def test_another_message_is_the_same_schedule(change: dict[str, Any]) -> None:
    assert STATE.is_of(schedule(STATE.cron, **change))


@pytest.mark.parametrize(
    "change", [{"cron": "0 8 * * *"}, {"timezone": "Europe/Berlin"}, {"tenant": "acme"}]
)
def test_another_line_zone_or_tenant_is_another_schedule(change: dict[str, Any]) -> None:
    assert not STATE.is_of(schedule(**{"cron": STATE.cron, **change}))


def test_a_schedule_is_stored_with_every_fact_in_a_field_of_its_own() -> None:
    settled = replace(STATE.settle(SPRING, "skipped"), session_id="ses_1", version=3)

    assert from_document(to_document(settled)) == settled


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"cron": "0 25 * * *"}, "bad hour"),
        ({"timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"catch_up": "some"}, "catch_up has to be skip, one or all, not 'some'"),
        ({"overlap": "all"}, "overlap has to be skip, queue or cancel"),
        ({"name": "a b"}, "cannot be a schedule's name"),
        ({"name": "x" * 65}, "cannot be a schedule's name"),
        ({"tenant": ""}, "tenant"),
    ],
)
def test_what_cannot_work_is_refused_as_it_is_written(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(OutlastError, match=complaint):
        schedule(**options)


@pytest.mark.parametrize("message", ["", (), 5, None])
def test_a_message_that_cannot_be_sent_is_refused_as_it_is_written(message: Any) -> None:
    with pytest.raises(InvalidMessage):
        schedule(message=message)


def test_an_app_refuses_schedules_of_agents_that_it_does_not_have() -> None:
    with pytest.raises(UnknownAgent, match="schedule other starts agent other"):
        Outlast([digest()], store="memory://", schedules=[schedule(agent="other")])


@workflow
async def books(ctx: WorkflowContext, month: str) -> str:
    return month


def test_a_schedule_of_a_workflow_is_named_after_it_and_gives_it_an_input() -> None:
    made = Schedule(
        "0 6 1 * *", workflow=books, input=lambda at: f"{at:%Y-%m}", timezone="Asia/Tokyo"
    )

    assert (made.name, made.workflow, made.agent) == ("books", "books", "")
    assert made.input_at(SPRING) == "2026-03"
    assert Schedule("0 6 1 * *", workflow="books", input="june").input_at(SPRING) == "june"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "has an agent= with a message=, or a workflow="),
        ({"agent": "digest"}, "message"),
        ({"agent": "digest", "message": "Go.", "workflow": books}, "or a workflow="),
        ({"workflow": books, "message": "Go."}, "give it its input="),
        ({"agent": "digest", "message": "Go.", "input": 1}, "input= is for a workflow"),
    ],
)
def test_a_schedule_is_for_an_agent_or_for_a_workflow(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(OutlastError, match=complaint):
        Schedule("0 6 1 * *", **options)


def test_an_app_refuses_workflows_that_it_does_not_have_and_inputs_that_do_not_fit() -> None:
    for workflows, given, kind, complaint in (
        ([digest()], "june", UnknownWorkflow, "schedule books runs workflow books"),
        ([books], 6, InvalidInput, "no input of the workflow books"),
    ):
        with pytest.raises(kind, match=complaint):
            Outlast(
                workflows,
                store="memory://",
                schedules=[Schedule("0 6 1 * *", workflow=books, input=given)],
            )


def test_an_app_refuses_two_schedules_of_one_name() -> None:
    with pytest.raises(OutlastError, match="two schedules are named digest"):
        Outlast([digest()], store="memory://", schedules=[schedule(), schedule("0 8 * * *")])


def test_an_app_refuses_what_is_no_schedule() -> None:
    not_one: Any = "0 9 * * *"
    with pytest.raises(OutlastError, match="a str is not a Schedule"):
        Outlast([digest()], store="memory://", schedules=[not_one])
