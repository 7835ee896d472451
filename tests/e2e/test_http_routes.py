"""What each route does, as its caller sees it."""

from __future__ import annotations

from typing import Any

from http_scene import FAST, OUTSIDE, scene
from msgspec.structs import replace

from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock

HOUR = 3_600_000
AN_HOUR_LATER = "2023-11-14T23:13:20Z"
"""Where a manual clock begins, and an hour."""
WRONG_DEADLINES = ("2000-01-31T12:00:00Z", "2099-01-31T12:00:00", "tomorrow", "", 7, True)


async def test_a_session_is_started_once_and_says_where_it_is() -> None:
    async with scene() as bank, bank.caller() as caller:
        body = {"agent": "teller", "message": "hello", "dispatch_id": "one"}

        first = await caller.post("/v1/sessions", json=body)
        again = await caller.post("/v1/sessions", json=body)

        started = first.json()
        session = started["session_id"]
        assert first.status_code == again.status_code == 202
        assert first.headers["location"] == f"{OUTSIDE}/v1/sessions/{session}"
        assert started["stream_url"] == f"{OUTSIDE}/v1/sessions/{session}/stream"
        assert started["continuation_token"]
        assert not started["duplicate"]
        assert again.json() == {**started, "duplicate": True}
        assert (await caller.result(session))["output"] == "You said: hello"


async def test_other_content_under_the_same_dispatch_is_a_conflict() -> None:
    async with scene() as bank, bank.caller() as caller:
        await caller.start("hello", dispatch_id="one")

        body = {"agent": "teller", "message": "good bye", "dispatch_id": "one"}
        code = await caller.refused("POST", "/sessions", 409, json=body)

        assert code == "DISPATCH_CONFLICT"


async def test_a_message_may_have_parts() -> None:
    async with scene() as bank, bank.caller() as caller:
        parts = [
            "look: ",
            {"kind": "text", "text": "this"},
            {"kind": "image", "data": "aGk="},
            {"kind": "file", "url": "https://bank.example/a.pdf", "name": "a.pdf"},
        ]
        body = {"agent": "teller", "message": parts, "mode": "task", "lane": "main"}
        started = await caller.ask("POST", "/sessions", 202, json=body)

        [said] = [
            event
            for event in await caller.events(started["session_id"])
            if event["type"] == "delivery.queued"
        ]

        assert [part["kind"] for part in said["data"]["content"]] == [
            "text",
            "text",
            "image",
            "file",
        ]
        assert said["data"]["content"][2]["data"] == "aGk="


async def test_sessions_are_listed_in_pages_newest_first() -> None:
    async with scene() as bank, bank.caller() as caller:
        ids = [(await caller.start(f"hello {n}"))["session_id"] for n in range(5)]

        first = await caller.ask("GET", "/sessions?limit=3&agent=teller&status=idle")
        rest = await caller.ask("GET", f"/sessions?limit=3&cursor={first['next_cursor']}")
        none = await caller.ask("GET", "/sessions?status=failed")

        seen = [*first["sessions"], *rest["sessions"]]
        assert [each["session_id"] for each in seen] == ids[::-1]
        assert rest["next_cursor"] is None
        assert none == {"sessions": [], "next_cursor": None}


async def test_a_session_says_what_it_waits_for_and_what_it_has_cost() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start("refund"))["session_id"]

        shown = await caller.ask("GET", f"/sessions/{session}")

        [wait] = shown["waits"]
        [request] = shown["requests"]
        assert (shown["status"], shown["agent"], shown["mode"]) == (
            "waiting",
            "teller",
            "conversation",
        )
        assert (wait["lane"], wait["wait"], wait["until"]) == ("main", ["request"], None)
        assert shown["created_at"] <= wait["since"] <= shown["updated_at"]
        assert request["action"] == {
            "call_id": "t1.s1.c1",
            "tool": "refund",
            "args": {"order": 17, "cents": 500},
        }
        assert [option["id"] for option in request["options"]] == ["approve", "deny"]
        assert shown["usage"]["own"]["output_tokens"] > 0
        lane = {"lane": "main", "status": "waiting", "turn": "t1", "queued": 0, "failure": None}
        assert shown["lanes"] == [{**lane, "wait": ["request"]}]
        told = shown["waiting_for"]
        assert (told["kind"], told["since"], told["error"]) == ("request", wait["since"], None)
        assert (shown["lineage"], shown["deadline"], shown["over"]) == ([], None, None)


