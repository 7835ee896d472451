import asyncio
from typing import Any

import pytest
from scene import agent, results_of, running, the, until

from outlast import Context, DedupeKey, Limit, ToolError, tool
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedReply, call, calls, say


class Bank:
    """A tool whose payments are told apart by their order number."""

    def __init__(self, dedupe: Any = "", **options: Any) -> None:
        self.keys: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.refuses = 0

        def key(args: dict[str, Any]) -> str:
            return str(args["order"])

        @tool(idempotency_key=DedupeKey(key, dedupe) if dedupe else key, **options)
        async def pay(ctx: Context, order: int, note: str = "") -> str:
            self.keys.append(ctx.idempotency_key)
            await self.may_end.wait()
            if self.refuses:
                self.refuses -= 1
                raise ToolError("refused")
            return f"paid {len(self.keys)}"

        self.pay = pay


def pays(order: int, note: str = "") -> ScriptedReply:
    return call("pay", order=order, note=note)


async def test_a_duplicate_in_a_session_gets_the_outcome_of_the_first() -> None:
    bank = Bank(dedupe="session")
    script = [pays(1), pays(1, "again"), pays(2), say("done")]
    async with running(agent(script, tools=[bank.pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert [key.partition(":")[2] for key in bank.keys] == ["pay:1", "pay:2"]
        assert await results_of(session) == ["paid 1", "paid 1", "paid 2"]
        _, second, _ = await the(session, "tool.completed")
        assert second.data["same_as"] == f"{session.id}:t1.s1.c1"


async def test_duplicates_in_one_step_run_once() -> None:
    bank = Bank(dedupe="session")
    script = [calls(("pay", {"order": 1}), ("pay", {"order": 1})), say("done")]
    async with running(agent(script, tools=[bank.pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert len(bank.keys) == 1
        assert await results_of(session) == ["paid 1", "paid 1"]


async def test_a_duplicate_in_another_session_runs_by_itself_unless_the_tenant_is_the_scope() -> (
    None
):
    bank = Bank(dedupe="session")
    async with running(agent([pays(1), say("done")], tools=[bank.pay])) as app:
        for _ in range(2):
            await (await app.start("a", "go")).wait()

    assert len(bank.keys) == 2


async def test_a_duplicate_in_the_tenant_gets_the_outcome_of_the_first() -> None:
    bank = Bank(dedupe="tenant")
    async with running(agent([pays(1), say("done")], tools=[bank.pay])) as app:
        first = await app.start("a", "go")
        await first.wait()
        second = await app.start("a", "go")
        await second.wait()
        elsewhere = await app.start("a", "go", tenant="acme")
        await elsewhere.wait()

        assert await results_of(second) == ["paid 1"]
        assert await results_of(elsewhere) == ["paid 2"]


async def test_concurrent_sessions_run_a_call_of_the_tenant_once() -> None:
    bank = Bank(dedupe="tenant")
    bank.may_end.clear()
    async with running(agent([pays(1), say("done")], tools=[bank.pay])) as app:
        sessions = [await app.start("a", "go") for _ in range(5)]
        for session in sessions:
            await until(session, "tool.requested")
        bank.may_end.set()
        for session in sessions:
            assert (await session.wait()).output == "done"

        assert len(bank.keys) == 1
        assert [await results_of(session) for session in sessions] == [["paid 1"]] * 5


async def test_a_call_whose_key_is_held_does_not_hold_up_the_others_of_its_step() -> None:
    bank = Bank(dedupe="tenant")
    bank.may_end.clear()

    @tool(readonly=True)
    async def look() -> str:
        return "seen"

    script = [calls(("pay", {"order": 1}), ("look", {})), say("done")]
    async with running(agent(script, tools=[bank.pay, look])) as app:
        first = await app.start("a", "go")
        await until(first, "tool.started")
        second = await app.start("a", "go")
        seen = await until(second, "tool.completed")
        assert seen.data["value"] == "seen"

        bank.may_end.set()
        assert (await second.wait()).output == "done"
        assert len(bank.keys) == 1


async def test_a_session_whose_key_another_call_has_holds_nothing_and_gets_its_outcome() -> None:
    @tool(idempotency_key=DedupeKey(lambda args: "one", "tenant"), idempotent=True)
    async def choose(ctx: Context) -> str:
        return (await ctx.ask("Which one?")).text

    async with running(agent([call("choose"), say("done")], tools=[choose])) as app:
        first = await app.start("a", "go")
        [request] = (await first.wait()).requests
        second = await app.start("a", "go")
        rests = await until(second, "session.waiting")
        lanes = await app.workers.lanes()

        assert rests.data["wait"] == ("key",)
        assert [(lane.status, lane.worker) for lane in lanes] == [("sleeping", ""), ("waiting", "")]
        await first.answer(request.request_id, text="the red one")
        assert (await second.wait()).output == "done"
        assert await results_of(second) == ["the red one"]
        assert (
            len(await the(second, "session.waiting")) == 2
        )  # for the key, once, and for a message


async def test_calls_that_wait_for_a_key_and_a_place_are_looked_at_for_either() -> None:
    bank, busy = Bank(dedupe="tenant"), asyncio.Event()
    bank.may_end.clear()

    @tool(limit=Limit(concurrency=1))
    async def mend() -> str:
        await busy.wait()
        return "mended"

    script = [calls(("pay", {"order": 1}), ("mend", {})), say("done")]
    async with running(agent(script, tools=[bank.pay, mend])) as app:
        first = await app.start("a", "go")
        await until(first, "tool.started")
        second = await app.start("a", "go")
        rests = await until(second, "session.waiting")
        assert rests.data["wait"] == ("limit", "key")

        bank.may_end.set()
        paid = await until(second, "tool.completed")
        assert paid.data["value"] == "paid 1"

        busy.set()
        assert (await second.wait()).output == "done"


async def test_a_call_that_failed_for_certain_leaves_its_key_free() -> None:
    bank = Bank(dedupe="tenant")
    bank.refuses = 1
    async with running(agent([pays(1), say("done")], tools=[bank.pay])) as app:
        first, second = await app.start("a", "go"), None
        await first.wait()
        second = await app.start("a", "go")
        await second.wait()

        assert await results_of(first) == ["TOOL_ERROR: refused"]
        assert await results_of(second) == ["paid 2"]


async def test_a_duplicate_of_a_call_of_unknown_outcome_is_of_unknown_outcome_too() -> None:
    bank = Bank(dedupe="tenant", timeout=0.01)
    bank.may_end.clear()
    async with running(agent([pays(1), say("hm")], tools=[bank.pay])) as app:
        for _ in range(2):
            session = await app.start("a", "go")
            assert (await session.wait()).output == "hm"
            [told] = await results_of(session)
            assert "outcome of this call is unknown" in told

    assert len(bank.keys) == 1


async def test_arguments_that_were_changed_in_approving_have_a_key_of_their_own() -> None:
    bank = Bank(dedupe="session", approval="always")
    async with running(agent([pays(1), pays(1), pays(2), say("done")], tools=[bank.pay])) as app:
        session = await app.start("a", "go")
        for changed in ({"order": 2}, None, None):
            [request] = (await session.wait()).requests
            await session.answer(request.request_id, "approve", args=changed)
        await session.wait()

        assert [key.partition(":")[2] for key in bank.keys] == ["pay:2", "pay:1"]
        _, first, second = await results_of(session)
        assert (first, second) == ("paid 2", "paid 1")
        assert await verify(app.store, session.id) == []


async def test_a_cancelled_call_that_never_began_leaves_the_key_to_its_holder() -> None:
    bank = Bank(dedupe="tenant", approval="always")
    async with running(agent([pays(1), say("done")], tools=[bank.pay])) as app:
        first, second, third = [await app.start("a", "go") for _ in range(3)]
        for session in (first, second, third):
            await session.wait()
        [request] = await first.requests()
        await first.answer(request.request_id, "approve")
        await first.wait()

        await second.cancel()
        assert (await second.wait()).status == "cancelled"
        [request] = await third.requests()
        await third.answer(request.request_id, "approve")
        await third.wait()

        assert await results_of(third) == ["paid 1"]
        assert len(bank.keys) == 1


@pytest.mark.parametrize(
    ("dedupe", "told_apart"),
    [("", [0, 0, 1]), ("session", [0, 1, 2]), ("tenant", [0, 1])],
)
async def test_a_key_means_something_else_outside_of_its_scope(
    dedupe: str, told_apart: list[int]
) -> None:
    bank = Bank(dedupe=dedupe)
    async with running(agent([pays(1), say("done")], tools=[bank.pay])) as app:
        for tenant in ("acme", "acme", "globex"):
            await (await app.start("a", "go", tenant=tenant)).wait()

    different = list(dict.fromkeys(bank.keys))
    assert [different.index(key) for key in bank.keys] == told_apart
    assert not any("acme" in key for key in bank.keys)


async def test_a_key_may_be_a_whole_number() -> None:
    seen: list[str] = []

    @tool(idempotency_key=DedupeKey(lambda args: args["order"], "session"))
    async def pay(ctx: Context, order: int) -> str:
        seen.append(ctx.idempotency_key.partition(":")[2])
        return "paid"

    script = [call("pay", order=17), call("pay", order=17), say("done")]
    async with running(agent(script, tools=[pay])) as app:
        await (await app.start("a", "go")).wait()

    assert seen == ["pay:17"]


@pytest.mark.parametrize("key", [None, "", True, 1.5, ("a", 1)], ids=repr)
@pytest.mark.parametrize("dedupe", ["", "session"])
async def test_a_key_that_is_none_is_told_in_a_sentence_and_nothing_runs(
    key: Any, dedupe: Any
) -> None:
    ran: list[int] = []

    def own_key(_: object) -> Any:
        return key

    @tool(idempotency_key=DedupeKey(own_key, dedupe) if dedupe else own_key)
    async def pay() -> None:
        ran.append(1)

    async with running(agent([call("pay"), say("sorry")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [told] = await results_of(session)
        assert f"the idempotency_key of pay returned {key!r}: it has to be a text" in told
        assert not ran
