"""Webhooks that are not taken: tried again later each time, in order, and dead after a day."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from free_port import free_port
from webhook_receiver import Receiver, Reply, always, failing, hang, ok
from webhook_setup import DAY, HOUR, WebhookSetup

from outlast import Webhook
from outlast.integration.outbox import verify
from outlast.net.client import GuardedClient


async def test_a_webhook_is_tried_again_later_each_time_under_the_same_id() -> None:
    setup = WebhookSetup()
    async with Receiver(failing(5)) as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        pauses = []
        for _ in range(5):
            await setup.send()
            pauses.append(await setup.until_due())
        assert (await setup.cursor()).error == "answered 500"
        await setup.send()

    assert len({post.id for post in hook.posts}) == 1
    assert len({post.body for post in hook.posts}) == 1
    for number, pause in enumerate(pauses):
        assert 500 * 2**number <= pause <= 1000 * 2**number
    last = hook.posts[-1]
    assert last.headers["webhook-timestamp"] != hook.posts[0].headers["webhook-timestamp"]
    verify("correct horse battery", last.headers, last.body, clock=setup.clock)
    settled = await setup.cursor()
    assert (settled.tries, settled.error, settled.due_at) == (0, "", None)


async def test_before_its_time_nothing_is_tried() -> None:
    setup = WebhookSetup()
    async with Receiver(always(500)) as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        await setup.send()
        setup.clock.advance(499)
        assert await setup.send() == 0
    assert len(hook.posts) == 1


async def test_the_pause_grows_to_an_hour_and_no_further() -> None:
    setup = WebhookSetup()
    async with Receiver(always(503)) as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        pauses = []
        for _ in range(20):
            await setup.send()
            pauses.append(await setup.until_due())
    assert max(pauses) <= HOUR
    assert min(pauses[13:]) >= HOUR // 2


async def test_an_event_is_not_told_before_the_one_before_it_was() -> None:
    setup = WebhookSetup()
    async with Receiver(failing(3)) as hook:
        session = await setup.talk("one", webhook=Webhook(hook.url))
        for message in ("two", "three"):
            await setup.send()
            await setup.until_due()
            await setup.work(session, message)
        for _ in range(2):
            await setup.send()
            if (await setup.cursor()).tries:
                await setup.until_due()

    ids = [post.id for post in hook.posts]
    assert ids[:4] == [ids[0]] * 4
    assert [post.json["output"] for post in hook.posts[3:]] == ["verse 1", "verse 3", "verse 5"]


async def test_what_was_taken_before_a_failure_is_not_repeated() -> None:
    setup = WebhookSetup()
    first = iter([Reply(204), Reply(500)])
    async with Receiver(lambda _: next(first, Reply())) as hook:
        await setup.talk("one", "two", "three", webhook=Webhook(hook.url))
        await setup.send()
        await setup.until_due()
        await setup.send()
    said = [post.json["output"] for post in hook.posts]
    assert said == ["verse 1", "verse 3", "verse 3", "verse 5"]


async def test_a_receiver_that_was_down_is_told_when_it_is_back() -> None:
    setup, port = WebhookSetup(), free_port()
    await setup.talk("one", webhook=Webhook(f"http://127.0.0.1:{port}/hook"))
    await setup.send()
    assert (await setup.cursor()).error == "no connection"
    await setup.until_due()
    async with Receiver(port=port) as hook:
        await setup.send()
    assert hook.types == ["turn.completed"]


async def test_a_receiver_that_hangs_is_tried_again() -> None:
    setup = WebhookSetup(timeout=0.3)
    async with Receiver(hang) as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        await setup.send()
        assert (await setup.cursor()).error == "no answer within 0.3 s"
        hook.answers = ok
        await setup.until_due()
        await setup.send()
    assert len(hook.posts) == 2


async def test_a_redirect_is_not_followed_wherever_it_leads() -> None:
    setup = WebhookSetup()
    async with Receiver() as inner:
        to = ("location", f"http://127.0.0.1:{inner.port}/latest/meta-data")
        async with Receiver(always(302, to)) as hook:
            await setup.talk("one", webhook=Webhook(hook.url))
            await setup.send()
    assert inner.connections == 0
    failed = await setup.cursor()
    assert (failed.tries, failed.error) == (1, "302: redirects are not followed")


async def test_a_name_that_has_come_to_lead_into_ones_own_network_is_not_called() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    setup, addresses = WebhookSetup(), ["10.0.0.1"]
    async with Receiver() as hook:
        guarded = GuardedClient(resolve=resolve)
        await setup.talk("one", webhook=Webhook(f"http://hook.example:{hook.port}/"))
        addresses = ["127.0.0.1"]
        await setup.send(guarded)
        assert hook.connections == 0
        assert "127.0.0.1 is not a public address" in (await setup.cursor()).error
        await setup.until_due()
        await setup.send(GuardedClient(resolve=resolve, allow_private=True))
    assert len(hook.posts) == 1


# What the receiver wants


async def test_a_receiver_that_is_gone_is_asked_once_for_each_event() -> None:
    setup = WebhookSetup()
    async with Receiver(always(410)) as hook:
        await setup.talk("one", "two", webhook=Webhook(hook.url))
        await setup.send()
        assert await setup.send() == 0
    assert len(hook.posts) == 2
    assert [error for _, error in await setup.dead()] == ["answered 410"] * 2
    settled = await setup.cursor()
    assert (settled.tries, settled.due_at) == (0, None)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_names_a_time_is_left_alone_until_then(status: int) -> None:
    setup = WebhookSetup()
    async with Receiver(always(status, ("Retry-After", "120"))) as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        await setup.send()
        assert await setup.until_due() == 120_000
        hook.answers = always(status, ("Retry-After", "999999"))
        await setup.send()
        assert await setup.until_due() == HOUR
        hook.answers = always(status, ("Retry-After", "0"))
        await setup.send()
        assert await setup.until_due() >= 2000


OVERFLOWS = "Mon, 01 Jan 2024 00:00:00 +99999999999999999"


async def test_a_time_that_cannot_be_counted_is_no_time_and_the_try_counts() -> None:
    setup = WebhookSetup()
    async with Receiver(always(429, ("Retry-After", OVERFLOWS))) as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        for tries in (1, 2, 3):
            await setup.send()
            assert (await setup.cursor()).tries == tries
            await setup.until_due()
    assert (await setup.cursor()).error == "answered 429"


# Dead


async def test_after_a_day_an_event_is_dead_and_the_next_is_tried() -> None:
    setup = WebhookSetup()
    async with Receiver(always(500)) as hook:
        session = await setup.talk("one", webhook=Webhook(hook.url))
        began = setup.clock.now()
        setup.clock.advance(HOUR)
        await setup.work(session, "two")
        tries = 0
        while not await setup.dead():
            tries += 1
            await setup.send()
            if (await setup.cursor()).tries:
                await setup.until_due()
        assert tries > 24

        ((offset, error),) = await setup.dead()
        assert error == "answered 500"
        assert setup.clock.now() - began >= DAY
        cursor = await setup.cursor()
        assert (cursor.position, cursor.tries) == (offset, 1)
        hook.answers = ok
        await setup.until_due()
        await setup.send()
    assert hook.posts[-1].json["output"] == "verse 3"
    assert len(await setup.dead()) == 1


async def test_the_last_try_is_when_the_day_is_over() -> None:
    setup = WebhookSetup()
    async with Receiver(always(500)) as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        began = setup.clock.now()
        for _ in range(100):
            await setup.send()
            if await setup.dead():
                break
            await setup.until_due()
    (letter,) = await setup.store.outbox.dead_letters()
    assert letter.at == began + DAY
    assert (letter.type, letter.cursor_name) == ("turn.completed", "webhook")
    assert int(hook.posts[-1].headers["webhook-timestamp"]) == letter.at // 1000


async def test_an_event_that_waited_for_a_dispatcher_for_days_is_still_tried_once() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        setup.clock.advance(3 * DAY)
        await setup.send()
        assert hook.types == ["turn.completed"]
        hook.answers = always(500)
        session = (await setup.cursor()).session_id
        await setup.work(session, "two", "three")
        setup.clock.advance(3 * DAY)
        await setup.send()
    assert len(hook.posts) == 3
    assert len(await setup.dead()) == 2
