"""A dispatcher at work: many sessions at once, receivers and stores that do not keep up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from webhook_receiver import Post, Receiver, Reply, hang, ok
from webhook_setup import HOUR, QUICK, SECRET, WebhookSetup, poet

from outlast import Outlast, Webhook
from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.integration.outbox import WebhookSettings
from outlast.store import OutboxCursor
from outlast.stores.sqlite import MemoryStore
from outlast.testing.wrapped_store import WrappedStore


def real_setup(**settings: Any) -> WebhookSetup:
    """An setup in which time passes."""
    setup = WebhookSetup(**{"poll": 0.05, **settings})
    setup.clock = Clock()  # type: ignore[assignment]
    setup.store = MemoryStore(setup.clock)
    return setup


async def test_a_receiver_that_hangs_does_not_keep_others_from_being_told() -> None:
    setup = real_setup(at_once=6, at_once_per_receiver=2, timeout=60.0)
    async with Receiver(hang) as stuck, Receiver() as hook:
        for _ in range(12):
            await setup.talk("one", webhook=Webhook(stuck.url))
        await setup.talk("one", webhook=Webhook(hook.url))
        dispatcher = setup.dispatcher()
        dispatcher.start()
        await hook.until(1)
        assert len(stuck.posts) == 2
        await dispatcher.stop()


async def test_a_place_that_gets_free_is_taken_at_once() -> None:
    setup = real_setup(at_once=1, poll=60.0)
    async with Receiver() as hook:
        for _ in range(3):
            await setup.talk("one", webhook=Webhook(hook.url))
        dispatcher = setup.dispatcher()
        dispatcher.start()
        await hook.until(3)
        await dispatcher.stop()


async def test_many_sessions_are_told_of_at_once_and_no_more_than_allowed() -> None:
    setup = WebhookSetup(at_once=20, at_once_per_receiver=3)
    now = most = 0

    async def slowly(post: Post) -> Reply:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(10):
            await asyncio.sleep(0)
        now -= 1
        return Reply()

    async with Receiver(slowly) as hook:
        sessions = {await setup.talk("one", webhook=Webhook(hook.url)) for _ in range(15)}
        assert await setup.send() == 15
    assert most == 3
    assert {post.json["session_id"] for post in hook.posts} == sessions
    assert await setup.store.outbox.next_due_at() is None


async def test_a_dispatcher_that_is_stopped_gives_back_what_it_has_not_told() -> None:
    setup = WebhookSetup(at_once_per_receiver=1)
    async with Receiver(hang) as hook:
        for _ in range(3):
            await setup.talk("one", "two", webhook=Webhook(hook.url))
        hook.answers = first_only
        dispatcher = setup.dispatcher()
        dispatcher.start()
        await hook.until(2)
        await dispatcher.stop()

        hook.posts.clear()
        hook.answers = ok
        assert await setup.send() == 3
    assert len(hook.posts) == 5


async def first_only(post: Post) -> Reply:
    return Reply() if post.json["output"] == "verse 1" else await hang(post)


async def test_sessions_that_tell_nothing_cost_a_dispatcher_no_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Counting(WrappedStore):
        taken = looked = 0

        async def take(self, limit: int, hold: int) -> Sequence[OutboxCursor]:
            self.taken += 1
            return await super().take(limit, hold)

        async def next_due_at(self) -> int | None:
            self.looked += 1
            return await super().next_due_at()

    store, clock = Counting(MemoryStore()), Clock()
    settings = WebhookSettings(secret=SECRET, allow_private=True)
    async with Outlast([poet()], store=store, worker=QUICK, webhooks=settings) as app:
        began = clock.monotonic()
        session = await app.start("poet", "one")
        for _ in range(50):
            await (await session.send("more")).result()
        assert store.taken == 0
        assert store.looked <= 10 * (clock.monotonic() - began) + 2
    assert caplog.messages == []


class Failing(WrappedStore):
    """A store that is away for the next call of one kind."""

    down = ""

    def _fail(self, name: str) -> None:
        if self.down == name:
            self.down = ""
            raise StoreUnavailable("the store is away")

    async def settle(self, *args: Any, **options: Any) -> bool:
        self._fail("settle")
        return await super().settle(*args, **options)

    async def next_due_at(self) -> int | None:
        self._fail("look")
        return await super().next_due_at()

    async def read(self, *args: Any, **options: Any) -> Any:
        self._fail("read")
        return await super().read(*args, **options)


async def test_what_could_not_be_settled_is_told_again_when_its_hold_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = WebhookSetup()
    store = setup.store = Failing(setup.store)
    async with Receiver() as hook:
        await setup.talk("one", "two", webhook=Webhook(hook.url))
        store.down = "settle"
        await setup.send()
        assert caplog.messages == ["an outbox cursor could not be settled"]
        assert await setup.send() == 0
        setup.clock.advance(HOUR)
        await setup.send()
    said = [post.json["output"] for post in hook.posts]
    assert said == ["verse 1", "verse 3"] * 2


async def test_what_could_not_be_read_is_told_a_little_later() -> None:
    setup = WebhookSetup()
    store = setup.store = Failing(setup.store)
    async with Receiver() as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        store.down = "read"
        await setup.send()
        assert hook.posts == []
        assert await setup.until_due() <= 20_000
        await setup.send()
    assert hook.types == ["turn.completed"]


async def test_a_store_that_was_away_is_looked_into_again() -> None:
    setup = real_setup()
    store = setup.store = Failing(setup.store)
    async with Receiver() as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        store.down = "look"
        dispatcher = setup.dispatcher()
        dispatcher.start()
        await hook.until(1)
        await dispatcher.stop()
    assert store.down == ""
