"""What the commands that need no agent's code print and do."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from terminal import Place

from outlast import Agent, Outlast
from outlast.testing.scripted import ScriptedModel


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One session that has answered, and one that waits for approval with more in its queue."""
    place = Place(tmp_path_factory.mktemp("shop"))
    done = place.chat("find it", "hello")
    waiting = place.chat("refund it")
    place.run("send", waiting, "and then?")
    place.sessions = {"done": done, "waiting": waiting}  # type: ignore[attr-defined]
    return place


@pytest.fixture
def done(place: Place) -> str:
    return place.sessions["done"]  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def waiting(place: Place) -> str:
    return place.sessions["waiting"]  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def fresh(tmp_path: Path) -> Place:
    return Place(tmp_path)


# Looking


def test_sessions_are_listed_newest_first(place: Place, done: str, waiting: str) -> None:
    lines = place.run("sessions").stdout.splitlines()

    assert lines[0].split() == ["SESSION", "AGENT", "STATUS", "CHANGED", "OFFSET"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [waiting, "support", "waiting"],
        [done, "support", "idle"],
    ]


def test_sessions_are_chosen_by_status_agent_and_number(place: Place, waiting: str) -> None:
    assert [s["session_id"] for s in place.json("sessions", "--status", "waiting")] == [waiting]
    assert [s["session_id"] for s in place.json("sessions", "--limit", "1")] == [waiting]
    assert place.json("sessions", "--agent", "nobody") == []
    assert place.run("sessions", "--agent", "nobody").stdout == "no sessions\n"


async def test_sessions_of_several_tenants_are_told_apart_and_chosen(tmp_path: Path) -> None:
    place = Place(tmp_path)
    agent = Agent("support", ScriptedModel([]))
    store = f"sqlite:///{tmp_path}/outlast.db"
    async with Outlast([agent], store=store, worker=None) as app:
        ours = await app.start("support", "hi", tenant="acme")
        await app.start("support", "hi", tenant="globex")

    header, *lines = place.run("sessions").stdout.splitlines()
    assert header.split() == ["SESSION", "TENANT", "AGENT", "STATUS", "CHANGED", "OFFSET"]
    assert [line.split()[1] for line in lines] == ["globex", "acme"]

    header, line = place.run("sessions", "--tenant", "acme").stdout.splitlines()
    assert "TENANT" not in header
    assert line.split()[:2] == [ours.id, "support"]
    assert [s["tenant"] for s in place.json("sessions", "--tenant", "acme")] == ["acme"]


def test_a_conversation_is_begun_with_tags_and_found_by_them(fresh: Place) -> None:
    tags = "--tag", "customer=42", "--tag", "note=a=b"
    begun = fresh.run("chat", "shop:app", *tags, say="hello")
    fresh.chat("hello")
    [listed] = fresh.json("sessions", *tags)
    shown = fresh.run("show", listed["session_id"]).stdout

    assert begun.returncode == 0
    assert listed["tags"] == {"customer": "42", "note": "a=b"}
    assert "tags       customer=42, note=a=b" in shown
    assert fresh.run("sessions", "--tag", "customer=43").stdout == "no sessions\n"
    for wrong, told in {
        "customer": "a tag is NAME=VALUE, such as customer=42",
        "my customer=42": "'my customer' is no such name",
        "customer=": "a tag customer is a text of 1 to 256 characters",
    }.items():
        for command in (("sessions",), ("chat", "shop:app")):
            refused = fresh.run(*command, "--tag", wrong)
            assert refused.returncode != 0
            assert told in refused.stderr
    resumed = fresh.run("chat", "shop:app", "--session", listed["session_id"], *tags)
    assert "it is for a new session" in resumed.stderr
    assert len(fresh.json("sessions")) == 2


def test_a_list_of_sessions_gives_out_no_tokens(place: Place) -> None:
    assert all("token" not in info for info in place.json("sessions"))


def test_a_waiting_session_shows_what_it_waits_for(place: Place, waiting: str) -> None:
    shown = place.run("show", waiting).stdout

    assert "status     waiting" in shown
    assert "waits for  request" in shown
    assert "May refund run? refund(order=17, cents=500)" in shown
    assert "answer with: approve | deny | approve --args JSON" in shown
    assert "and then?" in shown


def test_a_session_at_rest_shows_its_cost_and_last_answer(place: Place, done: str) -> None:
    shown = place.run("show", done).stdout

    assert "waits for  message" in shown
    assert "used       90 tokens in, 9 out, 3 calls" in shown
    assert shown.endswith("last turn: t2 completed\nYou said: hello\n")


def test_a_session_is_shown_as_json(place: Place, waiting: str) -> None:
    shown = place.json("show", waiting)

    assert shown["status"] == "waiting"
    assert shown["lanes"][0]["waits_for"] == ["request"]
    assert shown["requests"][0]["args"] == {"order": 17, "cents": 500}
    assert [queued["text"] for queued in shown["queue"]] == ["and then?"]
    assert shown["usage"]["own"]["input_tokens"] == 10
    assert shown["continuation_token"]


