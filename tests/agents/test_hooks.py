"""Functions of the app that watch what happens, or decide what may."""

import asyncio
import threading
from typing import Any

import pytest
from scene import agent, log_of, results_of, running, the

from outlast import Agent, Decision, Event, Outlast, OutlastError, ProposedCall, tool
from outlast.agents import decision
from outlast.errors import InvalidDefinition
from outlast.integration.outbox import WebhookSettings
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedModel, calls, say

QUICK = WebhookSettings(poll=0.05)


class Till:
    """A tool, and what was paid by it."""

    def __init__(self, **manners: Any) -> None:
        self.paid: list[int] = []

        @tool(**manners)
        async def pay(cents: int) -> str:
            self.paid.append(cents)
            return f"paid {cents}"

        self.pay = pay

    def agent(self, *amounts: int) -> Agent[Any, Any]:
        script = [calls(*(("pay", {"cents": each}) for each in amounts)), say("done")]
        return agent(script, tools=[self.pay])


def app_of(one: Agent[Any, Any], **options: Any) -> Outlast:
    return Outlast([one], store="memory://", webhooks=QUICK, **options)


# Deciders


async def test_a_hook_lets_a_call_through_denies_it_or_changes_it() -> None:
    till = Till()
    app = app_of(till.agent(5, 500, 50))
    asked: list[ProposedCall] = []

    @app.hook("tool.requested", decides=True)
    async def guard(call: ProposedCall) -> Decision | None:
        asked.append(call)
        if call.args["cents"] > 100:
            return Decision.deny("too much")
        if call.args["cents"] > 10:
            return Decision.change({"cents": 10})
        return None

    async with app:
        session = await app.start("a", "go", tenant="acme", principal="ada")
        assert (await session.wait()).output == "done"

        assert till.paid == [5, 10]
        told = await results_of(session)
        assert told[:2] == ["paid 5", "Not run: too much."]
        assert told[2].startswith('(The application changed the arguments to {"cents":10}.)')
        requested = [event.data for event in await the(session, "tool.requested")]
        assert [data.get("decision", "") for data in requested] == ["", "deny", "change"]
        assert requested[2]["args"] == {"cents": 50}
        assert requested[2]["changed"] == {"cents": 10}
        [denied] = await the(session, "tool.denied")
        assert denied.data["principal"] == "hook:guard"
        assert (asked[0].session_id, asked[0].tenant, asked[0].principal) == (
            session.id,
            "acme",
            "ada",
        )
        assert not await verify(app.store, session.id)


async def test_a_hook_has_a_human_asked() -> None:
    till = Till()
    app = app_of(till.agent(5))

    @app.hook("tool.requested", decides=True)
    def guard(call: ProposedCall) -> Decision:
        return Decision.ask()

    async with app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        assert till.paid == []
        await session.answer(request.request_id, "approve")

        assert (await session.wait()).output == "done"
        assert till.paid == [5]


async def test_a_human_who_would_be_asked_is_asked_though_a_hook_allows_it() -> None:
    till = Till(approval="always")
    app = app_of(till.agent(5))

    @app.hook("tool.requested", decides=True)
    def guard(call: ProposedCall) -> Decision:
        assert call.asks == "always"
        return Decision.allow()

    async with app:
        session = await app.start("a", "go")
        assert (await session.wait()).status == "waiting"


async def test_approval_is_asked_for_what_a_hook_has_changed() -> None:
    till = Till(approval=lambda args: args["cents"] > 100)
    app = app_of(till.agent(5))

    @app.hook("tool.requested", decides=True)
    def inflate(call: ProposedCall) -> Decision:
        return Decision.change({"cents": 500})

    async with app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        assert request.args == {"cents": 500}


@pytest.mark.parametrize(
    "wrong", ["raises", "returns nonsense", "does not fit", "gives no reason", "is of two minds"]
)
async def test_a_hook_that_fails_lets_nothing_through(wrong: str) -> None:
    till = Till()
    app = app_of(till.agent(5))

    @app.hook("tool.requested", decides=True)
    async def broken(call: ProposedCall) -> Any:
        match wrong:
            case "raises":
                raise RuntimeError("no idea")
            case "returns nonsense":
                return True
            case "gives no reason":
                return Decision.deny(7)  # type: ignore[arg-type]
            case "is of two minds":
                return Decision("perhaps")  # type: ignore[arg-type]
        return Decision.change({"cents": "few"})

    async with app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"

        assert till.paid == []
        [told] = await results_of(session)
        assert told.startswith("Not run: the hook broken")


async def test_a_sync_hook_that_hangs_holds_up_nobody_and_lets_nothing_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision, "LONGEST_DECISION", 0.05)
    till, release = Till(), threading.Event()
    app = app_of(till.agent(5))

    @app.hook("tool.requested", decides=True)
    def hangs(call: ProposedCall) -> None:
        release.wait(60)

    async with app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"

        assert till.paid == []
        assert await results_of(session) == ["Not run: the hook hangs failed."]
        release.set()


async def test_what_a_human_has_edited_is_not_put_before_the_hooks_again() -> None:
    till = Till(approval="always")
    app = app_of(till.agent(5))
    asked: list[int] = []

    @app.hook("tool.requested", decides=True)
    def guard(call: ProposedCall) -> None:
        asked.append(call.args["cents"])

    async with app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve", args={"cents": 500})
        await session.wait()

        assert (asked, till.paid) == ([5], [500])


