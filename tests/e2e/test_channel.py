"""A channel from both sides: what is posted to it, and what it posts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from front_desk import QUICK, SECRET, front_desk
from http_scene import FAST, on_a_socket, teller
from msgspec.structs import replace
from scene import results_of, seen, until
from sign_in_scene import KEY
from webhook_receiver import Post, Receiver, Reply, failing, ok
from webhook_setup import QUICK as PATIENT

from outlast import Agent, Connection, ConnectionSettings, Context, Event, Outlast, Token, tool
from outlast.agents.model.client import ModelRequest
from outlast.client import Client
from outlast.errors import (
    OutlastError,
    SessionOver,
    StoreUnavailable,
    UnknownChannel,
    UnknownSession,
    Unreachable,
)
from outlast.integration.channel import (
    Channel,
    Inbound,
    InboundRequest,
    Outgoing,
    SignedWebhookChannel,
)
from outlast.integration.channel.sender import ChannelSenders
from outlast.integration.outbox import WebhookSettings, sign
from outlast.log.verify import verify
from outlast.server import ServerSettings
from outlast.store import Admission, AdmissionReceipt, DeadLetter, OutboxCursor, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedError, ScriptedModel, call, say
from outlast.testing.wrapped_store import WrappedStore

# In


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_thread_is_a_session_and_what_it_answers_is_posted(
    store: str, tmp_path: Path
) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'outlast.db'}"
    async with front_desk(store=url) as desk:
        first = await desk.say("room-7", "hello")
        await desk.told(1)
        second = await desk.say("room-7", "again")
        other = await desk.say("room-8", "hello")
        told = await desk.told(3)

        assert first["session_id"] == second["session_id"] != other["session_id"]
        assert [each["text"] for each in told if each["thread"] == "room-7"] == [
            "You said: hello",
            "You said: again",
        ]
        info = await desk.app.store.listing.session(first["session_id"])
        assert info is not None
        assert (info.agent, info.tenant) == ("teller", "default")
        session = await desk.app.session(info.session_id)
        [queued, *_] = [
            e async for e in session.events(follow=False) if e.type == "delivery.queued"
        ]
        assert queued.data["principal"] == "ada"


class TaggingChannel(SignedWebhookChannel):
    """Tags the sessions of a room with it, and with who said something first."""

    def read(self, request: InboundRequest) -> Inbound:
        found = super().read(request)
        return replace(found, tags={"room": found.thread, "by": found.principal})


async def test_a_message_that_starts_a_session_gives_it_the_tags_that_its_channel_says() -> None:
    channel = TaggingChannel("desk", teller, SECRET, "https://desk.example")
    async with Outlast([teller], store="memory://", worker=None, channels=[channel]) as app:
        for number, user in enumerate(("ada", "bob")):
            body = msgspec.json.encode({"thread": "7", "text": "hello", "user": user})
            headers = {**sign(SECRET, body, app.clock.now() // 1000, f"msg_{number}")}
            await app.channels.receive("desk", headers, body)

        [listed] = await app.sessions(tags={"room": "7"})
        assert listed.tags == {"room": "7", "by": "ada"}


async def test_the_same_thing_twice_is_delivered_once() -> None:
    async with front_desk() as desk:
        first = await desk.say("room-7", "hello", id="msg_a")
        await desk.told(1)
        again = await desk.say("room-7", "hello", id="msg_a")

        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert again["delivery_id"] == first["delivery_id"]
        assert await desk.deliveries(first["session_id"]) == [first["delivery_id"]]
        refused = await desk.post("room-7", "something else", id="msg_a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "DISPATCH_CONFLICT")


async def test_no_dispatch_id_of_a_user_takes_a_messages_place() -> None:
    async with front_desk() as desk:
        await desk.app.start("teller", "mine", dispatch_id="channel:desk:msg_a")

        said = await desk.say("room-7", "hello", id="msg_a")

        assert not said["duplicate"]
        assert (await desk.told(1))[0]["session_id"] == said["session_id"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_two_messages_for_a_new_thread_at_once_go_to_one_session(
    store: str, tmp_path: Path
) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'outlast.db'}"
    async with front_desk(store=url) as desk:
        texts = [f"hello {n}" for n in range(6)]
        sent = [desk.say("room-7", text, id=text) for text in (*texts, *texts)]
        found = await asyncio.gather(*sent)

        [session] = {each["session_id"] for each in found}
        assert len(await desk.app.sessions()) == 1
        assert len(await desk.deliveries(session)) == len(texts)
        told = await desk.told(len(texts))
        assert {each["text"] for each in told} == {f"You said: {text}" for text in texts}


async def test_what_is_signed_by_somebody_else_is_refused_and_changes_nothing() -> None:
    async with front_desk(worker=None) as desk:
        refused = await desk.post("room-7", "hello", secret="another secret altogether")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "INVALID_SIGNATURE")
        async with desk.bank.caller(peer="203.0.113.9") as caller:
            assert await caller.refused("POST", "/channels/desk", 401) == "INVALID_SIGNATURE"
        assert await desk.app.sessions() == []


async def test_a_channel_that_is_not_there_is_not_found() -> None:
    async with front_desk(worker=None) as desk, desk.bank.caller(peer="203.0.113.9") as caller:
        for name in ("none", "%00", "x" * 300):
            assert await caller.refused("POST", f"/channels/{name}", 404) == "UNKNOWN_CHANNEL"
        assert await caller.refused("POST", "/channels/desk/more", 401) == "UNAUTHENTICATED"


async def test_a_body_is_bounded() -> None:
    settings = ServerSettings(max_callback=100)
    async with front_desk(settings=settings, worker=None) as desk:
        assert (await desk.post("room-7", "x" * 100)).status_code == 413
        assert (await desk.post("room-7", "hello")).status_code == 202


async def test_what_means_nothing_is_refused() -> None:
    async with front_desk(worker=None) as desk:
        refused = await desk.post("room-7")
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "INVALID_MESSAGE")
        assert await desk.app.sessions() == []


class Forgetful(WrappedStore):
    """Admits what it is given, and says that it could not, as often as told."""

    def __init__(self, store: Store, times: int) -> None:
        super().__init__(store)
        self._times = times

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        found = await super().admit(admissions)
        if self._times:
            self._times -= 1
            raise StoreUnavailable("the connection is lost")
        return found


async def test_a_sender_who_was_told_nothing_tries_again_and_is_heard_once() -> None:
    async with front_desk(store=Forgetful(MemoryStore(), 1)) as desk:
        lost = await desk.post("room-7", "hello", id="msg_a")
        assert (lost.status_code, lost.headers["Retry-After"]) == (503, "1")
        again = await desk.say("room-7", "hello", id="msg_a")
        assert again["duplicate"]
        assert [each["text"] for each in await desk.told(1)] == ["You said: hello"]
        assert len(await desk.app.sessions()) == 1


KILLED = """
import asyncio, os, signal, sys
from http_scene import teller
from outlast import Outlast
from outlast.integration.channel import SignedWebhookChannel
from outlast.stores.url import open_store
from outlast.clock import Clock
from outlast.testing.wrapped_store import WrappedStore
from outlast.integration.outbox import sign