def test_events_are_printed_one_on_a_line(place: Place, waiting: str) -> None:
    lines = place.run("logs", waiting).stdout.splitlines()

    assert [line.split()[2] for line in lines[:3]] == [
        "session.started",
        "delivery.queued",
        "turn.started",
    ]
    assert any("refund(order=17, cents=500)" in line for line in lines)


def test_events_begin_after_an_offset_and_internal_ones_are_asked_for(
    place: Place, waiting: str
) -> None:
    def read(*args: str) -> list[tuple[int, str]]:
        printed = place.run("logs", waiting, "--json", *args).stdout
        return [(e["offset"], e["type"]) for e in map(json.loads, printed.splitlines())]

    assert read("--after", "4")[0] == (6, "message.completed")
    assert read("--after", "4", "--internals")[0] == (5, "model.started")


def test_an_event_as_json_says_whose_it_is(place: Place, waiting: str) -> None:
    printed = place.run("logs", waiting, "--json").stdout

    assert {json.loads(line)["session_id"] for line in printed.splitlines()} == {waiting}


def test_following_a_log_goes_on_until_it_is_interrupted(fresh: Place) -> None:
    session = fresh.chat("hello")
    with fresh.terminal("logs", session, "-f") as terminal:
        terminal.until("session.waiting")
        fresh.run("send", session, "are you there?")
        terminal.until("are you there?")
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.shown


# Doing


def test_a_message_waits_until_somebody_works(fresh: Place) -> None:
    session = fresh.chat("hello")

    sent = fresh.run("send", session, "again")

    assert sent.stdout.startswith("queued as dlv_")
    assert "no worker is running" in sent.stderr
    assert fresh.work(session).stdout == "> again\nYou said: again\n"


def test_a_message_can_come_from_the_standard_input(fresh: Place) -> None:
    session = fresh.chat("hello")

    fresh.run("send", session, "-", say="from a file")

    assert fresh.json("show", session)["queue"][0]["text"] == "from a file"


def test_the_same_dispatch_is_sent_once(fresh: Place) -> None:
    session = fresh.chat("hello")
    first = fresh.json("send", session, "again", "--dispatch-id", "d1")

    second = fresh.json("send", session, "again", "--dispatch-id", "d1")
    other = fresh.run("send", session, "other", "--dispatch-id", "d1")

    assert second == {**first, "duplicate": True}
    assert other.returncode == 1
    assert "code: DISPATCH_CONFLICT" in other.stderr


def test_a_message_may_have_a_deadline(fresh: Place) -> None:
    session = fresh.chat("hello")

    sent = fresh.json("send", session, "again", "--deadline", "2099-01-31T12:00:00Z")
    late = fresh.run("send", session, "again", "--deadline", "2020-01-31T12:00:00Z")
    vague = fresh.run("send", session, "again", "--deadline", "tomorrow")

    log = map(json.loads, fresh.run("logs", session, "--json").stdout.splitlines())
    *_, queued = [event for event in log if event["type"] == "delivery.queued"]
    assert queued["delivery_id"] == sent["delivery_id"]
    assert queued["data"]["deadline_at"] == "2099-01-31T12:00:00Z"
    assert late.returncode == vague.returncode == 1
    assert "error: the deadline has already passed" in late.stderr
    assert "error: a deadline is an instant: 2099-01-31T12:00:00Z" in vague.stderr


def test_waiting_for_an_answer_prints_it(fresh: Place) -> None:
    session = fresh.chat("hello")
    with fresh.piped("chat", "shop:app", "--session", session) as process:
        assert process.stderr
        assert session in process.stderr.readline()
        sent = fresh.run("send", session, "again", "--wait")
        asked = fresh.run("send", session, "refund it", "--wait", "--json")

    assert sent.stdout == "You said: again\n"
    result = json.loads(asked.stdout)["result"]
    assert result["status"] == "waiting"
    assert result["requests"][0]["tool"] == "refund"


def test_who_does_not_wait_for_the_answer_is_told_where_to_look_for_it(fresh: Place) -> None:
    session = fresh.chat("refund it")
    [request] = fresh.json("show", session)["requests"]
    approve = ("requests", "approve", request["request_id"], "--wait")

    for command in (("send", session, "again", "--wait"), approve):
        with fresh.terminal(*command) as terminal:
            terminal.until("no worker is running")
            terminal.type("\x03")
            terminal.until("dlv_")
            terminal.until(f"look at it with: outlast show {session}\n")
            assert terminal.wait() == 130
        assert "Traceback" not in terminal.shown


