"""Runs of workflows made by chance, by fleets with faults, under code that changes; and proof that
the checker can fail."""

from datetime import UTC, datetime
from typing import Any

import pytest

from outlast.agents.runtime import step
from outlast.agents.runtime.durable_wait import Scope
from outlast.core import record as r
from outlast.core.record import AnyRecord, Failure
from outlast.store import SessionInfo
from outlast.testing.simulation import Simulation
from outlast.testing.simulation.check_workflow import events_in_order, wrong_in_log
from outlast.testing.simulation.evidence import SessionEvidence
from outlast.testing.simulation.fleet import run_twice

CALL = "t1.s1.c1"
WHY = Failure("X", "why")
FIRST = 11
"""The first seed that may find it; later ones are for the day when another story has this one."""


@pytest.mark.parametrize("first", [0, 3])
def test_every_promise_is_kept_for_runs_whose_code_changes(first: int) -> None:
    run_twice(first, workflows=True).check()
    for seed in (first + 1, first + 2):
        Simulation(seed, workflows=True).run().check()


def test_a_race_whose_losers_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scope, "withdraw", lambda scope: None)

    reports = (Simulation(seed, workflows=True).run() for seed in range(FIRST, FIRST + 20))

    assert any("both branches of" in str(each) for report in reports for each in report.violations)


def test_a_step_that_is_done_before_the_log_says_so_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step.StepRules, "repeats", property(lambda rules: True))

    report = Simulation(0, workflows=True).run()

    assert any("begun 0 times in the log" in str(each) for each in report.violations)


def started(name: str, attempt: int = 1) -> AnyRecord:
    return r.ToolStepStarted(call_id=CALL, name=name, attempt=attempt)


def recorded(name: str) -> AnyRecord:
    return r.ToolStepRecorded(call_id=CALL, name=name, value="1")


def undo(*names: str) -> list[AnyRecord]:
    return [r.UndoRegistered(call_id=CALL, name=name, title=name) for name in names]


UNDO = r.UndoStarted(call_id=CALL)
ENDED = r.UndoEnded(call_id=CALL)
CAME = r.EventReceived(delivery_id="d", name="go")


def taken(wait: str) -> AnyRecord:
    return r.EventTaken(call_id=CALL, name=wait, event="go")


def sent(*payloads: int) -> list[AnyRecord]:
    return [r.EventSent(delivery_id="d", name="go", payload=str(each)) for each in payloads]


NOW = datetime(2026, 11, 1, tzinfo=UTC)
INFO = SessionInfo(
    session_id="run_1",
    tenant="default",
    agent="program",
    mode="run",
    status="completed",
    created_at=NOW,
    updated_at=NOW,
    end=0,
)


def told(edition: int, event: int) -> AnyRecord:
    return r.ToolEmitted(call_id=CALL, name="got", data=f"[{edition},{event}]")


RETRIED = r.JournalInherited(steps={"event:go#1": '{"event":7}', "1/event:go#2": '{"event":8}'})


@pytest.mark.parametrize(
    ("log", "is_right"),
    [
        ([*sent(1, 2), taken("w"), told(0, 1)], True),
        ([*sent(1, 2), taken("w"), told(0, 2)], False),
        ([*sent(1, 2), taken("w"), told(0, 1), told(0, 1)], False),
        # An edition in which events have changed places may tell again of one.
        ([*sent(1, 2), taken("w"), told(0, 1), told(3, 1)], True),
        ([*sent(1), RETRIED, told(0, 7), told(0, 8)], True),
        ([*sent(1), RETRIED, told(0, 1)], False),
    ],
)
def test_the_checker_of_events_finds_one_that_the_same_code_was_given_twice_or_too_early(
    log: list[Any], is_right: bool
) -> None:
    entries = tuple(r.Entry(n, 0, "main", each) for n, each in enumerate(log, 1))
    session = SessionEvidence(info=INFO, entries=entries, events=(), alike=(), findings=())

    assert (not [*events_in_order(session)]) == is_right


@pytest.mark.parametrize(
    ("log", "wrong"),
    [
        ([started("a"), recorded("a"), started("b")], None),
        ([recorded("a"), recorded("a")], "came to an end twice"),
        ([recorded("a"), started("a")], "begun after it had come to an end"),
        ([started("a"), started("a")], "attempt 1 at a was begun twice"),
        ([started("a"), started("a", 2)], None),
        ([r.JournalInherited(steps={"a": "1"}), recorded("a")], "came to an end twice"),
        ([CAME, taken("w"), CAME, taken("v")], None),
        ([CAME, taken("w"), taken("v")], "more of the event go were taken"),
        ([CAME, CAME, taken("w"), taken("w")], "came to an end twice"),
        ([*undo("u"), UNDO, recorded("=undo/step:u#1"), ENDED], None),
        ([*undo("u", "v"), UNDO, recorded("=undo/step:u#1"), ENDED], "would be the reverse|only"),
        ([UNDO, recorded("a")], "while the run was undone"),
        ([recorded("=undo/step:u#1")], "before the run was undone"),
        (
            [
                *undo("u", "v"),
                *(UNDO, recorded("=undo/step:u#1"), recorded("=undo/step:v#1"), ENDED),
            ],
            "would be the reverse",
        ),
        ([*undo("u", "u")], "registered twice"),
        (
            [r.ToolStepFailed(call_id=CALL, name="a", attempt=1, error=WHY), started("a", 2)],
            "begun after",
        ),
    ],
)
def test_the_checker_of_a_runs_log_finds_what_is_done_twice_or_out_of_turn(
    log: list[Any], wrong: str | None
) -> None:
    found = [*wrong_in_log(log)]

    if wrong is None:
        assert found == []
    else:
        assert any(part in each for each in found for part in wrong.split("|"))
