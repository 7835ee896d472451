import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scene import Watched, agent, at_standstill, results_of, running, the, types_of, until

from outlast import (
    Agent,
    Context,
    Limits,
    Option,
    Outlast,
    OutlastError,
    Request,
    Session,
    ask_question,
    tool,
)
from outlast.core.instant import date_of
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedReply, call, calls, say

DAY = 86_400_000


class Bank:
    """A tool that needs approval, and what it was asked to do."""

    def __init__(self, **manners: Any) -> None:
        self.paid: list[int] = []
        self.approved_by: list[str] = []

        @tool(**{"approval": "always", **manners})
        async def pay(ctx: Context, cents: int) -> str:
            self.paid.append(cents)
            self.approved_by.append(ctx.approved_by)
            return f"paid {cents}"

        self.pay = pay

    def agent(self, *script: ScriptedReply, **options: Any) -> Agent[Any, Any]:
        return agent(list(script), tools=[self.pay], **options)


def pays(*cents: int) -> ScriptedReply:
    return calls(*(("pay", {"cents": c}) for c in cents))


async def open_requests(session: Session[Any]) -> dict[int, Request]:
    """The open approvals by the amount that they are about."""
    return {q.args["cents"]: q for q in (await session.wait()).requests}


# Approvals


async def test_a_call_that_needs_approval_waits_for_it_with_nothing_in_any_process() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.status == "waiting"
        [request] = result.requests
        assert (request.kind, request.tool, request.args) == ("approval", "pay", {"cents": 5})
        assert [o.id for o in request.options] == ["approve", "deny"]
        assert (await session.info()).lanes[0].worker == ""
        assert bank.paid == []


async def test_an_approved_call_runs_and_knows_who_approved_it() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        await session.answer(asked.requests[0].request_id, "approve", principal="ada")

        assert (await session.wait()).output == "done"
        assert (bank.paid, bank.approved_by) == ([5], ["ada"])


async def test_a_denied_call_never_runs_and_the_model_is_told_why() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("sorry"))) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        await session.answer(asked.requests[0].request_id, "deny", text="too much", principal="ada")
        await session.wait()

        assert bank.paid == []
        assert await results_of(session) == ["Not run: too much."]
        [denied] = await the(session, "tool.denied")
        assert denied.data["principal"] == "ada"


