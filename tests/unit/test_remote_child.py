"""A remote child in the log: when its server is contacted, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from unit.history import Log, crash, message, parks, reply, starts, turn_begins, wants

from outlast.core import record as r
from outlast.core.action import Park, RunTools, TakeReply
from outlast.core.decide import decide
from outlast.core.lane import OpenRequest
from outlast.core.outcome import opening, outcome
from outlast.core.policy import SECOND, Policy, ToolPolicy
from outlast.core.record import AnyRecord, Option
from outlast.core.result import ChildContact, ChildEnd, RemoteView
from outlast.log.verify.rule import broken_rules

NOW = 1_000_000
POLICY = Policy(tools={"pay": ToolPolicy("report")})
STARTED = ChildContact(request_id="q1", started="ses_there", view=RemoteView(), poll=2 * SECOND)
SEEN = replace(STARTED, started="")
AWAY = ChildContact(request_id="q1", poll=2 * SECOND)
ASKED = r.RequestOpened(
    request_id="far_1", kind="approval", prompt="May it?", options=(Option("approve", "Approve"),)
)
ASKS = replace(SEEN, view=RemoteView((ASKED,)))


def asking(*contacts: ChildContact) -> Log:
    """Return the log of a tool that waits for a remote child, after some contacts."""
    here: dict[str, Any] = {"call_id": "t1.s1.c1", "attempt": 1, "name": "agent:1"}
    called = r.SubagentCalled(
        **here, request_id="q1", child="", agent="clerk", url="https://far.example", message="hi"
    )
    log = Log(message(), *turn_begins(at=NOW), *wants("pay"), starts())
    log.add(r.ToolWaiting(**here), called)
    for contact in contacts:
        write(log, contact)
    return log


def write(log: Log, contact: ChildContact, now: int = NOW) -> Sequence[AnyRecord]:
    """Write down what came of a contact, of which `verify` finds no fault."""
    records = outcome(log.lane, RunTools(until=0), contact, POLICY, now)
    for record in records:
        assert not [*broken_rules(log.lane, record)]
        log.add(record)
    return records


def test_what_a_child_of_this_app_asks_is_approved_in_its_own_log() -> None:
    called = r.SubagentCalled(
        call_id="t1.s1.c1", attempt=1, name="agent:1", request_id="q1", child="ses_2", agent="clerk"
    )
    asked = replace(ASKED, call_id="t1.s1.c1", origin="q2", path=("ses_2",), digest="d", tool="pay")
    log = Log(message(), *turn_begins(at=NOW), *wants("pay"), starts(), called, asked)
    log.add(reply("far_1", "approve"))
    action = decide(log.lane, POLICY, NOW)
    assert isinstance(action, TakeReply)

    taken = opening(log.lane, action, NOW)

    assert [e.digest for e in taken if isinstance(e, r.RequestResolved)] == [""]


def take_answer(log: Log, text: str = "") -> None:
    [request] = shown(log)
    log.add(reply(request.request_id, "approve", text=text))
    action = decide(log.lane, POLICY, NOW)
    assert isinstance(action, TakeReply)
    log.add(*opening(log.lane, action, NOW))


def shown(log: Log) -> list[OpenRequest]:
    assert log.lane.turn is not None
    return [q for q in log.lane.turn.requests.values() if q.origin]


def contacts_at(log: Log, now: int = NOW) -> tuple[str, ...]:
    action = decide(log.lane, POLICY, now)
    return action.contact if isinstance(action, RunTools) else ()


def next_at(log: Log) -> int:
    action = decide(log.lane, POLICY, NOW)
    assert isinstance(action, Park)
    return action.until - NOW


def test_a_remote_child_is_contacted_at_once_and_parked_for_afterwards() -> None:
    log = asking()
    assert contacts_at(log) == ("q1",)
    write(log, STARTED)

    action = decide(log.lane, POLICY, NOW)
    assert action == Park(wait=("children",), until=NOW + 2 * SECOND)
    assert contacts_at(log, NOW + 2 * SECOND) == ("q1",)


def test_a_contact_that_changes_nothing_is_one_record_and_does_not_resume_the_session() -> None:
    log = asking(STARTED).add(parks("children"))
    action = decide(log.lane, POLICY, NOW + 2 * SECOND)
    assert isinstance(action, RunTools)

    assert opening(log.lane, action, NOW) == []
    assert [type(each) for each in write(log, SEEN)] == [r.SubagentContacted]
    assert log.lane.waiting == ("children",)


@pytest.mark.parametrize("contact", [SEEN, AWAY])
def test_pauses_between_contacts_grow_up_to_five_minutes(contact: ChildContact) -> None:
    log, pauses = asking(STARTED), list[int]()
    for _ in range(12):
        pauses.append(next_at(log) // SECOND)
        write(log, contact)

    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]


def test_where_the_server_posts_its_news_pauses_grow_up_to_an_hour() -> None:
    opened = replace(AWAY, callback="cbk_1")
    log = asking(opened, replace(STARTED, told=True), *[SEEN] * 20)

    assert next_at(log) == 3600 * SECOND


def test_news_that_come_during_a_contact_are_looked_at_at_once() -> None:
    log = asking(replace(AWAY, callback="cbk_1"), STARTED)
    log.add(r.CallbackClosed(request_id="cbk_1", call_id="t1.s1.c1", value="null"))
    assert contacts_at(log) == ("q1",)
    write(log, SEEN)  # which began before the news came

    assert contacts_at(log) == ("q1",)
    write(log, replace(SEEN, rounds=1))
    assert contacts_at(log) == ()


def test_a_crash_during_a_contact_leaves_the_tool_waiting() -> None:
    log = asking(STARTED).add(crash(at=NOW))

    assert log.lane.turn is not None
    assert log.lane.turn.calls["t1.s1.c1"].status == "waiting"
    assert isinstance(decide(log.lane, POLICY, NOW), Park)


def test_the_end_of_the_child_wakes_the_tool_and_closes_what_it_asked() -> None:
    log = asking(replace(AWAY, callback="cbk_1"), STARTED, ASKS)
    records = write(log, replace(SEEN, view=RemoteView(end=ChildEnd(value='"done"'))))

    assert [type(each) for each in records] == [
        r.RequestResolved,
        r.CallbackClosed,
        r.SubagentCompleted,
        r.ToolWoken,
    ]
    assert log.lane.turn is not None
    assert not log.lane.turn.requests


def test_an_answer_is_sent_with_the_next_contact_and_not_asked_for_again() -> None:
    log = asking(STARTED, ASKS)
    take_answer(log, "fine")
    assert contacts_at(log) == ("q1",)
    assert log.lane.turn is not None
    remote = log.lane.turn.requests["q1"].remote
    assert remote is not None
    [answer] = remote.answers
    assert (answer.origin, answer.option, answer.text) == ("far_1", "approve", "fine")

    sent = replace(ASKS, refusals={answer.request_id: ""})
    write(log, sent)  # the server lists it still: its lane has not taken the answer
    assert (shown(log), contacts_at(log)) == ([], ())
    write(log, ASKS)
    assert shown(log) == []


def test_an_answer_that_comes_during_a_contact_is_sent_at_once() -> None:
    log = asking(STARTED, ASKS)
    take_answer(log)
    write(log, ASKS)  # which began before the answer came

    assert (shown(log), contacts_at(log)) == ([], ("q1",))


def test_an_answer_to_a_server_that_is_away_is_kept() -> None:
    log = asking(STARTED, ASKS)
    take_answer(log)
    write(log, AWAY)

    assert next_at(log) == 2 * SECOND
    assert log.lane.turn is not None
    remote = log.lane.turn.requests["q1"].remote
    assert remote is not None
    assert len(remote.answers) == 1


def test_a_refused_answer_is_asked_for_again_under_another_name_with_the_reason() -> None:
    log = asking(STARTED, ASKS)
    [before] = shown(log)
    take_answer(log)
    asked = write(log, replace(ASKS, refusals={before.request_id: "too much"}))[0]

    assert isinstance(asked, r.RequestOpened)
    assert asked.request_id != before.request_id
    assert asked.prompt == "May it? (the last answer was refused: too much)"


def test_a_request_that_is_listed_again_has_another_name() -> None:
    log = asking(STARTED, ASKS)
    [before] = shown(log)
    write(log, SEEN)
    assert shown(log) == []
    write(log, ASKS)
    [again] = shown(log)

    assert again.request_id != before.request_id


def test_a_request_that_has_expired_here_is_not_shown_again() -> None:
    log = asking(STARTED, ASKS)
    [request] = shown(log)
    log.add(r.RequestExpired(request_id=request.request_id))
    write(log, ASKS)
    assert shown(log) == []

    write(log, SEEN)  # it is listed no longer, and need not be remembered
    assert log.lane.turn is not None
    remote = log.lane.turn.requests["q1"].remote
    assert remote is not None
    assert remote.settled == ()


def test_what_comes_of_a_contact_after_the_call_has_ended_is_dropped() -> None:
    assert outcome(Log(message()).lane, RunTools(until=0), SEEN, POLICY, NOW) == []