async def test_a_deadline_is_an_instant_in_the_future() -> None:
    async with scene() as bank, bank.caller() as caller:
        started = await caller.start("hello", deadline="2099-01-31T12:00:00+01:00")
        shown = await caller.ask("GET", f"/sessions/{started['session_id']}")

        assert shown["deadline"] == "2099-01-31T11:00:00.000Z"
        for wrong in WRONG_DEADLINES:
            body = {"agent": "teller", "message": "hello", "deadline": wrong}
            assert await caller.refused("POST", "/sessions", 422, json=body) == "INVALID_INPUT"


async def test_an_erased_session_is_gone_and_its_dispatch_is_not_started_again() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start("hello", dispatch_id="one"))["session_id"]

        await caller.ask("DELETE", f"/sessions/{session}", 204)

        assert await caller.refused("GET", f"/sessions/{session}", 404) == "UNKNOWN_SESSION"
        assert await caller.refused("DELETE", f"/sessions/{session}", 404) == "UNKNOWN_SESSION"
        body = {"agent": "teller", "message": "hello", "dispatch_id": "one"}
        assert await caller.refused("POST", "/sessions", 409, json=body) == "SESSION_ERASED"


async def test_a_message_gets_a_receipt_and_the_same_again_the_same() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]
        body = {"message": "and now", "dispatch_id": "two"}

        sent = await caller.ask("POST", f"/sessions/{session}/deliveries", 202, json=body)
        again = await caller.ask("POST", f"/sessions/{session}/deliveries", 202, json=body)

        assert set(sent) == {
            "session_id",
            "delivery_id",
            "lane",
            "offset",
            "position",
            "duplicate",
        }
        assert again["delivery_id"] == sent["delivery_id"]
        assert (sent["duplicate"], again["duplicate"]) == (False, True)
        result = await caller.result(session, sent["delivery_id"])
        assert (result["status"], result["output"]) == ("completed", "You said: and now")


async def test_a_turn_fails_at_the_deadline_of_its_message_and_the_session_goes_on() -> None:
    clock = ManualClock()
    patient = replace(FAST, lease=HOUR)
    given: dict[str, Any] = {"store": MemoryStore(clock), "clock": clock, "worker": patient}
    async with scene(**given) as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]
        path = f"/sessions/{session}/deliveries"
        body = {"message": "bank", "deadline": AN_HOUR_LATER}
        late = await caller.ask("POST", path, 202, json=body)
        await bank.until(session, "tool.waiting")

        clock.advance(HOUR)

        result = await caller.result(session, late["delivery_id"])
        assert (result["status"], result["error"]["code"]) == ("failed", "DEADLINE_EXCEEDED")
        sent = await caller.ask("POST", path, 202, json={"message": "well?"})
        assert (await caller.result(session, sent["delivery_id"]))["output"] == "You said: well?"


async def test_a_messages_deadline_is_an_instant_in_the_future_and_no_answers() -> None:
    async with scene() as bank, bank.caller() as caller:
        started = await caller.start("refund")
        path = f"/sessions/{started['session_id']}/deliveries"
        [asked] = (await caller.ask("GET", "/requests"))["requests"]
        answer = {"request_id": asked["request_id"], "option": "approve"}
        bodies: list[dict[str, Any]] = [
            {"message": "hello", "deadline": wrong} for wrong in WRONG_DEADLINES
        ]
        bodies.append({"answers": [answer], "deadline": "2099-01-31T12:00:00Z"})

        for body in bodies:
            assert await caller.refused("POST", path, 422, json=body) == "INVALID_INPUT"

        queued = [e for e in await caller.events(started["session_id"]) if "queued" in e["type"]]
        assert [e["delivery_id"] for e in queued] == [started["delivery_id"]]


async def test_the_same_dispatch_with_another_deadline_is_the_same_and_keeps_its_first() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]
        path = f"/sessions/{session}/deliveries"
        body = {"message": "and now", "dispatch_id": "two", "deadline": "2099-01-31T12:00:00Z"}

        sent = await caller.ask("POST", path, 202, json=body)
        other = {**body, "deadline": "2099-06-30T12:00:00Z"}
        again = await caller.ask("POST", path, 202, json=other)

        assert again == {**sent, "duplicate": True}
        *_, queued = [e for e in await caller.events(session) if e["type"] == "delivery.queued"]
        assert queued["data"]["deadline_at"] == "2099-01-31T12:00:00.000Z"


