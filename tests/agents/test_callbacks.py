import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from known import known
from scene import agent, at_standstill, log_of, results_of, running, the, types_of, until

from outlast import Agent, Context, Outlast, OutlastError, Session, tool
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import call, calls, say
from outlast.testing.wrapped_store import WrappedStore

DAY = 86_400_000
HERE = "https://agents.example"


def token_of(url: str) -> str:
    return url.rpartition("/")[2]


class Shop:
    """A tool that orders a payment and waits for the bank to call back."""

    def __init__(self, **manners: Any) -> None:
        self.urls: list[str] = []
        self.told: list[str] = []
        self.paid: list[Any] = []

        @tool(**{"timeout": 5.0, **manners})
        async def charge(ctx: Context) -> Any:
            hook = await ctx.callback("done", timeout=timedelta(days=1))
            self.urls.append(hook.url)
            await ctx.step(self.told.append, hook.url, name="order")
            await self.on_the_way()
            came = await hook.wait()
            self.paid.append(came.json())
            return came.json()

        self.charge = charge

    async def on_the_way(self) -> None:
        """What happens between the order and the wait."""

    def agent(self, **options: Any) -> Agent[Any, Any]:
        return agent([call("charge"), say("done")], tools=[self.charge], **options)

    async def parked(self, session: Session[Any]) -> str:
        """Wait for the tool to wait, and return the secret of its address."""
        await until(session, "session.waiting")
        return token_of(self.told[0])


async def code_of(attempt: Any) -> str:
    with pytest.raises(OutlastError) as refused:
        await attempt
    return refused.value.code


async def test_a_tool_waits_for_a_call_from_outside_and_returns_what_it_said() -> None:
    shop = Shop()
    async with running(shop.agent(), public_url=f"{HERE}/") as app:
        session = await app.start("a", "go")
        token = await shop.parked(session)
        assert shop.told[0] == f"{HERE}/v1/callbacks/{token}"
        info = await session.info()
        assert (info.status, info.lanes[0].worker) == ("sleeping", "")

        await app.callbacks.receive(token, b'{"cents":5}')

        assert (await session.wait()).output == "done"
        assert shop.paid == [{"cents": 5}]
        assert len(shop.told) == 1
        assert shop.urls[1:] == [""]
        assert await results_of(session) == ['{"cents":5}']


async def test_the_secret_is_neither_in_the_log_nor_in_the_stream() -> None:
    shop = Shop()
    async with running(shop.agent(), public_url=HERE) as app:
        session = await app.start("a", "go")
        token = await shop.parked(session)
        await app.callbacks.receive(token, b"{}")
        await session.wait()

        assert all(token not in repr(event) for event in await log_of(session))
        entries = (await app.store.log.read(session.id, 0)).entries
        assert all(token not in repr(entry) for entry in entries)


async def test_a_call_that_comes_before_the_tool_waits_is_not_lost() -> None:
    shop = Shop()
    ordered, arrived = asyncio.Event(), asyncio.Event()

    async def on_the_way() -> None:
        ordered.set()
        await arrived.wait()

    shop.on_the_way = on_the_way  # type: ignore[method-assign]
    async with running(shop.agent(), public_url=HERE) as app:
        session = await app.start("a", "go")
        await ordered.wait()
        await app.callbacks.receive(token_of(shop.told[0]), b"1")
        await until(session, "callback.closed")
        arrived.set()

        assert (await session.wait()).output == "done"
        assert shop.paid == [1]


async def test_the_same_call_again_is_accepted_once_and_another_one_refused() -> None:
    shop = Shop()
    async with running(shop.agent(), public_url=HERE) as app:
        session = await app.start("a", "go")
        token = await shop.parked(session)

        first = await app.callbacks.receive(token, b"1")
        again = await app.callbacks.receive(token, b"1")
        assert (known(again).delivery_id, known(again).duplicate) == (
            known(first).delivery_id,
            True,
        )
        assert await code_of(app.callbacks.receive(token, b"2")) == "UNKNOWN_CALLBACK"
        await session.wait()

        assert known(await app.callbacks.receive(token, b"1")).duplicate
        assert await code_of(app.callbacks.receive(token, b"2")) == "UNKNOWN_CALLBACK"
        assert shop.paid == [1]


async def test_an_address_that_was_never_given_out_leads_nowhere() -> None:
    shop = Shop()
    async with running(shop.agent(), public_url=HERE) as app:
        session = await app.start("a", "go")
        await shop.parked(session)
        before = (await session.info()).end

        for token in ("", "guess", "\0", "\ud800", "x" * 10_000):
            assert await code_of(app.callbacks.receive(token, b"1")) == "UNKNOWN_CALLBACK"

        assert (await session.info()).end == before


async def test_nobody_calls_in_time() -> None:
    shop = Shop()
    async with at_standstill(shop.agent(), public_url=HERE) as (app, clock):
        session = await app.start("a", "go")
        token = await shop.parked(session)
        clock.advance(DAY)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["TOOL_ERROR: nobody called in time"]
        assert await code_of(app.callbacks.receive(token, b"1")) == "UNKNOWN_CALLBACK"
        [closed] = await the(session, "callback.closed")
        assert closed.data["how"] == "expired"