async def test_hooks_are_asked_in_order_about_their_own_tools_until_one_denies() -> None:
    @tool
    def launch() -> None: ...

    till = Till()
    script = [calls(("pay", {"cents": 5})), say("done")]
    app = app_of(agent(script, tools=[till.pay, launch]))
    order = []

    def add(name: str, said: Decision | None, **options: Any) -> None:
        def function(call: ProposedCall) -> Decision | None:
            order.append((name, call.args["cents"]))
            return said

        app.hook("tool.requested", decides=True, name=name, **options)(function)

    add("other", Decision.deny("not mine"), tools=["launch"])
    add("first", Decision.change({"cents": 4}))
    add("second", Decision.deny("no"), tools=["pay"])
    add("third", None)
    async with app:
        session = await app.start("a", "go")
        await session.wait()

        assert order == [("first", 5), ("second", 4)]
        assert till.paid == []


async def test_a_decision_is_not_taken_again_when_the_call_goes_on_elsewhere() -> None:
    till = Till(approval="always")
    asked = []
    store: Any = None

    def build() -> Outlast:
        app = Outlast([till.agent(5)], store=store or "memory://", webhooks=QUICK)

        @app.hook("tool.requested", decides=True)
        def guard(call: ProposedCall) -> None:
            asked.append(call.call_id)

        return app

    async with build() as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        store = app.store
    async with build() as app:
        session = await app.session(session.id)
        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "done"

    assert len(asked) == 1


# Observers


async def test_an_observer_is_told_of_its_events_in_order() -> None:
    app = app_of(agent([say("one"), say("two")]))
    told: list[Event] = []
    all_told = asyncio.Event()

    @app.hook("turn.started", "turn.completed")
    async def watch(event: Event) -> None:
        told.append(event)
        if len(told) == 4:
            all_told.set()

    async with app:
        session = await app.start("a", "go")
        await session.wait()
        await (await session.send("on")).result()
        await all_told.wait()

        wanted = [e for e in await log_of(session) if e.type in ("turn.started", "turn.completed")]
        assert [(e.offset, e.type) for e in told] == [(e.offset, e.type) for e in wanted]
        assert {event.session_id for event in told} == {session.id}


async def test_an_observer_that_fails_is_told_again_later() -> None:
    app = app_of(agent([say("hi")]))
    tries: list[int] = []
    done = asyncio.Event()

    @app.hook("turn.completed")
    async def watch(event: Event) -> None:
        tries.append(event.offset)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        done.set()

    async with app:
        session = await app.start("a", "go")
        await session.wait()
        await done.wait()

        assert tries[0] == tries[1]


async def test_a_sync_observer_that_hangs_holds_up_nobody_and_is_told_again() -> None:
    settings = WebhookSettings(poll=0.05, timeout=0.05)
    app = Outlast([agent([say("hi")])], store="memory://", webhooks=settings)
    release, told = threading.Event(), asyncio.Event()
    loop, tries = asyncio.get_running_loop(), []

    @app.hook("turn.completed")
    def hangs(event: Event) -> None:
        tries.append(event.offset)
        if len(tries) == 1:
            release.wait(60)
        else:
            loop.call_soon_threadsafe(told.set)

    async with app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "hi"
        await told.wait()

        assert tries[0] == tries[1]
        release.set()


async def test_a_hook_that_comes_when_the_app_is_open_is_refused() -> None:
    async with running(agent([])) as app:
        for decides in (True, False):
            with pytest.raises(OutlastError, match="add hooks before"):
                app.hook("tool.requested", decides=decides)


async def test_hooks_that_make_no_sense_are_refused() -> None:
    app = app_of(agent([]))

    def watch(event: Event) -> None: ...

    with pytest.raises(OutlastError, match="no events of type"):
        app.hook("turn.exploded")(watch)
    with pytest.raises(OutlastError, match="post nothing"):
        app.hook()(watch)
    with pytest.raises(OutlastError, match="only"):
        app.hook("turn.completed", decides=True)(watch)
    with pytest.raises(OutlastError, match="name of a hook"):
        app.hook("turn.completed", name=7)(watch)  # type: ignore[arg-type]
    with pytest.raises(OutlastError, match="tools have to be names"):
        app.hook("tool.requested", decides=True, tools="pay")(watch)
    with pytest.raises(OutlastError, match="needs decides=True"):
        app.hook("tool.completed", tools=["pay"])(watch)
    app.hook("turn.completed")(watch)
    with pytest.raises(OutlastError, match="two hooks"):
        app.hook("turn.failed")(watch)


async def test_a_hook_without_its_events_is_refused_where_it_is_written() -> None:
    app = app_of(agent([]))

    with pytest.raises(InvalidDefinition, match=r'write @app.hook\("turn.completed"\)'):

        @app.hook  # type: ignore[arg-type]
        def watch(event: Event) -> None: ...


async def test_a_hook_decides_about_tools_that_some_agent_of_the_app_has() -> None:
    cashier = Agent("cashier", ScriptedModel([]), tools=[Till().pay])
    app = app_of(agent([], subagents=[cashier]))

    def decide(call: ProposedCall) -> None: ...

    with pytest.raises(InvalidDefinition, match="named pays; there are: cashier, pay") as refused:
        app.hook("tool.requested", decides=True, tools=["pay", "pays"])(decide)
    assert refused.value.details == {"tools": ["pays"]}
    app.hook("tool.requested", decides=True, tools=["pay", "cashier"])(decide)


async def test_an_app_without_hooks_asks_nobody() -> None:
    till = Till()
    async with running(till.agent(5)) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        assert await app.store.outbox.cursors() == []
