"""The Slack channel of the guide, word for word, against a stand-in for Slack."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from front_desk import QUICK
from http_scene import FAST, Scene, scene
from webhook_receiver import Post as Got
from webhook_receiver import Receiver, Reply

from outlast import Event
from outlast.integration.channel import Channel, ChannelClient, Outgoing, SignInPrompt

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "channels.md"
SECRET = "a signing secret of our own"
ROOM, FIRST = "C0ROOM7", "1800000000.000100"


def slack_channel(**more: Any) -> Channel:
    """Return the channel as the page has it, with its imports."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)
    [sketch] = [block for block in blocks if "class SlackChannel" in block]
    imports = [line for b in blocks for line in b.splitlines() if re.match("import|from", line)]
    names: dict[str, Any] = {}
    program = "\n".join([*imports, sketch.partition("\nslack = ")[0]])
    exec(program, names)  # noqa: S102 - it is our own page
    return names["SlackChannel"]("slack", "teller", SECRET, "xoxb-17", **more)  # type: ignore[no-any-return]


class Slack:
    """What Slack posts, and what is posted to it."""

    def __init__(self, bank: Scene, api: Receiver) -> None:
        self.bank = bank
        self.api = api

    async def post(self, body: bytes, kind: str, *, secret: str = SECRET, late: int = 0) -> Any:
        at = str(self.bank.app.clock.now() // 1000 - late)
        base = b"v0:" + at.encode() + b":" + body
        signature = "v0=" + hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": kind,
            "X-Slack-Request-Timestamp": at,
            "X-Slack-Signature": signature,
        }
        async with self.bank.caller(peer="203.0.113.9") as caller:
            return await caller.post("/v1/channels/slack", content=body, headers=headers)

    async def event(self, name: str, text: str, **event: Any) -> httpx.Response:
        inner = {"type": "app_mention", "user": "U0ADA", "text": text, "channel": ROOM, **event}
        body = {"type": "event_callback", "team_id": "T0001", "event_id": name, "event": inner}
        found: httpx.Response = await self.post(json.dumps(body).encode(), "application/json")
        return found

    async def press(self, button: Any, **message: str) -> httpx.Response:
        body = {
            "type": "block_actions",
            "user": {"id": "U0BOB"},
            "channel": {"id": ROOM},
            "message": {"ts": "1800000009.000200", **message},
            "actions": [{"type": "button", "action_ts": "1800000010.123", **button}],
        }
        form = urlencode({"payload": json.dumps(body)}).encode()
        found: httpx.Response = await self.post(form, "application/x-www-form-urlencoded")
        return found

    async def said(self, count: int) -> list[Any]:
        """Wait for so many messages in the room."""
        async with self.api._news:
            await self.api._news.wait_for(lambda: len(self.api.posts) >= count)
        return [post.json for post in self.api.posts]


@asynccontextmanager
async def at_slack(*answers: Any) -> AsyncIterator[Slack]:
    left = iter(answers)

    def answer(post: Got) -> Reply:
        return Reply(200, body=json.dumps(next(left, {"ok": True})).encode())

    async with Receiver(answer) as api:
        channel = slack_channel(url=api.url, post=ChannelClient(allow_private=True))
        async with scene(channels=[channel], webhooks=QUICK, worker=FAST) as bank:
            yield Slack(bank, api)


async def test_the_handshake_is_answered_with_its_challenge() -> None:
    async with at_slack() as slack:
        body = b'{"type": "url_verification", "challenge": "say-this-back-17"}'
        answer = await slack.post(body, "application/json")
        assert (answer.status_code, answer.text) == (200, "say-this-back-17")
        assert (await slack.post(body, "application/json", secret="x")).status_code == 401
        assert (await slack.post(body, "application/json", late=301)).status_code == 401
        assert await slack.bank.app.sessions() == []