async def test_an_address_dies_with_its_turn() -> None:
    shop = Shop()
    async with running(shop.agent(), public_url=HERE) as app:
        session = await app.start("a", "go")
        token = await shop.parked(session)
        await session.cancel()
        await session.wait()

        assert await code_of(app.callbacks.receive(token, b"1")) == "UNKNOWN_CALLBACK"
        [closed] = await the(session, "callback.closed")
        assert closed.data["how"] == "cancelled"


async def test_an_address_that_a_tool_never_waits_for_dies_with_the_call() -> None:
    urls = []

    @tool
    async def forget(ctx: Context) -> str:
        urls.append((await ctx.callback("done", timeout=timedelta(days=1))).url)
        return "never mind"

    async with running(
        agent([call("forget"), say("done")], tools=[forget]), public_url=HERE
    ) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"

        assert await code_of(app.callbacks.receive(token_of(urls[0]), b"1")) == "UNKNOWN_CALLBACK"
        assert "callback.closed" in await types_of(session)


async def test_each_attempt_has_its_own_address_and_any_of_them_wakes_the_tool() -> None:
    shop = Shop(on_interrupt="rerun", timeout=0.2)
    hang = asyncio.Event()
    shop.on_the_way = hang.wait  # type: ignore[method-assign,assignment]
    async with running(shop.agent(), public_url=HERE) as app:
        session = await app.start("a", "go")
        await until(session, "tool.interrupted")
        hang.set()
        await until(session, "session.waiting")
        assert len(set(shop.urls)) == 2
        assert len(shop.told) == 1  # the bank knows the first one

        await app.callbacks.receive(token_of(shop.told[0]), b"1")

        assert (await session.wait()).output == "done"
        assert shop.paid == [1]
        closed = [e.data.get("how", "answered") for e in await the(session, "callback.closed")]
        assert sorted(closed) == ["answered", "superseded"]
        opened = await the(session, "callback.opened")
        assert len({event.data["expires_at"] for event in opened}) == 1


async def test_a_callback_is_no_question_to_a_human() -> None:
    shop = Shop()
    async with running(shop.agent(), public_url=HERE) as app:
        session = await app.start("a", "go")
        await shop.parked(session)
        [opened] = await the(session, "callback.opened")

        assert await session.requests() == ()
        assert await app.requests() == ()
        answer = session.answer(opened.data["request_id"], text="1")
        assert await code_of(answer) == "UNKNOWN_REQUEST"
        [lane] = (await session.explain()).lanes
        assert any("a call from outside" in link.text for link in lane.links)


async def test_a_body_need_not_be_text() -> None:
    urls, bodies = [], []

    @tool
    async def listen(ctx: Context) -> str:
        hook = await ctx.callback("done", timeout=timedelta(days=1))
        urls.append(hook.url)
        came = await hook.wait()
        bodies.append((came.content_type, came.body))
        return "ok"

    async with running(
        agent([call("listen"), say("done")], tools=[listen]), public_url=HERE
    ) as app:
        session = await app.start("a", "go")
        await until(session, "session.waiting")
        await app.callbacks.receive(token_of(urls[0]), b"\xff\x00", "image/png")

        assert (await session.wait()).output == "done"
        assert bodies == [("image/png", b"\xff\x00")]


async def test_without_a_public_url_a_callback_says_what_is_missing() -> None:
    shop = Shop()
    async with running(shop.agent()) as app:
        session = await app.start("a", "go")
        await session.wait()

        [told] = await results_of(session)
        assert "public_url" in told


async def test_a_callback_survives_the_worker_that_opened_it() -> None:
    shop = Shop()
    store = MemoryStore()
    kept: dict[str, Any] = {"store": store, "public_url": HERE}
    async with running(shop.agent(), **kept) as app:
        session_id = (session := await app.start("a", "go")).id
        token = await shop.parked(session)
    async with Outlast([shop.agent()], worker=None, **kept) as app:
        await app.callbacks.receive(token, b"7")
    async with running(shop.agent(), **kept) as app:
        assert (await (await app.session(session_id)).wait()).output == "done"
        assert shop.paid == [7]


class CalledAtLast(WrappedStore):
    """A store in which somebody calls an address just before it is closed."""

    call: Any = None

    async def commit(self, commits: Any) -> Any:
        if self.call and any(c.index.closed for c in commits):
            call, self.call = self.call, None
            await call(b'"late"')
        return await super().commit(commits)


async def test_a_call_from_outside_at_the_last_moment_costs_no_call_its_outcome() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    store = CalledAtLast(MemoryStore())

    @tool
    async def order(ctx: Context) -> str:
        hook = await ctx.callback("done", timeout=timedelta(days=1))
        store.call = partial(app.callbacks.receive, token_of(hook.url))
        await begun.wait()
        return "ordered"

    @tool
    async def pack() -> str:
        begun.set()
        await go_on.wait()
        return "packed"

    both = calls(("order", {}), ("pack", {}))
    worker = agent([both, say("done")], tools=[order, pack])
    async with running(worker, store=store, public_url=HERE) as app:
        session = await app.start("a", "go")
        await until(session, "tool.completed")
        go_on.set()

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["ordered", "packed"]
        assert len(await the(session, "tool.started")) == 2
        assert await verify(app.store, session.id) == []
