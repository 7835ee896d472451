"""Who may answer for a tool: asked where an answer is given, and again where it is taken."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scene import at_standstill, running, the, until

from outlast import Agent, Approval, Context, Outlast, OutlastError, Request, Session, tool
from outlast.errors import StillWaiting
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say


class Bank:
    """A tool that needs approval, and who has given it."""

    def __init__(self, **rules: Any) -> None:
        self.approved_by: list[str] = []

        @tool(approval=Approval("always", **rules))
        async def pay(ctx: Context, cents: int = 5) -> str:
            self.approved_by.append(ctx.approved_by)
            return f"paid {cents}"

        self.pay = pay

    def agent(self, *script: ScriptedReply, **options: Any) -> Agent[Any, Any]:
        model = ScriptedModel(list(script) or [call("pay"), say("done")])
        return Agent("a", model, tools=[self.pay], **options)


def only_the_cfo(who: str) -> bool:
    return who == "cfo"


async def code_of(answer: Awaitable[Any]) -> str:
    with pytest.raises(OutlastError) as refused:
        await answer
    return refused.value.code


async def asked_of(session: Session[Any]) -> Request:
    [request] = (await session.wait()).requests
    return request


async def test_only_approvers_may_approve() -> None:
    bank = Bank(approvers=lambda who: who in ("ada", "bob"))
    async with running(bank.agent()) as app:
        session = await app.start("a", "go", principal="cy")
        request = await asked_of(session)
        for principal in ("", "cy", "eve"):
            answer = session.answer(request, "approve", principal=principal)
            assert await code_of(answer) == "NOT_AN_APPROVER"
        assert await asked_of(session) == request
        await session.answer(request, "approve", principal="ada")

        assert (await session.wait()).output == "done"
        assert bank.approved_by == ["ada"]


async def test_approvers_may_be_looked_up_by_a_function_that_waits() -> None:
    async def look_up(who: str) -> bool:
        return only_the_cfo(who)

    bank = Bank(approvers=lambda who: look_up(who))
    async with running(bank.agent()) as app:
        session = await app.start("a", "go")
        request = await asked_of(session)
        answer = session.answer(request.request_id, "approve", principal="mallory")
        assert await code_of(answer) == "NOT_AN_APPROVER"
        await session.answer(request.request_id, "approve", principal="cfo")

        assert (await session.wait()).output == "done"
        assert bank.approved_by == ["cfo"]


# Who asked for it


async def test_who_asked_for_it_may_be_barred_from_approving_it() -> None:
    bank = Bank(bar_requester=True)
    async with running(bank.agent()) as app:
        session = await app.start("a", "go", principal="ada")
        request = await asked_of(session)
        for principal in ("", "ada"):
            answer = session.answer(request.request_id, "deny", principal=principal)
            assert await code_of(answer) == "NOT_AN_APPROVER"
        await session.answer(request.request_id, "approve", principal="bob")

        assert (await session.wait()).output == "done"


async def test_who_sent_the_turns_message_asked_for_it_as_well() -> None:
    bank = Bank(bar_requester=True)
    async with running(bank.agent(say("hello"), call("pay"), say("done"))) as app:
        session = await app.start("a", "hello", principal="ada")
        await session.wait()
        await session.send("pay me", principal="bob")
        request = await asked_of(session)
        for principal in ("ada", "bob"):
            answer = session.answer(request.request_id, "approve", principal=principal)
            assert await code_of(answer) == "NOT_AN_APPROVER"
        await session.answer(request.request_id, "approve", principal="cy")

        assert (await session.wait()).output == "done"
        assert bank.approved_by == ["cy"]


async def test_who_sent_a_message_of_an_earlier_turn_may_approve() -> None:
    bank = Bank(bar_requester=True)
    script = (say("hello"), say("hello"), call("pay"), say("done"))
    async with running(bank.agent(*script)) as app:
        session = await app.start("a", "hello", principal="ada")
        await (await session.send("and hello to you", principal="bob")).result()
        await session.send("pay me", principal="cy")
        await session.answer((await asked_of(session)).request_id, "approve", principal="bob")

        assert (await session.wait()).output == "done"


async def test_a_retry_asks_for_what_the_failed_turn_was_asked_for() -> None:
    bank = Bank(bar_requester=True)
    filtered = ScriptedReply(fails=(ScriptedError("recoverable", "filtered"),))
    replies = [say("hello"), filtered, call("pay")]
    payer = Agent("a", ScriptedModel(lambda _: replies.pop(0)), tools=[bank.pay])
    async with running(payer) as app:
        session = await app.start("a", "hello", principal="ada")
        await session.wait()
        await (await session.send("pay me", principal="bob")).result()
        await session.retry(principal="cy")
        request = await asked_of(session)
        for principal in ("ada", "bob", "cy"):
            answer = session.answer(request.request_id, "approve", principal=principal)
            assert await code_of(answer) == "NOT_AN_APPROVER"


async def test_a_child_is_asked_for_what_its_parents_turn_was_asked_for() -> None:
    bank = Bank(bar_requester=True)
    boss = Agent(
        "boss",
        ScriptedModel([say("hello"), call("a", message="pay bob"), say("done")]),
        subagents=[bank.agent()],
    )
    async with running(boss) as app:
        session = await app.start("boss", "hello", principal="ada")
        await session.wait()
        await session.send("pay me", principal="bob")
        shown = await until(session, "request.opened")
        child = await app.session(shown.data["path"][0])
        for at, request in ((session, shown.data["request_id"]), (child, shown.data["origin"])):
            answer = at.answer(request, "approve", principal="bob")
            assert await code_of(answer) == "NOT_AN_APPROVER"
        await session.answer(shown.data["request_id"], "approve", principal="cy")

        assert (await session.wait()).output == "done"


# Where the rules are not at hand


async def test_an_app_without_the_tools_code_takes_no_answer_for_it() -> None:
    bank, store = Bank(approvers=only_the_cfo), MemoryStore()
    strange = Outlast([Agent("other", ScriptedModel([]))], store=store, worker=None)
    renamed = Outlast([Agent("a", ScriptedModel([]))], store=store, worker=None)
    async with running(bank.agent(), store=store) as app:
        session = await app.start("a", "go")
        request = await asked_of(session)
        for elsewhere in (strange, renamed):
            found = await elsewhere.session(session.id)
            answer = found.answer(request.request_id, "approve", principal="cfo")
            assert await code_of(answer) == "NOT_AN_APPROVER"
        assert bank.approved_by == []
        assert await asked_of(session) == request


async def let_in(session: Session[Any], store: MemoryStore, request_id: str, principal: str) -> Any:
    """Have an app answer whose code knows the tool, and not its rules."""
    careless = Outlast([Bank().agent()], store=store, worker=None)
    elsewhere = await careless.session(session.id)
    return await (await elsewhere.answer(request_id, "approve", principal=principal)).result()


async def test_an_answer_that_was_let_in_elsewhere_is_refused_by_the_worker() -> None:
    bank, store = Bank(approvers=only_the_cfo), MemoryStore()
    async with running(bank.agent(), store=store) as app:
        session = await app.start("a", "go")
        first = await asked_of(session)
        taken = await let_in(session, store, first.request_id, principal="mallory")

        assert taken.status == "refused"
        again = await asked_of(session)
        assert (again.tool, again.args, again.prompt) == (first.tool, first.args, first.prompt)
        assert again.request_id != first.request_id
        await session.answer(again.request_id, "approve", principal="cfo")
        assert (await session.wait()).output == "done"
        assert bank.approved_by == ["cfo"]
        [refused, answered] = await the(session, "request.resolved")
        assert (refused.data["how"], refused.data["principal"]) == ("superseded", "mallory")
        assert (answered.data["option"], answered.data["principal"]) == ("approve", "cfo")


async def test_an_answer_is_refused_as_often_as_it_is_given_by_the_wrong_ones() -> None:
    bank, store = Bank(bar_requester=True), MemoryStore()
    async with running(bank.agent(), store=store) as app:
        session = await app.start("a", "go", principal="ada")
        for _ in range(3):
            request = await asked_of(session)
            await let_in(session, store, request.request_id, principal="ada")

        assert bank.approved_by == []
        await session.answer((await asked_of(session)).request_id, "approve", principal="bob")
        assert (await session.wait()).output == "done"


async def test_a_question_that_is_put_anew_expires_when_it_would_have() -> None:
    bank = Bank(approvers=only_the_cfo, timeout=60)
    async with at_standstill(bank.agent()) as (app, clock):
        session = await app.start("a", "go")
        first = await asked_of(session)
        clock.set(clock.now() + 50_000)
        assert isinstance(app.store, MemoryStore)
        await let_in(session, app.store, first.request_id, principal="mallory")

        assert (await asked_of(session)).expires_at == first.expires_at


async def test_approvers_that_fail_let_nobody_approve() -> None:
    def broken(who: str) -> bool:
        raise ConnectionError("the directory is away")

    bank, store = Bank(approvers=broken), MemoryStore()
    async with running(bank.agent(), store=store) as app:
        session = await app.start("a", "go")
        request = await asked_of(session)

        assert (
            await let_in(session, store, request.request_id, principal="cfo")
        ).status == "refused"
        assert bank.approved_by == []


async def test_what_is_refused_to_a_child_is_asked_anew_where_people_watch() -> None:
    bank, store = Bank(approvers=only_the_cfo), MemoryStore()
    script: Callable[[], list[ScriptedReply]] = lambda: [call("a", message="pay"), say("done")]  # noqa: E731
    boss = Agent("boss", ScriptedModel(script()), subagents=[bank.agent()])
    without = Agent("boss", ScriptedModel(script()), subagents=[Bank().agent()])
    careless = Outlast([without], store=store, worker=None)
    async with running(boss, store=store) as app:
        session = await app.start("boss", "go")
        shown = await until(session, "request.opened")
        elsewhere = await careless.session(session.id)
        await elsewhere.answer(shown.data["request_id"], "approve", principal="mallory")

        again = await until(session, "request.opened", 2)
        assert bank.approved_by == []
        await session.answer(again.data["request_id"], "approve", principal="cfo")
        assert (await session.wait()).output == "done"
        assert bank.approved_by == ["cfo"]


async def test_a_result_that_waits_says_so_and_has_no_output_yet() -> None:
    async with running(Bank().agent()) as app:
        session = await app.start("a", "go")
        result = await session.wait()
        [request] = result.requests

        assert result.is_waiting
        with pytest.raises(StillWaiting, match=request.request_id):
            result.unwrap()
        await session.answer(request.request_id, "approve")
        assert (await session.wait()).unwrap() == "done"