async def test_a_thread_is_a_conversation_and_a_retry_is_heard_once() -> None:
    async with at_slack() as slack:
        first = await slack.event("Ev01", "hello", ts=FIRST)
        again = await slack.event("Ev01", "hello", ts=FIRST)
        assert again.json()["delivery_id"] == first.json()["delivery_id"]
        await slack.said(1)
        later = await slack.event("Ev02", "more", ts="1800000007.0003", thread_ts=FIRST)
        assert later.json()["session_id"] == first.json()["session_id"]
        told = await slack.said(2)
        assert told == [
            {"channel": ROOM, "thread_ts": FIRST, "text": "You said: hello"},
            {"channel": ROOM, "thread_ts": FIRST, "text": "You said: more"},
        ]
        assert slack.api.posts[0].headers["authorization"] == "Bearer xoxb-17"


async def test_what_a_bot_says_or_somebody_edits_is_nothing_for_an_agent() -> None:
    async with at_slack() as slack:
        for more in ({"bot_id": "B1"}, {"subtype": "message_changed"}, {"type": "reaction_added"}):
            answer = await slack.event("Ev03", "hello", ts=FIRST, **more)
            assert answer.json() == {"accepted": False}
        assert await slack.bank.app.sessions() == []


async def test_a_question_has_buttons_and_a_press_answers_it() -> None:
    async with at_slack() as slack:
        await slack.event("Ev04", "refund it", ts=FIRST)
        [asked] = await slack.said(1)
        approve, deny = asked["blocks"][1]["elements"]
        assert (approve["action_id"], deny["action_id"]) == ("approve", "deny")
        assert "refund(order=17, cents=500)" in asked["blocks"][0]["text"]["text"]
        pressed = await slack.press(approve, thread_ts=FIRST)
        assert (pressed.status_code, pressed.content) == (200, b"")
        assert (await slack.said(2))[1]["text"] == "That is done."
        late = await slack.press({**deny, "action_ts": "1800000011.1"}, thread_ts=FIRST)
        assert (late.status_code, late.json()["error"]["code"]) == (409, "REQUEST_CLOSED")


async def test_a_press_cannot_be_written_as_words() -> None:
    async with at_slack() as slack:
        await slack.event("Ev07", "refund it", ts=FIRST)
        [asked] = await slack.said(1)
        press = {
            "user": {"id": "U0BOSS"},
            "channel": {"id": ROOM},
            "message": {"ts": FIRST},
            "actions": [{**asked["blocks"][1]["elements"][0], "action_ts": "1"}],
        }
        words = "&" + urlencode({"payload": json.dumps(press)}) + "&"
        answer = await slack.event("Ev08", words, ts="1800000012.1", thread_ts=FIRST)
        assert answer.status_code == 202
        assert len(await slack.bank.app.requests()) == 1


async def test_what_slack_does_not_take_is_tried_again_or_given_up() -> None:
    gone = {"ok": False, "error": "channel_not_found"}
    async with at_slack({"ok": False, "error": "ratelimited"}, gone) as slack:
        await slack.event("Ev05", "hello", ts=FIRST)
        await slack.said(2)  # after a second: the first pause
        await slack.event("Ev06", "again", ts="1800000008.1", thread_ts=FIRST)
        assert (await slack.said(3))[2]["text"] == "You said: again"


async def test_where_to_sign_in_is_shown_to_nobody_else() -> None:
    sign_in = SignInPrompt(
        request_id="aut_1", connection="hub", url="https://hub.example/in", principal="U0ADA"
    )
    required = Event(
        offset=9,
        type="authorization.required",
        at=datetime.now(UTC),
        lane="main",
        data={},
        version=1,
    )
    async with Receiver(lambda _: Reply(200, body=b'{"ok": true}')) as api:
        channel = slack_channel(
            url=f"{api.url}/chat.postMessage", post=ChannelClient(allow_private=True)
        )
        outgoing = Outgoing(
            id="ses_1-9", type="authorization.required", text="U0ADA has to sign in to hub.",
            session_id="ses_1", agent="teller", tenant="default", at=datetime.now(UTC),
            event=required, sign_in=sign_in,
        )  # fmt: skip
        await channel.send(outgoing, f"{ROOM}:{FIRST}")

    [post] = api.posts
    assert post.path.endswith("/chat.postEphemeral")
    assert (post.json["user"], post.json["thread_ts"]) == ("U0ADA", FIRST)
    assert post.json["text"] == "U0ADA has to sign in to hub. https://hub.example/in"