async def test_a_delivery_is_either_a_message_or_answers() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]
        answers = [{"request_id": "req_1", "option": "approve"}]

        body: dict[str, Any]
        for body in (
            {},
            {"message": "a", "answers": answers},
            {"answers": []},
            {"answers": answers, "lane": "other"},
        ):
            path = f"/sessions/{session}/deliveries"
            assert await caller.refused("POST", path, 422, json=body) == "INVALID_INPUT"


async def test_several_requests_are_answered_in_one_delivery() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start("two"))["session_id"]
        asked = (await caller.ask("GET", f"/sessions/{session}"))["requests"]
        answers = [{"request_id": each["request_id"], "option": "approve"} for each in asked]
        body = {"answers": answers, "dispatch_id": "yes"}

        path = f"/sessions/{session}/deliveries"
        sent = await caller.ask("POST", path, 202, json=body)
        again = await caller.ask("POST", path, 202, json=body)

        assert [each["duplicate"] for each in sent["deliveries"]] == [False, False]
        assert [each["duplicate"] for each in again["deliveries"]] == [True, True]
        assert (await caller.result(session))["output"] == "That is done."


async def test_of_several_answers_those_before_the_first_wrong_one_stand() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start("two"))["session_id"]
        first, second = (await caller.ask("GET", f"/sessions/{session}"))["requests"]
        answers = [
            {"request_id": first["request_id"], "option": "approve"},
            {"request_id": second["request_id"], "option": "perhaps"},
        ]

        path = f"/sessions/{session}/deliveries"
        body = {"answers": answers}
        error = (await caller.ask("POST", path, 422, json=body))["error"]

        assert error["code"] == "INVALID_ANSWER"
        assert error["details"]["request"] == second["request_id"]
        assert len(error["details"]["accepted"]) == 1
        left = await caller.ask("GET", f"/requests?session_id={session}")
        assert [each["request_id"] for each in left["requests"]] == [second["request_id"]]


async def test_a_token_resumes_a_session_or_starts_one_where_an_agent_is_named() -> None:
    async with scene() as bank, bank.caller() as caller:
        body = {"continuation_token": "mine", "message": "hello"}
        assert await caller.refused("POST", "/deliver", 409, json=body) == "NO_ACTIVE_SESSION"

        begun = await caller.ask("POST", "/deliver", 202, json={**body, "agent": "teller"})
        again = await caller.ask("POST", "/deliver", 202, json=body)

        assert begun["session_id"] == again["session_id"]
        assert begun["continuation_token"] == "mine"
        await caller.ask("POST", f"/sessions/{begun['session_id']}/end", 202)
        await caller.result(begun["session_id"])
        assert await caller.refused("POST", "/deliver", 409, json=body) == "NO_ACTIVE_SESSION"


async def test_a_turn_is_cancelled_and_the_session_goes_on() -> None:
    async with scene() as bank, bank.caller() as caller:
        body = {"agent": "teller", "message": "hang"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        await bank.until(session, "tool.started")

        cancel = f"/sessions/{session}/cancel"
        await caller.ask("POST", cancel, 202, json={"turn": "t9"})
        await caller.ask("POST", cancel, 202, json={"reason": "too slow", "turn": "t1"})

        assert (await caller.result(session))["status"] == "cancelled"
        [ended] = [e for e in await caller.events(session) if e["type"] == "turn.cancelled"]
        assert (ended["turn"], ended["data"]["reason"]) == ("t1", "too slow")
        sent = await caller.ask(
            "POST", f"/sessions/{session}/deliveries", 202, json={"message": "hello"}
        )
        assert (await caller.result(session, sent["delivery_id"]))["status"] == "completed"


async def test_a_session_that_was_ended_takes_nothing_more() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]

        await caller.ask("POST", f"/sessions/{session}/end", 202, json={"reason": "enough"})
        await caller.result(session)

        path = f"/sessions/{session}/deliveries"
        assert await caller.refused("POST", path, 409, json={"message": "a"}) == "SESSION_OVER"
        assert (await caller.ask("GET", f"/sessions/{session}"))["over"] == "ended"


