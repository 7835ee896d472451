"""Conversations on the command line, through a pipe and at a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminal import Place

HUB = """
from outlast import Agent, Connection, ConnectionSettings, Context, Outlast, tool
from outlast.testing import ScriptedModel, call

@tool
async def look(ctx: Context) -> str:
    return await ctx.require_auth("hub")

app = Outlast(
    [Agent("a", ScriptedModel([call("look")]), tools=[look])],
    connections=ConnectionSettings(
        [
            Connection(
                "hub",
                authorize_url="https://hub.example/authorize",
                token_url="https://hub.example/token",
                client_id="shop",
            )
        ],
        secret_key="a key that is long enough for tests",
    ),
    public_url="https://shop.example",
)
"""
"""An app whose tool needs somebody to sign in first."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_lines_go_in_and_answers_come_out(place: Place) -> None:
    ended = place.run("chat", "shop:app", "support", say="hello\nfind it\n")

    assert ended.returncode == 0
    assert ended.stdout.splitlines() == [
        "You said: hello",
        '-> find_order(customer="Ada")',
        '<- find_order: {"order":17,"cents":500}',
        "That is done.",
    ]


def test_an_approval_is_asked_for_and_given_by_a_line(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="refund it\napprove\n")

    assert ended.stdout.splitlines() == [
        "Let me see.",
        "-> refund(order=17, cents=500)",
        "? May refund run? refund(order=17, cents=500)",
        "  approve, deny [REASON] or edit {JSON ARGUMENTS}",
        "<- refund: gave back 500 for 17",
        "That is done.",
    ]


def test_who_talks_is_whom_the_session_acts_for_and_who_answers(place: Place) -> None:
    ended = place.run(
        "chat", "shop:app", "--principal", "ada", "--json", say="refund it\napprove\nfind it\n"
    )

    events = [json.loads(line) for line in ended.stdout.splitlines()]
    [started] = [e["data"] for e in events if e["type"] == "session.started"]
    _, answer, later = [e["data"] for e in events if e["type"] == "delivery.queued"]
    assert (started["principal"], answer["principal"], later["principal"]) == ("ada", "ada", "ada")


def test_arguments_are_edited_before_a_call_runs(place: Place) -> None:
    ended = place.run(
        "chat",
        "shop:app",
        say='refund it\nedit [1]\nedit {"order": 17, "cents": 18446744073709551616}\n'
        'edit {"order": 1, "order": 17, "cents": 3}\nedit {"order": 17, "cents": 3}\n',
    )

    said = ended.stdout
    assert "write the arguments as JSON" in said
    assert "it is a list, and it has to be an object" in said
    assert "an integer of more than 64 bits" in said
    assert "the name 'order' stands twice" in said
    assert "<- refund: gave back 3 for 17" in ended.stdout


def test_arguments_that_a_tool_cannot_take_are_asked_for_again(place: Place) -> None:
    ended = place.run("chat", "shop:app", say='refund it\nedit {"order": "x"}\ndeny\n')

    assert "<- refund: denied" in ended.stdout


def test_a_denial_tells_its_reason(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="refund it\nperhaps\ndeny too much\n")

    assert "say one of: approve, deny" in ended.stdout
    assert "<- refund: denied: too much" in ended.stdout


def test_several_requests_are_asked_one_after_the_other(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="two refunds\ny\nn\n")

    assert ended.stdout.count("? May refund run?") == 2
    assert "<- refund: gave back 500 for 1" in ended.stdout
    assert "<- refund: denied" in ended.stdout


def test_a_question_takes_an_option_or_words(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="ask me\nRed\nask me\nsomething greenish\n")

    assert "<- ask_question: red" in ended.stdout
    assert "<- ask_question: something greenish" in ended.stdout


def test_a_request_that_nobody_answered_stays_open_and_is_asked_again(place: Place) -> None:
    session = place.chat("refund it")

    ended = place.run("chat", "shop:app", "--session", session, say="approve\n")

    assert ended.stdout.splitlines() == [
        "> refund it",
        "Let me see.",
        "-> refund(order=17, cents=500)",
        "? May refund run? refund(order=17, cents=500)",
        "  approve, deny [REASON] or edit {JSON ARGUMENTS}",
        "<- refund: gave back 500 for 17",
        "That is done.",
    ]


def test_a_session_goes_on_where_it_was_left(place: Place) -> None:
    session = place.chat("hello")

    ended = place.run("chat", "shop:app", "support", "--session", session, say="again\n")

    assert ended.stdout == "You said: again\n"
    assert [info["session_id"] for info in place.json("sessions")] == [session]


def test_a_failed_turn_is_told_and_makes_the_command_fail(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="fail please\n")

    assert ended.returncode == 1
    assert ended.stdout == "failed: SCRIPTED: the shop is closed\n"
    assert "turn t1 of" not in ended.stderr