class Deadly(WrappedStore):
    async def admit(self, admissions):
        await super().admit(admissions)
        os.kill(os.getpid(), signal.SIGKILL)

async def main(url, secret):
    clock = Clock()
    desk = SignedWebhookChannel("desk", teller, secret, "https://desk.example/")
    store = Deadly(open_store(url, clock))
    async with Outlast([teller], store=store, worker=None, channels=[desk]) as app:
        body = b'{"thread":"room-7","text":"hello","user":"ada"}'
        await app.channels.receive("desk", sign(secret, body, clock.now() // 1000, "msg_a"), body)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_kill_between_the_delivery_and_the_answer_to_its_sender_loses_nothing(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'outlast.db'}"
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, url, SECRET],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        timeout=60,
    )
    assert ended.returncode == -9
    async with front_desk(store=url) as desk:
        again = await desk.say("room-7", "hello", id="msg_a")
        assert again["duplicate"]
        assert [each["text"] for each in await desk.told(1)] == ["You said: hello"]
        assert await desk.deliveries(again["session_id"]) == [again["delivery_id"]]


async def test_a_thread_whose_session_is_over_goes_on_in_another() -> None:
    async with front_desk() as desk:
        first = await desk.say("room-7", "hello", id="msg_a")
        await desk.told(1)
        session = await desk.app.session(first["session_id"])
        await session.end("enough")
        await session.wait()
        assert (await desk.say("room-7", "hello", id="msg_a"))["duplicate"]
        second = await desk.say("room-7", "again")
        assert second["session_id"] != first["session_id"]
        assert (await desk.told(2))[1]["text"] == "You said: again"