def test_a_request_is_answered_by_its_id_alone(fresh: Place) -> None:
    session = fresh.chat("refund it")
    [request] = fresh.json("show", session)["requests"]

    answered = fresh.run(
        "answer", request["request_id"], "approve", "--args", '{"order": 17, "cents": 1}'
    )
    again = fresh.run("answer", request["request_id"], "deny")

    assert answered.stdout.startswith("answered as dlv_")
    assert "code: REQUEST_CLOSED" in again.stderr
    assert "<- refund: gave back 1 for 17" in fresh.work(session).stdout


def test_a_question_is_answered_in_words(fresh: Place) -> None:
    session = fresh.chat("ask me")
    [request] = fresh.json("show", session)["requests"]

    fresh.json("answer", request["request_id"], "--text", "mauve")

    assert "<- ask_question: mauve" in fresh.work(session).stdout


def test_a_turn_is_cancelled_from_outside(fresh: Place) -> None:
    session = fresh.chat("refund it")

    cancelled = fresh.run("cancel", session, "--reason", "wrong customer")
    fresh.work(session)

    assert cancelled.stdout == f"asked {session} to cancel its turn\n"
    assert fresh.json("show", session)["last_turn"]["how"] == "cancelled"
    assert "wrong customer" in fresh.run("logs", session).stdout


def test_a_session_is_ended_for_good_from_outside(fresh: Place) -> None:
    session, other = fresh.chat("refund it"), fresh.chat("refund it")

    ended = fresh.run("end", session, "--reason", "withdrawn")
    fresh.work(session)

    assert ended.stdout == f"asked {session} to end\n"
    assert "note: no worker is running on this store now" in ended.stderr
    assert fresh.json("show", session)["status"] == "ended"
    assert "withdrawn" in fresh.run("logs", session).stdout
    refused = fresh.run("end", session)
    assert (refused.returncode, "code: SESSION_OVER" in refused.stderr) == (1, True)
    assert fresh.json("end", other) == {"session_id": other, "requested": "end"}


def test_a_failed_turn_is_tried_again_without_saying_it_anew(fresh: Place) -> None:
    session = fresh.chat("fail please")
    (fresh.path / "mended").touch()

    fresh.run("retry", session)

    assert fresh.work(session).stdout == "You said: fail please\n"
    refused = fresh.run("retry", session)
    assert refused.returncode == 1
    assert "code: NOTHING_TO_RETRY" in refused.stderr


def test_a_lane_is_named_to_cancel_its_turn_or_try_it_again(fresh: Place) -> None:
    session = fresh.chat("hello")
    fresh.run("send", session, "refund it", "--lane", "side")
    fresh.work(session)

    fresh.run("cancel", session, "--lane", "side")
    fresh.work(session)
    fresh.run("send", session, "fail please", "--lane", "side")
    fresh.work(session)
    (fresh.path / "mended").touch()
    fresh.run("retry", session, "--lane", "side")
    fresh.work(session)

    log = fresh.run("logs", session).stdout.splitlines()
    [cancelled] = [line for line in log if "turn.cancelled" in line]
    *_, completed = [line for line in log if "turn.completed" in line]
    assert "side/t1" in cancelled
    assert "side/t3" in completed


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_a_lane_that_is_not_there_is_not_made_by_naming_it(
    place: Place, done: str, command: str
) -> None:
    ended = place.run(command, done, "--lane", "nope")

    assert ended.returncode == 1
    assert "error: the session has no lane nope" in ended.stderr
    assert [lane["lane"] for lane in place.json("lanes", "--session", done)] == ["main"]


# Verifying


def test_sound_sessions_are_verified(place: Place, done: str) -> None:
    assert place.run("verify").stdout == "2 sessions verified: all sound\n"
    assert place.json("verify", done) == {"sessions": 1, "findings": []}


def test_what_is_wrong_is_told_and_makes_the_command_fail(fresh: Place) -> None:
    session = fresh.chat("hello")
    with closing(sqlite3.connect(fresh.path / "outlast.db", isolation_level=None)) as db:
        db.execute("UPDATE outlast_lanes SET turn = 't9'")

    told, printed = fresh.run("verify"), fresh.run("verify", session, "--json")

    assert told.returncode == printed.returncode == 1
    assert f"{session}: LANE_INDEX: lane main: turn is 't9'" in told.stdout
    assert told.stdout.endswith("1 session verified: 1 finding in 1 of them\n")
    [finding] = json.loads(printed.stdout)["findings"]
    assert finding["code"] == "LANE_INDEX"


def test_a_terminal_is_shown_the_same_in_colour(place: Place, waiting: str) -> None:
    with place.terminal("sessions") as terminal:
        assert terminal.wait() == 0
    assert waiting in terminal.shown
    with place.terminal("verify") as terminal:
        assert terminal.wait() == 0
    assert "2 sessions verified: all sound" in terminal.shown