async def test_approved_arguments_may_be_edited_and_the_model_is_told() -> None:
    bank = Bank()
    async with running(bank.agent(pays(500), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        await session.answer(asked.requests[0].request_id, "approve", args={"cents": 5})
        await session.wait()

        assert bank.paid == [5]
        [told] = await results_of(session)
        assert '{"cents":5}' in told
        assert "paid 5" in told


async def test_edited_arguments_are_checked_before_anything_is_written() -> None:
    bank = Bank()
    async with running(bank.agent(pays(500), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        before = (await session.info()).end

        with pytest.raises(OutlastError) as refused:
            await session.answer(asked.requests[0].request_id, "approve", args={"cents": "a few"})

        assert refused.value.code == "INVALID_ANSWER"
        assert (await session.info()).end == before
        assert (await session.wait()).requests == asked.requests


async def test_what_somebody_without_the_code_edits_amiss_is_asked_anew(tmp_path: Path) -> None:
    bank, url = Bank(), f"sqlite:///{tmp_path / 'a.db'}"
    elsewhere = Outlast([], store=url, worker=None)
    async with running(bank.agent(pays(500), say("done")), store=url) as app, elsewhere:
        session = await app.start("a", "go")
        [asked] = (await session.wait()).requests
        there = await elsewhere.session(session.id)
        await there.answer(asked.request_id, "approve", args={"cents": "a few"})
        await until(session, "request.opened", 2)
        [again] = (await session.wait()).requests
        assert again.request_id != asked.request_id
        assert bank.paid == []

        await there.answer(again.request_id, "approve", args={"cents": 5})
        assert (await session.wait()).output == "done"
        assert bank.paid == [5]


async def test_a_turn_that_needs_a_human_says_so_whatever_other_lanes_do() -> None:
    @tool
    async def nap(ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))

    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    def script(request: Any) -> ScriptedReply:
        said = getattr(request.view.messages[-1], "content", None)
        return call(said[0].text) if said else say("done")

    async with running(agent(script, tools=[nap, pay])) as app:
        session = await app.start("a", "nap")
        other = await session.send("pay", lane="other")
        await until(session, "request.opened")
        receipt = await session.send("pay", lane="side")

        result = await asyncio.wait_for(receipt.result(), 30)
        assert (result.status, len(result.requests)) == ("waiting", 1)
        [asked] = result.requests
        await session.answer(asked.request_id, "approve")
        assert (await asyncio.wait_for(receipt.result(), 30)).output == "done"
        assert (await asyncio.wait_for(other.result(), 30)).status == "waiting"
        await session.end()


async def test_several_requests_are_answered_partly_and_in_any_order() -> None:
    bank = Bank()
    async with running(bank.agent(pays(1, 2, 3), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session)

        await session.answer(asked[3].request_id, "approve")
        assert set(await open_requests(session)) == {1, 2}
        assert bank.paid == [3]

        await session.answer(asked[1].request_id, "deny")
        assert set(await open_requests(session)) == {2}

        await session.answer(asked[2].request_id, "approve")
        assert (await session.wait()).output == "done"
        assert bank.paid == [3, 2]
        assert await results_of(session) == ["Not run: a human said no.", "paid 2", "paid 3"]


async def test_what_needs_no_approval_runs_while_others_wait() -> None:
    bank = Bank()

    @tool(readonly=True)
    async def look() -> str:
        return "seen"

    script = [calls(("pay", {"cents": 5}), ("look", {})), say("done")]
    async with running(agent(script, tools=[bank.pay, look])) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.status == "waiting"
        assert [e.data["value"] for e in await the(session, "tool.completed")] == ["seen"]


async def test_an_answer_is_taken_at_once_while_another_tool_runs() -> None:
    bank = Bank()
    may_end = asyncio.Event()

    @tool(readonly=True)
    async def slow() -> str:
        await may_end.wait()
        return "slow"

    script = [calls(("slow", {}), ("pay", {"cents": 5})), say("done")]
    async with running(agent(script, tools=[slow, bank.pay])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        [request] = await session.requests()

        await session.answer(request.request_id, "approve")
        paid = await until(session, "tool.completed")
        assert paid.data["value"] == "paid 5"

        may_end.set()
        assert (await session.wait()).output == "done"


async def test_a_plain_text_sent_while_a_request_is_open_is_a_message_and_no_answer() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("done"), say("hello to you"))) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        hello = await session.send("approve")
        assert (await session.wait()).status == "waiting"

        await session.answer(asked.requests[0].request_id, "approve")
        assert (await hello.result()).output == "hello to you"


async def test_approval_may_depend_on_the_arguments() -> None:
    bank = Bank(approval=lambda args: args["cents"] > 100)
    async with running(bank.agent(pays(50, 500), say("done"))) as app:
        session = await app.start("a", "go")

        assert set(await open_requests(session)) == {500}
        assert bank.paid == [50]


async def test_a_grant_once_holds_for_the_same_arguments_in_the_same_session() -> None:
    bank = Bank(approval="once")
    async with running(bank.agent(pays(5), pays(5), pays(6), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session)
        await session.answer(asked[5].request_id, "approve")

        assert set(await open_requests(session)) == {6}
        assert bank.paid == [5, 5]


async def test_a_grant_once_holds_in_all_lanes_of_the_session() -> None:
    bank = Bank(approval="once")
    async with running(bank.agent(pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session)
        await session.answer(asked[5].request_id, "approve")
        await session.wait()
        await (await session.send("go", lane="notes")).result()

        assert bank.paid == [5, 5]
        assert len(await the(session, "request.opened")) == 1
        assert await verify(app.store, session.id) == []


async def test_a_grant_once_is_for_the_arguments_that_the_human_saw_and_no_others() -> None:
    bank = Bank(approval="once")
    async with running(bank.agent(pays(500), pays(5), pays(500), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session)
        await session.answer(asked[500].request_id, "approve", args={"cents": 5})

        assert set(await open_requests(session)) == {500}
        assert bank.paid == [5, 5]


async def test_a_grant_once_does_not_hold_for_a_denied_call() -> None:
    bank = Bank(approval="once")
    async with running(bank.agent(pays(5), pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session)
        await session.answer(asked[5].request_id, "deny")

        assert set(await open_requests(session)) == {5}


async def test_the_same_answer_with_the_same_dispatch_id_returns_the_first_receipt() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        first = await session.answer(request.request_id, "approve", dispatch_id="click")
        again = await session.answer(request.request_id, "approve", dispatch_id="click")

        assert again.delivery_id == first.delivery_id
        assert again.duplicate
        await session.wait()
        assert bank.paid == [5]


async def test_the_first_of_two_answers_wins() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "deny")

        with pytest.raises(OutlastError) as refused:
            await session.answer(request.request_id, "approve")
        assert refused.value.code == "REQUEST_CLOSED"
        await session.wait()
        assert bank.paid == []


# Where nobody can be asked


async def test_without_anybody_to_ask_a_call_that_needs_approval_is_denied() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("sorry"))) as app:
        session = await app.start("a", "go", capabilities={"request_input": False})
        assert (await session.wait()).output == "sorry"

        assert bank.paid == []
        [told] = await results_of(session)
        assert "nobody can be asked" in told
        assert await the(session, "request.opened") == []


async def test_the_model_is_offered_to_ask_only_where_somebody_can_be_asked() -> None:
    model = Watched([say("done"), say("done")])
    async with running(Agent("a", model, tools=[ask_question])) as app:
        await (await app.start("a", "go")).wait()
        await (await app.start("a", "go", capabilities={"request_input": False})).wait()

    offered = [[spec.name for spec in request.tools] for request in model.requests]
    assert offered == [["ask_question"], []]


async def test_without_anybody_to_ask_a_question_of_a_tool_fails_it() -> None:
    script = [call("ask_question", question="Which?"), say("sorry")]
    async with running(agent(script, tools=[ask_question])) as app:
        session = await app.start("a", "go", capabilities={"request_input": False})
        await session.wait()

        assert await results_of(session) == ["TOOL_ERROR: nobody can be asked in this session"]


# Questions


async def test_the_model_may_ask_the_human_a_question() -> None:
    script = [call("ask_question", question="Which?", options=["tea", "cup"]), say("tea it is")]
    async with running(agent(script, tools=[ask_question])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        assert (request.kind, request.prompt) == ("question", "Which?")
        assert request.options == (Option("tea", "tea"), Option("cup", "cup"))

        await session.answer(request.request_id, "tea")
        assert (await session.wait()).output == "tea it is"
        assert await results_of(session) == ["tea"]


async def test_a_question_may_be_answered_in_ones_own_words() -> None:
    script = [call("ask_question", question="Which?", options=["tea"]), say("done")]
    async with running(agent(script, tools=[ask_question])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, text="coffee")
        await session.wait()

        assert await results_of(session) == ["coffee"]


async def test_a_tool_may_ask_several_questions_one_after_the_other() -> None:
    @tool
    async def survey(ctx: Context) -> list[str]:
        return [(await ctx.ask(question)).text for question in ("Name?", "Age?")]

    async with running(agent([call("survey"), say("done")], tools=[survey])) as app:
        session = await app.start("a", "go")
        for expected, said in (("Name?", "Ada"), ("Age?", "36")):
            [request] = (await session.wait()).requests
            assert request.prompt == expected
            await session.answer(request.request_id, text=said)
        await session.wait()

        assert await results_of(session) == ['["Ada","36"]']


async def test_a_question_that_nobody_answers_in_time_fails_its_tool() -> None:
    @tool
    async def ask(ctx: Context) -> str:
        return (await ctx.ask("Well?", timeout=timedelta(days=1))).text

    async with at_standstill(agent([call("ask"), say("sorry")], tools=[ask])) as (app, clock):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        assert request.expires_at == date_of(clock.now() + DAY)

        clock.advance(DAY)
        with pytest.raises(OutlastError) as refused:
            await session.answer(request.request_id, text="late")
        await until(session, "turn.completed")

        assert refused.value.code == "REQUEST_CLOSED"
        assert "request.expired" in await types_of(session)
        assert await results_of(session) == ["TOOL_ERROR: nobody answered in time"]


async def test_a_week_of_waiting_for_a_human_uses_none_of_the_turns_time() -> None:
    bank = Bank()
    slow = bank.agent(pays(5), say("done"), limits=Limits(turn_timeout=60))
    async with at_standstill(slow) as (app, clock):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        clock.advance(7 * DAY)
        await session.answer(request.request_id, "approve")

        assert (await session.wait()).output == "done"


async def test_waiting_and_going_on_are_told_to_readers() -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve")
        await session.wait()

        first, last = await the(session, "session.waiting")
        assert first.data["wait"] == ("request",)
        assert first.data["requests"] == (request.request_id,)
        assert last.data["wait"] == ("message",)
        assert len(await the(session, "session.resumed")) == 1


# Answers that make no sense


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("maybe", {}),
        (None, {}),
        (None, {"text": "yes please"}),
        ("deny", {"args": {"cents": 1}}),
    ],
)
async def test_an_answer_that_makes_no_sense_is_refused(
    option: str | None, options: dict[str, Any]
) -> None:
    bank = Bank()
    async with running(bank.agent(pays(5), say("done"))) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests

        with pytest.raises(OutlastError) as refused:
            await session.answer(request.request_id, option, **options)
        assert refused.value.code == "INVALID_ANSWER"


async def test_an_answer_to_a_request_that_never_was_is_refused() -> None:
    async with running(Bank().agent(pays(5), say("done"))) as app:
        session, other = await app.start("a", "go"), await app.start("a", "go")
        [request] = (await other.wait()).requests

        for name in ("req_none", request.request_id):
            with pytest.raises(OutlastError) as refused:
                await session.answer(name, "approve")
            assert refused.value.code == "UNKNOWN_REQUEST"


# Calls that repeat one whose outcome nobody knows


async def test_a_repeat_of_a_call_of_unknown_outcome_asks_for_approval() -> None:
    ran: list[int] = []

    @tool(timeout=0.01)
    async def pay(cents: int) -> str:
        ran.append(cents)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "paid"

    script = [pays(5), pays(5), say("done")]
    async with running(agent(script, tools=[pay])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests

        assert "may have happened already, as t1.s1.c1" in request.prompt
        assert ran == [5]
        *_, repeated = await the(session, "tool.requested")
        assert repeated.data["repeats"] == "t1.s1.c1"

        await session.answer(request.request_id, "approve")
        await session.wait()
        assert ran == [5, 5]


async def test_other_arguments_are_no_repeat() -> None:
    ran: list[int] = []

    @tool(timeout=0.01)
    async def pay(cents: int) -> str:
        ran.append(cents)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "paid"

    async with running(agent([pays(5), pays(6), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"


async def test_the_log_says_who_approved_which_arguments_and_when() -> None:
    bank = Bank()
    async with running(bank.agent(pays(500, 7), say("done"))) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session)
        await session.answer(asked[500].request_id, "approve", args={"cents": 5}, principal="ada")
        await session.answer(asked[7].request_id, "approve", principal="bob")
        await session.wait()

        resolved = {
            event.data["principal"]: event for event in await the(session, "request.resolved")
        }
        assert resolved["bob"].data["digest"] == asked[7].digest
        assert resolved["ada"].data["digest"] not in ("", asked[500].digest)
        assert resolved["ada"].at <= resolved["bob"].at