class EndsOnce(WrappedStore):
    """A store in which a session ends just before a message gets there."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.ended = 0

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        if not self.ended:
            self.ended += 1
            return [SessionOver("the session is over")]
        return await super().admit(admissions)


async def test_a_session_that_ends_while_a_message_is_on_its_way_does_not_lose_it() -> None:
    store = EndsOnce(MemoryStore())
    async with front_desk(store=store) as desk:
        await desk.say("room-7", "hello")
        assert store.ended
        assert (await desk.told(1))[0]["text"] == "You said: hello"


async def test_tenants_and_channels_are_kept_apart() -> None:
    async with Receiver() as hook:
        channels = [
            SignedWebhookChannel(name, "teller", SECRET, hook.url, tenant=name, allow_private=True)
            for name in ("red", "blue")
        ]
        async with front_desk(channels=channels) as desk:
            sessions = set()
            for name in ("red", "blue"):
                desk.name = name
                sessions.add((await desk.say("room-7", "hello", id="msg_a"))["session_id"])
            await hook.until(2)
            tenants = [(await desk.app.session(each)) for each in sessions]
            assert {(await each.info()).tenant for each in tenants} == {"red", "blue"}
        assert {(each.json["tenant"], each.json["agent"]) for each in hook.posts} == {
            ("red", "teller"),
            ("blue", "teller"),
        }


# Requests


async def test_a_question_is_posted_with_its_options_and_answered_by_a_button() -> None:
    async with front_desk() as desk:
        await desk.say("room-7", "refund it")
        [asked] = await desk.told(1)
        assert asked["type"] == "request.opened"
        assert asked["text"] == "May refund run? refund(order=17, cents=500)"
        assert [each["id"] for each in asked["request"]["options"]] == ["approve", "deny"]

        pressed = await desk.press(asked, "approve", id="btn_a", user="bob")
        again = await desk.press(asked, "approve", id="btn_a", user="bob")
        assert (pressed.status_code, again.status_code) == (202, 202)
        assert again.json()["duplicate"]
        assert (await desk.told(2))[1]["text"] == "That is done."
        session = await desk.app.session(pressed.json()["session_id"])
        [resolved] = [e async for e in session.events(follow=False) if e.type == "request.resolved"]
        assert (resolved.data["option"], resolved.data["principal"]) == ("approve", "bob")

        late = await desk.press(asked, "deny", user="eve")
        assert (late.status_code, late.json()["error"]["code"]) == (409, "REQUEST_CLOSED")


async def test_a_text_while_something_is_asked_is_a_message_and_no_answer() -> None:
    async with front_desk() as desk:
        sent = await desk.say("room-7", "refund it")
        [asked] = await desk.told(1)
        await desk.say("room-7", "approve")
        session = await desk.app.session(sent["session_id"])
        assert [each.request_id for each in await session.requests()] == [
            asked["request"]["request_id"]
        ]
        assert (await desk.press(asked, "deny")).status_code == 202
        told = await desk.told(3)
        assert [each["text"] for each in told[1:]] == ["That is done.", "You said: approve"]


async def test_what_was_asked_in_one_thread_cannot_be_answered_in_another() -> None:
    async with front_desk() as desk:
        await desk.say("room-7", "refund it")
        await desk.say("room-8", "hello")
        asked = next(each for each in await desk.told(2) if each["thread"] == "room-7")
        for thread in ("room-8", "room-9"):
            refused = await desk.press(asked, "approve", thread=thread)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                404,
                "UNKNOWN_REQUEST",
            )
        assert (await desk.press(asked, "deny")).status_code == 202


async def test_a_press_that_is_repeated_when_the_session_is_over_is_the_same() -> None:
    async with front_desk() as desk:
        await desk.say("room-7", "refund it")
        [asked] = await desk.told(1)
        first = await desk.press(asked, "approve", id="btn_a")
        await desk.told(2)
        session = await desk.app.session(asked["session_id"])
        await session.end()
        await session.wait()
        again = await desk.press(asked, "approve", id="btn_a")
        assert again.json() == {**first.json(), "duplicate": True}


async def test_a_sign_in_is_told_of_in_words_and_its_address_apart_from_them() -> None:
    @tool
    async def look(ctx: Context) -> str:
        return await ctx.require_auth("hub")

    hub = Connection("hub", "https://hub.example/in", "https://hub.example/token", "us")
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel([call("look")]), tools=[look])
    async with Receiver(ok) as hook:
        desk = SignedWebhookChannel("desk", clerk, SECRET, hook.url, allow_private=True)
        app = Outlast(
            [clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=[desk],
            connections=ConnectionSettings([hub], KEY), public_url="https://us.example",
        )  # fmt: skip
        async with app:
            body = b'{"thread": "room-7", "text": "look", "user": "ada"}'
            headers = sign(SECRET, body, app.clock.now() // 1000, "msg_1")
            await app.channels.receive("desk", headers, body)
            await hook.until(1)

    told = hook.posts[0].json
    assert (told["type"], told["text"]) == (
        "authorization.required",
        "ada has to sign in to hub.",
    )
    assert (told["sign_in"]["principal"], told["sign_in"]["connection"]) == ("ada", "hub")
    assert told["sign_in"]["url"].startswith("https://hub.example/in?")


async def test_a_turn_that_fails_says_so() -> None:
    async with front_desk() as desk:
        await desk.say("room-7", "fail please")
        [told] = await desk.told(1)
        assert (told["type"], told["error"]["code"]) == ("turn.failed", "SCRIPTED")
        assert "the bank is closed" in told["text"]


# Out


class Settled(WrappedStore):
    """A store whose time stands still, and that tells when an outbox cursor was given back."""

    def __init__(self) -> None:
        self.time = ManualClock()
        super().__init__(MemoryStore(self.time))
        self._news = asyncio.Condition()

    async def settle(self, cursor: OutboxCursor, **given: Any) -> bool:
        found = await super().settle(cursor, **given)
        async with self._news:
            self._news.notify_all()
        return found

    async def until_failed(self, error: str, tries: int = 1) -> OutboxCursor:
        """Wait until the one outbox cursor has failed so often, the last time like this."""
        async with asyncio.timeout(60), self._news:
            while True:
                [cursor] = await self.cursors()
                if (cursor.error, cursor.tries) == (error, tries):
                    return cursor
                await self._news.wait()

    async def until_dead(self) -> DeadLetter:
        async with asyncio.timeout(60), self._news:
            while not (found := await self.dead_letters()):
                await self._news.wait()
        return found[0]


async def test_a_receiver_that_was_away_is_told_all_in_order() -> None:
    store = Settled()
    async with front_desk(failing(2), store=store, clock=store.time, worker=PATIENT) as desk:
        sent = await desk.say("room-7", "first")
        await desk.say("room-7", "second")
        session = await desk.app.session(sent["session_id"])
        await session.wait()
        for tries in (1, 2):
            await store.until_failed("answered 500", tries)
            store.time.advance(10_000)
        told = await desk.told(2)
        assert [each["text"] for each in told] == ["You said: first", "You said: second"]
        assert [post.json["text"] for post in desk.hook.posts][:3] == ["You said: first"] * 3


async def test_a_receiver_that_wants_to_be_left_alone_is_and_one_that_is_gone_is_given_up() -> None:
    store = Settled()
    answers = iter([Reply(429, (("retry-after", "1800"),)), Reply(410)])

    def answer(post: Post) -> Reply:
        return next(answers, Reply())

    async with front_desk(answer, store=store, clock=store.time, worker=PATIENT) as desk:
        await desk.say("room-7", "first")
        cursor = await store.until_failed("answered 429")
        assert cursor.due_at is not None
        assert cursor.due_at - store.time.now() == 1800 * 1000
        store.time.advance(1800 * 1000)
        await desk.say("room-7", "second")
        assert (await desk.told(2))[1]["text"] == "You said: second"
        dead = await store.until_dead()
        assert (dead.cursor_name, dead.type, dead.error) == (
            "channel:desk",
            "turn.completed",
            "answered 410",
        )


async def test_a_session_that_is_erased_is_told_of_no_more_and_its_thread_begins_anew() -> None:
    store = Settled()
    async with front_desk(failing(1), store=store, clock=store.time, worker=PATIENT) as desk:
        sent = await desk.say("room-7", "first", id="msg_a")
        await store.until_failed("answered 500")
        await desk.app.erase(sent["session_id"])
        store.time.advance(10_000)

        refused = await desk.post("room-7", "first", id="msg_a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "SESSION_ERASED")
        fresh = await desk.say("room-7", "second")
        assert fresh["session_id"] != sent["session_id"]
        told = await desk.told(2)
        assert [(each["session_id"], each["text"]) for each in told] == [
            (sent["session_id"], "You said: first"),
            (fresh["session_id"], "You said: second"),
        ]
        assert len(desk.hook.posts) == 2


class Board(Channel):
    """A channel without a wire: the name of the sender is all that is verified."""

    def __init__(self, name: str = "board") -> None:
        super().__init__(name, "clerk")
        self.sent: list[tuple[str, str]] = []
        self.hang: asyncio.Event | None = None
        self.called = asyncio.Event()
        self.news = asyncio.Condition()

    def verify(self, request: InboundRequest) -> None:
        request.header("From")

    def read(self, request: InboundRequest) -> Inbound | None:
        said = request.json()
        if not said.get("text"):
            return None
        return Inbound(id=said["id"], thread=said["thread"], message=said["text"])

    async def send(self, outgoing: Outgoing, thread: str) -> str | None:
        self.called.set()
        if self.hang:
            await self.hang.wait()
        async with self.news:
            self.sent.append((thread, outgoing.text))
            self.news.notify_all()
        return None

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60), self.news:
            await self.news.wait_for(lambda: len(self.sent) >= count)


async def say_to(app: Outlast, thread: str, text: str, id: str) -> str:
    body = msgspec.json.encode({"thread": thread, "text": text, "id": id})
    received = await app.channels.receive("board", {"FROM": "ada"}, body)
    assert received.receipt is not None
    return str(received.receipt.session_id)


async def test_a_conversation_that_moves_to_another_thread_is_the_same_session() -> None:
    board = Board()

    @tool
    async def open_thread(ctx: Context) -> str:
        """Go on in a thread of its own."""
        await ctx.session.set_continuation_token(board.token("thread-2"))
        return "moved"

    script = [say("In here."), call("open_thread"), say("Over here."), say("Still."), say("Yes.")]
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(script), tools=[open_thread])
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=[board])
    async with app:
        sessions = {await say_to(app, "dm-1", "hello", "1")}
        await board.until(1)
        sessions.add(await say_to(app, "dm-1", "a thread, please", "2"))
        await board.until(2)
        sessions.add(await say_to(app, "thread-2", "are you here?", "3"))
        await board.until(3)
        sessions.add(await say_to(app, "dm-1", "and here?", "4"))
        await board.until(4)
    assert len(sessions) == 1
    assert board.sent == [
        ("dm-1", "In here."),
        ("thread-2", "Over here."),
        ("thread-2", "Still."),
        ("thread-2", "Yes."),
    ]


async def test_a_session_that_began_elsewhere_is_told_in_the_thread_that_it_is_anchored_in(
    tmp_path: Path,
) -> None:
    board = Board()

    @tool
    async def open_thread(ctx: Context, thread: str) -> str:
        """Go on in a thread."""
        await ctx.session.set_continuation_token(board.token(thread))
        return "moved"

    script = [say("Here."), call("open_thread", thread="t-1"), say("There."), say("Still.")]
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(script), tools=[open_thread])
    store = f"sqlite:///{tmp_path / 'anchored.db'}"
    app = Outlast([clerk], store=store, worker=FAST, webhooks=QUICK, channels=[board])
    async with app:
        session = await app.start(clerk, "hello")
        await session.wait()
        await (await session.send("a thread, please")).result()
        await board.until(1)
        assert await say_to(app, "t-1", "are you here?", "3") == session.id
        await board.until(2)
        assert not await verify(app.store, session.id)
    assert board.sent == [("t-1", "There."), ("t-1", "Still.")]


async def test_a_session_that_moves_to_another_channel_is_told_only_there() -> None:
    board, wall = Board(), Board("wall")

    @tool
    async def climb(ctx: Context) -> str:
        """Go on at the wall."""
        await ctx.session.set_continuation_token(wall.token("w-1"))
        return "moved"

    script = [say("In here."), call("climb"), say("Up here."), say("Still.")]
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(script), tools=[climb])
    channels = [board, wall]
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=channels)
    async with app:
        board.hang = asyncio.Event()  # the first answer is told there late
        session = await say_to(app, "dm-1", "hello", "1")
        await board.called.wait()
        assert await say_to(app, "dm-1", "to the wall, please", "2") == session
        await wall.until(1)
        assert await say_to(app, "dm-1", "forwarded?", "3") == session
        await wall.until(2)
        board.hang.set()
        await board.until(1)
        async with asyncio.timeout(60):
            while any(each.due_at for each in await app.store.outbox.cursors(session)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not await verify(app.store, session)
    assert board.sent == [("dm-1", "In here.")]
    assert wall.sent == [("w-1", "Up here."), ("w-1", "Still.")]


async def test_what_happened_in_a_thread_is_told_there_however_late() -> None:
    board = Board()
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(lambda _: say("Here.")))
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=[board])
    async with app:
        board.hang = asyncio.Event()
        session = await say_to(app, "dm-1", "hello", "1")
        await board.called.wait()
        for number, thread in enumerate(("thread-2", "thread-3", "dm-1", "thread-2")):
            await (await app.channels.anchor(session, "board", thread)).result()
            assert (
                await say_to(app, "dm-1", f"and here, {number}?", thread + str(number)) == session
            )
            await (await app.session(session)).wait()
        board.hang.set()
        await board.until(5)
    threads = [thread for thread, _ in board.sent]
    assert threads == ["dm-1", "thread-2", "thread-3", "dm-1", "thread-2"]


async def test_all_lanes_of_a_session_are_told_of_where_it_is_anchored(path: Path) -> None:
    board = Board()
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(lambda _: say("Here.")))
    store = f"sqlite:///{path}"
    app = Outlast([clerk], store=store, worker=FAST, webhooks=QUICK, channels=[board])
    async with app:
        session = await app.start(clerk, "hello")
        await (await session.send("beside", lane="other")).result()
        await (await app.channels.anchor(session.id, "board", "b-1")).result()
        await (await session.send("beside again", lane="other")).result()
        await board.until(1)
        assert not await verify(app.store, session.id)
    assert board.sent == [("b-1", "Here.")]


def asking() -> Agent[Any, Any]:
    """An agent whose first answer is a question, and then what it was told."""

    @tool
    async def ask(ctx: Context) -> str:
        """Ask."""
        return (await ctx.ask("Which one?")).text

    def follow(request: ModelRequest) -> Any:
        last = request.view.messages[-1]
        return say(f"Heard: {last}"[-20:]) if len(request.view.messages) > 1 else call("ask")

    return Agent("clerk", ScriptedModel(follow), tools=[ask])


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_an_app_anchors_a_session_wherever_it_began_and_old_addresses_are_forwarded(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'outlast.db'}"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    board, wall = Board(), Board("wall")
    app = Outlast([asking()], store=url, worker=FAST, webhooks=QUICK, channels=[board, wall])
    async with app:
        session = await app.start("clerk", "hello", continuation_token="chosen by the app")
        assert (await session.wait()).is_waiting
        assert board.sent == []

        receipt = await app.channels.anchor(session.id, "board", "b-1", dispatch_id="once")
        assert (await receipt.result()).status == "completed"
        again = await app.channels.anchor(session.id, "board", "b-1", dispatch_id="once")
        assert again.duplicate
        [asked] = await session.requests()
        await session.answer(asked.request_id, text="this one")
        await board.until(1)

        assert await say_to(app, "b-1", "from the board", "1") == session.id
        await board.until(2)
        await (await app.send(Token("chosen by the app"), "to the old address")).result()
        await board.until(3)
        moved = await app.channels.anchor(session.id, "wall", "w-1")
        assert (await moved.result()).status == "completed"
        await (await session.send("and now?")).result()
        await wall.until(1)
        back = await app.channels.anchor(session.id, "board", "b-1")
        assert (await back.result()).status == "completed"
        await (await session.send("and again?")).result()
        await board.until(4)
        assert not await verify(app.store, session.id)
    assert [thread for thread, _ in board.sent] == ["b-1"] * 4
    assert [thread for thread, _ in wall.sent] == ["w-1"]


async def test_an_app_cannot_anchor_a_session_in_anothers_thread_or_in_no_channel() -> None:
    board = Board()
    app = Outlast([asking()], store="memory://", worker=FAST, webhooks=QUICK, channels=[board])
    async with app:
        first = await say_to(app, "b-1", "hello", "1")
        session = await app.start("clerk", "hello")
        with pytest.raises(UnknownChannel, match="this app has no channel wall"):
            await app.channels.anchor(session.id, "wall", "w-1")
        with pytest.raises(UnknownSession):
            await app.channels.anchor("ses_0", "board", "b-2")

        result = await (await app.channels.anchor(session.id, "board", "b-1")).result()

        assert (result.status, result.error and result.error.code) == ("refused", "TOKEN_TAKEN")
        assert await say_to(app, "b-1", "still here", "2") == first
        await session.end()
        await until(session, "session.ended")
        with pytest.raises(SessionOver):
            await app.channels.anchor(session.id, "board", "b-2")


async def test_no_key_of_another_tenant_has_its_session_told_in_a_channels_threads() -> None:
    async with (
        front_desk() as desk,
        await desk.bank.keyed(tenant="other") as other,
        await desk.bank.keyed() as own,
    ):
        theirs, ours = await other.start("hello"), await own.start("hello")
        body = {"channel": "desk", "thread": "room-7"}

        path = f"/sessions/{theirs['session_id']}/anchor"
        assert await other.refused("POST", path, 404, json=body) == "UNKNOWN_CHANNEL"
        await own.ask("POST", f"/sessions/{ours['session_id']}/anchor", 202, json=body)


async def test_a_hook_anchors_a_session() -> None:
    board = Board()
    app = Outlast([asking()], store="memory://", worker=FAST, webhooks=QUICK, channels=[board])

    @app.hook("request.opened")
    async def escalate(event: Event) -> None:
        await app.channels.anchor(
            event.session_id, "board", "on-call", dispatch_id=f"escalate {event.offset}"
        )

    async with app:
        session = await app.start("clerk", "hello")
        [asked] = (await session.wait()).requests
        await seen(session, "session.rekeyed")
        await session.answer(asked.request_id, text="this one")
        await board.until(1)
    assert [thread for thread, _ in board.sent] == ["on-call"]


async def test_a_channel_anchors_a_session_in_the_thread_that_it_begins() -> None:
    class Forum(Board):
        async def send(self, outgoing: Outgoing, thread: str) -> str | None:
            await super().send(outgoing, thread)
            return f"{thread}/topic-{outgoing.id.rpartition('-')[2]}" if "/" not in thread else None

    forum = Forum()
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(lambda _: say("Yes.")))
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=[forum])
    async with app:
        session = await app.session(await say_to(app, "general", "hello", "1"))
        await forum.until(1)
        await seen(session, "session.rekeyed")
        await (await session.send("again")).result()
        await forum.until(2)
        [_, topic] = [thread for thread, _ in forum.sent]
        assert topic.startswith("general/topic-")
        assert await say_to(app, topic, "in the topic", "2") == session.id
        assert await say_to(app, "general", "in the old place", "3") == session.id
        await forum.until(4)
    assert {thread for thread, _ in forum.sent[1:]} == {topic}


@pytest.mark.parametrize("named", ["", "t" * 300])
async def test_a_channel_that_names_no_thread_posts_each_answer_once(named: str) -> None:
    class Forum(Board):
        async def send(self, outgoing: Outgoing, thread: str) -> str | None:
            await super().send(outgoing, thread)
            return named

    forum = Forum()
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel([say("One."), say("Two.")]))
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=[forum])
    async with app:
        first = await say_to(app, "general", "hello", "1")
        await forum.until(1)
        assert await say_to(app, "general", "again", "2") == first
        await forum.until(2)
    assert forum.sent == [("general", "One."), ("general", "Two.")]


async def test_a_client_and_a_command_anchor_a_session(path: Path, tmp_path: Path) -> None:
    store, board = f"sqlite:///{path}", Board()
    (tmp_path / "shop.py").write_text(SHOP.format(store=store))
    app = Outlast([asking()], store=store, worker=FAST, webhooks=QUICK, channels=[board])
    async with app, on_a_socket(app) as (host, port), Client(f"http://{host}:{port}") as client:
        session = await client.start("clerk", "hello")
        receipt = await client.channels.anchor(session.id, "board", "b-1", dispatch_id="once")
        assert (await receipt.result()).status == "completed"
        again = await client.channels.anchor(session.id, "board", "b-1", dispatch_id="once")
        assert again.duplicate
        [asked] = (await session.wait()).requests
        await session.answer(asked.request_id, text="this one")
        await board.until(1)
        with pytest.raises(UnknownChannel):
            await client.channels.anchor(session.id, "wall", "w-1")

        command = [sys.executable, "-m", "outlast.cli", "anchor", session.id, "board", "b-2"]
        process = await asyncio.create_subprocess_exec(
            *command, "--app", "shop:app", cwd=tmp_path, stdout=subprocess.PIPE
        )
        told, _ = await process.communicate()
        assert (process.returncode, told[:6]) == (0, b"queued")
        await seen(await app.session(session.id), "session.rekeyed", 2)
        await (await session.send("again")).result()
        await board.until(2)
    assert [thread for thread, _ in board.sent] == ["b-1", "b-2"]


SHOP = """
from outlast import Agent, Outlast
from outlast.integration.channel import Channel
from outlast.testing import ScriptedModel