def test_a_session_that_is_over_ends_the_conversation(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="break it\nhello?\n")

    assert ended.returncode == 1
    assert ended.stdout.splitlines() == [
        "failed: SCRIPTED: there is no such shop",
        "(the session is failed)",
    ]


def test_a_turn_is_cancelled_by_a_line(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="hang on\n/cancel\nhello\n")

    assert ended.stdout.splitlines()[-2:] == ["(cancelled)", "You said: hello"]


def test_an_unknown_command_is_told_the_known_ones_and_not_said(place: Place) -> None:
    lines = ["/help", "hello", "ask me", "/red", "blue", "/etc/hosts is gone"]

    ended = place.run("chat", "shop:app", say="\n".join(lines))

    for word in ("/help", "/red"):
        assert f"there is no {word}: /cancel stops an answer, /quit leaves\n" in ended.stderr
    assert [line for line in ended.stdout.splitlines() if "ou said" in line or "<-" in line] == [
        "You said: hello",
        "<- ask_question: blue",
        "You said: /etc/hosts is gone",
    ]


def test_a_cancel_where_nothing_runs_says_so(place: Place) -> None:
    with place.terminal("chat", "shop:app") as terminal:
        terminal.until("> ")
        terminal.type("/cancel\n")
        terminal.until("nothing runs that could be cancelled\n> ")
        terminal.type("hello\n")
        terminal.until("You said: hello\n> ")
        terminal.type("/cancel\n")
        terminal.until("nothing runs that could be cancelled\n> ")


def test_a_turn_that_waits_for_a_sign_in_is_cancelled_at_the_prompt(place: Place) -> None:
    (place.path / "hub.py").write_text(HUB)
    with place.terminal("chat", "hub:app") as terminal:
        terminal.until("> ")
        terminal.type("look\n")
        terminal.until("sign in to hub: https://hub.example/")
        terminal.until("\n> ")
        terminal.type("/cancel\n")
        terminal.until("(cancelled)\n> ")


def test_quitting_leaves_the_rest_unsaid(place: Place) -> None:
    ended = place.run("chat", "shop:app", say="hello\n/quit\nmore\n")

    assert ended.returncode == 0
    assert ended.stdout == "You said: hello\n"


def test_events_are_printed_as_json_lines(place: Place) -> None:
    ended = place.run("chat", "shop:app", "--json", say="refund it\napprove\n")

    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [e["type"] for e in events][:2] == ["session.started", "delivery.queued"]
    assert "model.started" not in {e["type"] for e in events}
    assert [e["data"]["value"] for e in events if e["type"] == "tool.completed"] == [
        "gave back 500 for 17"
    ]


def test_what_others_do_with_the_session_is_shown(place: Place) -> None:
    session = place.chat("refund it")
    [request] = place.json("show", session)["requests"]
    with place.piped("chat", "shop:app", "--session", session) as process:
        assert process.stdout
        assert process.stdin
        while "? May" not in process.stdout.readline():
            pass
        place.run("answer", request["request_id"], "approve")
        while "That is done." not in (line := process.stdout.readline()):
            assert line
        place.run("send", session, "hello")
        assert process.stdout.readline() == "> hello\n"
        assert process.stdout.readline() == "You said: hello\n"
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_terminal_shows_a_prompt_and_streams_the_answer(place: Place) -> None:
    with place.terminal("chat", "shop:app") as terminal:
        terminal.until("> ")
        terminal.type("refund it\n")
        terminal.until("? May refund run?")
        terminal.until("> ")
        terminal.type("approve\n")
        terminal.until("<- refund: gave back 500 for 17")
        terminal.until("That is done.\n> ")
        terminal.type("/quit\n")
        assert terminal.wait() == 0


def test_the_end_of_input_at_a_terminal_leaves(place: Place) -> None:
    with place.terminal("chat", "shop:app") as terminal:
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.wait() == 0


def test_an_interrupt_cancels_the_turn_and_at_the_prompt_it_leaves(place: Place) -> None:
    with place.terminal("chat", "shop:app") as terminal:
        terminal.until("> ")
        terminal.type("hang on\n")
        terminal.until("-> wait_for_ever()")
        terminal.type("\x03")
        terminal.until("(cancelled)\n> ")
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.shown


def test_control_characters_in_an_answer_do_not_reach_the_terminal(place: Place) -> None:
    place.run("chat", "shop:app", say="red \x1b]0;owned\x07 alert\n")
    [info] = place.json("sessions")
    with place.terminal("show", info["session_id"]) as terminal:
        assert terminal.wait() == 0
    assert "red \\u001b]0;owned\\u0007 alert" in terminal.shown