async def test_a_failed_turn_is_tried_again_and_no_other() -> None:
    async with scene() as bank, bank.caller() as caller:
        fine = (await caller.start())["session_id"]
        failed = (await caller.start("fail"))["session_id"]
        result = await caller.result(failed)

        receipt = await caller.ask("POST", f"/sessions/{failed}/retry", 202)

        assert (result["status"], result["error"]["code"]) == ("failed", "SCRIPTED")
        assert receipt["delivery_id"]
        code = await caller.refused("POST", f"/sessions/{fine}/retry", 409)
        assert code == "NOTHING_TO_RETRY"


async def test_history_is_the_conversation_without_what_is_the_providers_own() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start("ask"))["session_id"]

        history = await caller.ask("GET", f"/sessions/{session}/history")

        user, answer = history["messages"]
        assert user == {"type": "user", "content": [{"kind": "text", "text": "ask"}]}
        [part] = answer["parts"]
        assert (part["kind"], part["tool"]) == ("tool_call", "ask_question")
        assert set(part) == {"kind", "call_id", "tool", "args"}
        path = f"/sessions/{session}/history?lane=other"
        assert await caller.refused("GET", path, 404) == "UNKNOWN_LANE"


async def test_a_result_that_is_not_there_yet_is_told_as_running() -> None:
    async with scene() as bank, bank.caller() as caller:
        body = {"agent": "teller", "message": "hang"}
        started = await caller.ask("POST", "/sessions", 202, json=body)
        session, delivery = started["session_id"], started["delivery_id"]

        now = await caller.ask("GET", f"/sessions/{session}/result", 202)
        soon = await caller.ask("GET", f"/sessions/{session}/result?wait=1", 202)
        of_delivery = await caller.ask(
            "GET", f"/sessions/{session}/result?delivery_id={delivery}", 202
        )

        assert now["status"] == soon["status"] == of_delivery["status"] == "running"
        other = (await caller.start())["delivery_id"]
        for unknown in ("dlv_unknown", other):
            for wait in (0, 1):
                path = f"/sessions/{session}/result?wait={wait}&delivery_id={unknown}"
                assert await caller.refused("GET", path, 404) == "UNKNOWN_DELIVERY"


async def test_open_requests_are_listed_across_sessions_and_answered_once() -> None:
    async with scene() as bank, bank.caller() as caller:
        first = (await caller.start("refund"))["session_id"]
        second = (await caller.start("ask"))["session_id"]

        every = (await caller.ask("GET", "/requests"))["requests"]
        page = await caller.ask("GET", "/requests?limit=1")
        rest = await caller.ask("GET", f"/requests?limit=1&cursor={page['next_cursor']}")
        questions = (await caller.ask("GET", "/requests?kind=question"))["requests"]
        of_first = (await caller.ask("GET", f"/requests?session_id={first}"))["requests"]

        assert {each["session_id"] for each in every} == {first, second}
        assert [*page["requests"], *rest["requests"]] == every
        assert [each["session_id"] for each in questions] == [second]
        [asked] = of_first
        answer = {"option": "approve", "args": {"order": 17, "cents": 400}}
        await caller.ask("POST", f"/requests/{asked['request_id']}", 202, json=answer)
        await caller.result(first)
        returned = [e for e in await caller.events(first) if e["type"] == "tool.completed"]
        assert returned[0]["data"]["value"] == "gave back 400 for 17"
        path = f"/requests/{asked['request_id']}"
        assert await caller.refused("POST", path, 409, json=answer) == "REQUEST_CLOSED"
        assert await caller.refused("POST", "/requests/x", 404, json=answer) == "UNKNOWN_REQUEST"


async def test_an_answer_that_does_not_fit_is_refused_and_the_request_stays_open() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start("refund"))["session_id"]
        [asked] = (await caller.ask("GET", "/requests"))["requests"]
        path = f"/requests/{asked['request_id']}"

        for answer in ({}, {"option": "perhaps"}, {"option": "approve", "args": {"order": "x"}}):
            assert await caller.refused("POST", path, 422, json=answer) == "INVALID_ANSWER"

        shown = await caller.ask("GET", f"/sessions/{session}")
        assert len(shown["requests"]) == 1