class Board(Channel):
    def verify(self, request): ...
    def read(self, request): ...
    async def send(self, outgoing, thread): ...

clerk = Agent("clerk", ScriptedModel([]))
app = Outlast([clerk], store="{store}", channels=[Board("board", clerk)])
"""


async def test_a_session_that_is_anchored_in_a_channel_that_is_gone_says_so(path: Path) -> None:
    store, board = f"sqlite:///{path}", Board()
    async with Outlast([asking()], store=store, worker=None, channels=[board]) as app:
        session = (await app.start("clerk", "hello")).id
        await app.channels.anchor(session, "board", "b-1")
    app = Outlast([asking()], store=store, worker=FAST, webhooks=QUICK, channels=[Board("wall")])
    async with app, asyncio.timeout(60):
        error = ""
        while not error:
            error = "".join(each.error for each in await app.store.outbox.cursors(session))
            await asyncio.sleep(0.01)
        told = await (await app.session(session)).explain()
    assert error.startswith("this app has no channel board: nobody is told")
    [link] = [link for link in told.lanes[0].links if link.kind == "outbox"]
    assert link.text == f"what happened is not told in the channel board: {error}"


@pytest.mark.parametrize("nowhere", ["channel:wall:w-1", "channel:board:"])
async def test_a_session_cannot_be_anchored_where_nobody_can_be_told(nowhere: str) -> None:
    @tool
    async def climb(ctx: Context) -> str:
        """Go on where nobody is."""
        try:
            await ctx.session.set_continuation_token(nowhere)
        except UnknownChannel as error:
            return error.message
        return "moved"

    model = ScriptedModel([call("climb"), say("So.")])
    clerk: Agent[Any, Any] = Agent("clerk", model, tools=[climb])
    app = Outlast([clerk], store="memory://", worker=FAST, channels=[Board()])
    async with app:
        session = await app.start(clerk, "hello")
        await session.wait()
        [told] = await results_of(session)
        assert told == (
            f"this app has no channel with the thread {nowhere}: nobody would be told there"
        )
        assert not (await session.continuation_token()).startswith("channel:")


async def test_a_session_that_ends_badly_says_so_where_it_was_last() -> None:
    board = Board()

    @tool
    async def open_thread(ctx: Context) -> str:
        """Go on in a thread of its own."""
        await ctx.session.set_continuation_token(board.token("thread-2"))
        return "moved"

    def follow(request: ModelRequest) -> Any:
        if len(request.view.messages) > 1:
            raise ScriptedError("structural", "there is no such clerk")
        return call("open_thread")

    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(follow), tools=[open_thread])
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=[board])
    async with app:
        session = await app.session(await say_to(app, "dm-1", "hello", "1"))
        await board.until(1)
        assert (await session.info()).over == "failed"
    assert board.sent == [("thread-2", "That did not work: there is no such clerk (SCRIPTED)")]


async def test_what_is_nothing_for_an_agent_starts_nothing() -> None:
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel([]))
    app = Outlast([clerk], store="memory://", worker=None, channels=[Board()])
    async with app:
        received = await app.channels.receive("board", {"from": "ada"}, b"{}")
        assert (received.receipt, received.answer) == (None, None)
        assert await app.sessions() == []


async def test_a_channel_that_hangs_keeps_nobody_else_from_being_told() -> None:
    board = Board()
    board.hang = asyncio.Event()
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(lambda _: say("Yes.")))
    settings = WebhookSettings(poll=0.02, at_once_per_receiver=1)
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=settings, channels=[board])
    heard: asyncio.Queue[Event] = asyncio.Queue()
    app.hook("turn.completed")(heard.put)

    async with app, asyncio.timeout(60):
        await say_to(app, "dm-1", "hello", "1")
        await heard.get()
        await board.called.wait()
        await say_to(app, "dm-2", "hello", "2")
        await heard.get()
        assert board.sent == []
        board.hang.set()
        await board.until(2)


async def test_a_channel_that_raises_is_called_again() -> None:
    class Shaky(Board):
        tries = 0

        async def send(self, outgoing: Outgoing, thread: str) -> None:
            self.tries += 1
            if self.tries == 1:
                raise Unreachable("the board is full", retry_after=1)
            if self.tries == 2:
                raise KeyError("channel")
            await super().send(outgoing, thread)

    store = Settled()
    board = Shaky()
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel([say("Yes.")]))
    app = Outlast(
        [clerk], store=store, clock=store.time, worker=PATIENT, webhooks=QUICK, channels=[board]
    )
    async with app:
        await say_to(app, "dm-1", "hello", "1")
        for tries, error in enumerate(("the board is full", "raised KeyError"), 1):
            await store.until_failed(error, tries)
            store.time.advance(10_000)
        await board.until(1)
    assert board.sent == [("dm-1", "Yes.")]


async def test_nothing_is_told_of_a_session_that_was_erased_meanwhile() -> None:
    board = Board()
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel([say("Yes.")]))
    app = Outlast([clerk], store="memory://", worker=FAST, webhooks=QUICK, channels=[board])
    async with app:
        session = await app.session(await say_to(app, "dm-1", "hello", "1"))
        await board.until(1)
        [event] = [e async for e in session.events(follow=False) if e.type == "turn.completed"]
        [cursor] = await app.store.outbox.cursors(session.id)
        senders = ChannelSenders({board.name: board}, app.agents, app.store, app.clock, app._anchor)
        receiver = senders.find(cursor)
        assert receiver is not None
        await app.erase(session.id)
        async with receiver.open() as deliver:
            await deliver(msgspec.structs.replace(event, session_id=session.id))
    assert len(board.sent) == 1


async def test_a_session_that_was_not_started_in_a_channel_is_not_told_there() -> None:
    async with front_desk() as desk:
        await (await desk.app.start(teller, "hello")).wait()
        assert await desk.app.store.outbox.cursors() == []


async def test_what_the_channel_itself_has_posted_is_not_taken_in() -> None:
    body = b'{"thread":"room-7","text":"hello"}'
    async with front_desk() as desk:
        headers = sign(SECRET, body, desk.app.clock.now() // 1000, "msg_a")
        assert (await desk.app.channels.receive("desk", headers, body)).receipt is not None
        await desk.hook.until(1)
        [post] = desk.hook.posts
        async with desk.bank.caller(peer="203.0.113.9") as caller:
            code = await caller.refused(
                "POST", "/channels/desk", 422, content=post.body, headers=post.headers
            )
        assert code == "INVALID_MESSAGE"
        assert len(await desk.app.sessions()) == 1
