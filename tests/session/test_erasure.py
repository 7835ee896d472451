import asyncio
import logging

import pytest
from scene import agent, running

from outlast import Key, OutlastError, tool
from outlast.testing.scripted import call, say


async def test_an_erased_session_stops_what_runs_in_it_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async with running(agent([call("work"), say("done")], tools=[work])) as app:
        session = await app.start("a", "go")
        await begun.wait()
        await app.erase(session.id)
        go_on.set()
        other = await app.start("a", "go")

        assert (await other.wait()).output == "done"
        assert await app.store.listing.session(session.id) is None
        assert app.worker is not None
        while app.worker.held:  # noqa: ASYNC110 - it gives up what is not there any more
            await asyncio.sleep(0)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


async def test_a_reader_of_an_erased_session_is_told_so() -> None:
    async with running(agent([say("hi")])) as app:
        session = await app.start("a", "go")
        await session.wait()
        await app.erase(session.id)

        for attempt in (
            session.wait(),
            session.send("on"),
            session.history(),
            app.erase(session.id),
        ):
            with pytest.raises(OutlastError) as refused:
                await attempt
            assert refused.value.code == "UNKNOWN_SESSION"


async def test_a_retried_start_of_an_erased_session_starts_nothing() -> None:
    async with running(agent([say("hi")])) as app:
        session = await app.start("a", "go", dispatch_id="d")
        await app.erase(session.id)

        with pytest.raises(OutlastError) as refused:
            await app.start("a", "go", dispatch_id="d")

        assert refused.value.code == "SESSION_ERASED"
        assert await app.sessions() == []


# The one session of an agent that has a key


async def test_prompts_with_the_same_key_go_to_the_same_session() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        first = await app.send(Key("a", "customer-7"), "hello", principal="ada")
        assert (await first.result()).output == "one"
        second = await app.send(Key("a", "customer-7"), "and now?")

        assert second.session_id == first.session_id == await app.find(Key("a", "customer-7"))
        assert (await second.result()).output == "two"


async def test_first_prompts_at_once_start_one_session() -> None:
    async with running(agent(lambda _: say("ok"))) as app:
        prompts = (app.send(Key("a", "k"), f"message {n}") for n in range(20))
        receipts = await asyncio.gather(*prompts)

        assert len({receipt.session_id for receipt in receipts}) == 1
        assert len(await app.sessions()) == 1


async def test_keys_of_other_tenants_and_agents_are_others() -> None:
    async with running(agent(lambda _: say("ok"))) as app:
        mine = await app.send(Key("a", "k"), "hello")

        assert await app.find(Key("a", "k"), tenant="other") is None
        assert (
            await app.send(Key("a", "k"), "hello", tenant="other")
        ).session_id != mine.session_id


async def test_a_repeated_prompt_is_accepted_once() -> None:
    async with running(agent(lambda _: say("ok"))) as app:
        first = await app.send(Key("a", "k"), "hello", dispatch_id="d")
        await first.result()
        again = await app.send(Key("a", "k"), "hello", dispatch_id="d")

        assert (again.delivery_id, again.duplicate) == (first.delivery_id, True)
        with pytest.raises(OutlastError) as refused:
            await app.send(Key("a", "k"), "something else", dispatch_id="d")
        assert refused.value.code == "DISPATCH_CONFLICT"


async def test_a_key_whose_session_is_over_takes_no_prompt_and_is_still_found() -> None:
    async with running(agent(lambda _: say("ok"))) as app:
        receipt = await app.send(Key("a", "k"), "hello")
        await receipt.session.end()
        await receipt.session.wait()

        with pytest.raises(OutlastError) as refused:
            await app.send(Key("a", "k"), "again")

        assert refused.value.code == "SESSION_OVER"
        assert await app.find(Key("a", "k")) == receipt.session_id


@pytest.mark.parametrize("key", ["", "\0", "x" * 300])
async def test_a_key_that_cannot_be_one_is_refused(key: str) -> None:
    async with running(agent([])) as app:
        with pytest.raises(OutlastError) as refused:
            await app.send(Key("a", key), "hello")
        assert refused.value.code == "INVALID_NAME"


async def test_nobody_else_may_choose_the_address_of_a_key() -> None:
    async with running(agent([])) as app:
        with pytest.raises(OutlastError) as refused:
            await app.start("a", "hello", continuation_token="agent:a:k")
        assert refused.value.code == "INVALID_NAME"
