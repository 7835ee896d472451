"""Webhooks as a receiver gets them: which events, in which order, signed by whom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from webhook_receiver import Receiver, always, failing
from webhook_setup import DAY, QUICK, SECRET, WebhookSetup, poet

from outlast import Agent, Context, Outlast, Webhook, tool
from outlast.agents.subscription import EVENTS
from outlast.core.event import encode
from outlast.errors import AddressRefused, InvalidDefinition, InvalidInput, InvalidSignature
from outlast.integration.outbox import DEFAULT_EVENTS, Subscription, WebhookSettings, verify
from outlast.net.client import GuardedClient
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedModel, call, say

OTHER = "staple of another sort"


async def test_a_session_tells_its_webhook_how_its_turns_ended_in_order() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        session = await setup.talk("one", "two", "three", webhook=Webhook(hook.url))
        assert await setup.send() == 1

    assert hook.types == ["turn.completed"] * 3
    offsets = [post.json["event"]["offset"] for post in hook.posts]
    assert offsets == sorted(offsets)
    assert [post.id for post in hook.posts] == [f"{session}-{offset}" for offset in offsets]
    assert [post.json["output"] for post in hook.posts] == ["verse 1", "verse 3", "verse 5"]
    assert hook.connections == 1


async def test_what_is_posted_is_the_event_as_streams_have_it_and_where_it_comes_from() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        session = await setup.talk("one", webhook=Webhook(hook.url), tenant="acme")
        await setup.send()

    (post,) = hook.posts
    async with setup.reading() as app:
        handle = await app.session(session)
        (event,) = [e async for e in handle.events(follow=False) if e.type == "turn.completed"]
    head = f'{{"id":"{post.id}","session_id":"{session}","agent":"poet","tenant":"acme","event":'
    assert post.body == head.encode() + encode(event) + b',"output":"verse 1"}'
    assert post.method == "POST"
    assert post.headers["content-type"] == "application/json"


async def test_what_is_posted_can_be_verified_with_the_secret_and_with_no_other() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        await setup.send()

    (post,) = hook.posts
    said = verify(SECRET, post.headers, post.body, clock=setup.clock)
    assert said["event"]["type"] == "turn.completed"
    with pytest.raises(InvalidSignature):
        verify(OTHER, post.headers, post.body, clock=setup.clock)


async def test_an_answer_that_is_typed_comes_as_its_value() -> None:
    model = ScriptedModel([call("final_result", value=[1, 2])])
    setup = WebhookSetup(Agent("poet", model, output_type=list[int]))
    async with Receiver() as hook:
        await setup.talk("count", webhook=Webhook(hook.url))
        await setup.send()
    assert hook.posts[0].json["output"] == [1, 2]


async def test_only_the_chosen_events_are_told() -> None:
    setup = WebhookSetup()
    chosen = ["message.completed", "session.started", "delivery.settled"]
    async with Receiver() as hook:
        await setup.talk("one", "two", webhook=Webhook(hook.url, events=chosen))
        await setup.send()
    (first, *rest) = hook.types
    assert first == "session.started"
    assert rest == ["message.completed", "delivery.settled"] * 2


@pytest.mark.parametrize("kind", ["session.started", "delivery.queued", "cancel.requested"])
async def test_what_arrives_is_told_too_when_it_is_taken_up(kind: str) -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        session = await setup.talk("one", webhook=Webhook(hook.url, events=[kind]))
        await cancel(setup, session)
        await setup.send()
    assert hook.types == [kind]


async def cancel(setup: WebhookSetup, session_id: str) -> None:
    async with setup.reading() as app:
        await (await app.session(session_id)).cancel("enough")
    await setup.work(session_id)


async def test_events_of_every_lane_are_told() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        session = await setup.talk("one", webhook=Webhook(hook.url))
        async with setup.reading() as app:
            await (await app.session(session)).send("two", lane="side")
        await setup.work(session)
        await setup.send()
    assert [post.json["event"]["lane"] for post in hook.posts] == ["main", "side"]


async def test_what_was_told_is_not_told_again() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        session = await setup.talk("one", webhook=Webhook(hook.url))
        await setup.send()
        told = await setup.store.listing.session(session)
        assert told is not None
        assert (await setup.cursor()).position == told.end
        assert await setup.send() == 0
        await setup.work(session, "two")
        assert await setup.send() == 1
        await setup.send()
    assert [post.json["output"] for post in hook.posts] == ["verse 1", "verse 3"]


async def test_a_session_that_ends_says_so() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        await setup.talk("one", webhook=Webhook(hook.url), mode="task")
        await setup.send()
    assert hook.types == ["turn.completed", "session.completed"]


async def test_subscribers_of_an_agent_are_told_of_all_its_sessions() -> None:
    async with Receiver() as crm, Receiver() as audit, Receiver() as hook:
        setup = WebhookSetup(
            poet(
                Subscription(crm.url, events=["turn.completed"], name="crm"),
                Subscription(audit.url, events=["session.started"], name="audit", secret=OTHER),
            )
        )
        one = await setup.talk("one", webhook=Webhook(hook.url))
        two = await setup.talk("two")
        await setup.send()

    assert {post.json["session_id"] for post in crm.posts} == {one, two}
    assert crm.types == ["turn.completed"] * 2
    assert audit.types == ["session.started"] * 2
    assert len(hook.posts) == 1
    for post in audit.posts:
        verify(OTHER, post.headers, post.body, clock=setup.clock)


async def test_url_and_secret_of_a_subscription_are_those_of_the_code_of_today() -> None:
    async with Receiver() as before, Receiver() as after:
        setup = WebhookSetup(poet(Subscription(before.url, secret=SECRET)))
        await setup.talk("one")
        setup.agent = poet(Subscription(after.url, secret=[OTHER, SECRET]))
        await setup.send()

    assert before.posts == []
    (post,) = after.posts
    for secret in (OTHER, SECRET):
        verify(secret, post.headers, post.body, clock=setup.clock)
    assert (await setup.cursor("agent:default")).url == ""


async def test_what_nobody_subscribes_to_any_more_is_dead_after_a_day() -> None:
    async with Receiver() as crm:
        setup = WebhookSetup(poet(Subscription(crm.url)))
        await setup.talk("one")
        setup.agent = poet()
        await setup.send()
        assert (await setup.cursor("agent:default")).tries == 1
        setup.clock.advance(DAY)
        await setup.send()
    ((_, error),) = await setup.dead()
    assert "no subscription" in error
    assert crm.posts == []


async def test_a_receiver_that_fails_keeps_nothing_from_another() -> None:
    async with Receiver(always(500)) as bad, Receiver() as good:
        setup = WebhookSetup(
            poet(Subscription(bad.url, name="bad"), Subscription(good.url, name="ok"))
        )
        await setup.talk("one", "two")
        await setup.send()
    assert (len(bad.posts), len(good.posts)) == (1, 2)


async def test_an_outbox_cursor_of_an_agent_that_this_app_does_not_have_is_left_to_others() -> None:
    setup = WebhookSetup()
    async with Receiver() as hook:
        await setup.talk("one", webhook=Webhook(hook.url))
        stranger = setup.dispatcher(painter=poet())
        await stranger.deliver_due()
        left = await setup.cursor()
        assert (left.tries, left.position, left.error) == (0, 0, "")
        await setup.until_due()
        await setup.send()
    assert hook.types == ["turn.completed"]


async def test_a_session_that_is_erased_while_it_is_told_of_tells_nothing_more() -> None:
    setup = WebhookSetup()

    async def resolve(host: str, port: int) -> list[str]:
        await setup.store.log.erase(session)
        return ["127.0.0.1"]

    async with Receiver() as hook:
        url = f"http://hook.example:{hook.port}/"
        session = await setup.talk("one", "two", webhook=Webhook(url))
        await setup.send(GuardedClient(allow_private=True, resolve=resolve))
        assert await setup.send() == 0
    assert len(hook.posts) < 2
    assert await setup.store.outbox.cursors() == []


async def test_nobody_but_the_receiver_gets_to_know_a_secret_or_a_url() -> None:
    url = "http://127.0.0.1:1/s3cret?token=s3cret"
    async with Receiver() as crm:
        setup = WebhookSetup(poet(Subscription(crm.url + "/s3cret", secret=OTHER)))
        session = await setup.talk("one", webhook=Webhook(url, events=sorted(EVENTS)))
        await setup.send()
        async with setup.reading() as app:
            handle = await app.session(session)
            events = [event async for event in handle.events(follow=False, internals=True)]
    told = [*events, await setup.cursor("agent:default"), *crm.posts[0].json.values()]
    failing = (await setup.cursor()).error
    text = " ".join([*map(str, told), failing])
    for secret in (SECRET, OTHER, "s3cret"):
        assert secret not in text
    assert failing == "no connection"


# At the start


async def refused(kind: type[Exception], match: str, **options: Any) -> None:
    settings = options.pop("webhooks", WebhookSettings(secret=SECRET))
    async with Outlast([poet()], store="memory://", worker=None, webhooks=settings) as app:
        with pytest.raises(kind, match=match) as found:
            await app.start("poet", "one", **options)
        assert "s3cret" not in str(found.value)
        assert await app.sessions() == []


async def test_a_webhook_url_needs_a_secret() -> None:
    url = "https://shop.example/s3cret"
    needed = r"needs a secret .*WebhookSettings\(secret=…\)"
    await refused(InvalidInput, needed, webhook=Webhook(url), webhooks=WebhookSettings())
    nowhere = r"has no webhook settings: .*WebhookSettings\(secret=…\)"
    for secret in (SECRET, ""):
        await refused(InvalidInput, nowhere, webhook=Webhook(url, secret=secret), webhooks=None)


async def test_a_webhook_url_in_ones_own_network_is_refused_at_the_start() -> None:
    await refused(AddressRefused, "allow_private", webhook=Webhook("http://127.0.0.1/s3cret"))
    await refused(AddressRefused, "allow_private", webhook=Webhook("http://localhost/s3cret"))


async def test_events_that_do_not_exist_or_are_internal_are_refused_at_the_start() -> None:
    url = "https://shop.example/"
    for events in (["turn.done"], ["state.changed"], []):
        await refused(InvalidDefinition, "event", webhook=Webhook(url, events=events))


def test_a_subscription_without_any_secret_is_refused_where_the_app_is_made() -> None:
    agent = poet(Subscription("https://shop.example/"))
    with pytest.raises(InvalidDefinition, match="no secret"):
        Outlast([agent], store="memory://")
    Outlast([agent], store="memory://", webhooks=WebhookSettings(secret=SECRET))


def test_two_subscriptions_of_an_agent_have_different_names() -> None:
    with pytest.raises(InvalidDefinition, match="name"):
        poet(Subscription("https://a.example/"), Subscription("https://b.example/"))


async def test_a_start_that_is_repeated_after_a_change_of_subscriptions_is_the_same() -> None:
    store = MemoryStore()
    ids = []
    for agent in (poet(), poet(Subscription("https://a.example/", secret=SECRET))):
        async with Outlast([agent], store=store, worker=None) as app:
            ids.append((await app.start("poet", "one", dispatch_id="d")).id)
    assert ids[0] == ids[1]


# In an app that works


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'outlast.db'}"
        case "postgres":
            return str(request.getfixturevalue("postgres_url"))
    return "memory://"


async def test_an_app_with_webhooks_sends_them_by_itself(store_url: str) -> None:
    settings = WebhookSettings(secret=SECRET, allow_private=True, poll=60.0)
    async with Receiver(failing(1)) as hook:
        app = Outlast([poet()], store=store_url, worker=QUICK, webhooks=settings)
        async with app:
            session = await app.start("poet", "one", webhook=Webhook(hook.url))
            await hook.until(1)
            await session.send("two")
            await hook.until(2)
        assert [post.json["output"] for post in hook.posts] == ["verse 1", "verse 1", "verse 3"]


@tool(transactional=True)
async def count(ctx: Context) -> int:
    """Count to one."""
    ((one,),) = await ctx.tx.fetch("SELECT 1")
    return int(one)


async def test_what_was_recorded_in_a_tools_transaction_is_told(store_url: str) -> None:
    settings = WebhookSettings(secret=SECRET, allow_private=True, poll=60.0)
    counter = Agent("counter", ScriptedModel([call("count"), say("one")]), tools=[count])
    async with Receiver() as hook:
        app = Outlast([counter], store=store_url, worker=QUICK, webhooks=settings)
        async with app:
            events = ["tool.completed"]
            await app.start("counter", "go", webhook=Webhook(hook.url, events=events))
            await hook.until(1)
    assert hook.types == ["tool.completed"]


async def test_what_is_due_when_an_app_closes_is_told_before() -> None:
    settings = WebhookSettings(secret=SECRET, allow_private=True)
    async with Receiver() as hook:
        async with Outlast([poet()], store="memory://", worker=QUICK, webhooks=settings) as app:
            await (await app.start("poet", "one", webhook=Webhook(hook.url))).wait()
        assert hook.types == ["turn.completed"]


async def test_an_app_without_webhooks_has_no_dispatcher() -> None:
    async with Outlast([poet()], store="memory://", worker=QUICK):
        names = {task.get_name() for task in asyncio.all_tasks()}
    assert "outlast claim" in names
    assert "outlast outbox dispatcher" not in names


def test_the_default_events_say_how_turns_ended_and_what_is_asked() -> None:
    assert "turn.completed" in DEFAULT_EVENTS
    assert "request.opened" in DEFAULT_EVENTS
