"""A desk where people write to the bank's teller, and the program that posts for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
import msgspec
from http_scene import FAST, Json, Scene, scene
from webhook_receiver import Answers, Receiver, ok

from outlast.integration.channel import SignedWebhookChannel
from outlast.integration.outbox import WebhookSettings, sign, verify

SECRET = "a secret of the desk's"
QUICK = WebhookSettings(poll=0.02, timeout=5.0)
numbers = count(1)


class Desk:
    """The other side of a channel: it posts what is said, and is told what is answered."""

    def __init__(self, bank: Scene, hook: Receiver, name: str = "desk") -> None:
        self.bank = bank
        self.app = bank.app
        self.hook = hook
        self.name = name

    async def post(
        self,
        thread: str,
        text: str | None = None,
        *,
        id: str = "",
        secret: str = SECRET,
        **more: Any,
    ) -> httpx.Response:
        """Post what somebody wrote, signed at this instant."""
        fields = {"thread": thread, "text": text, "user": "ada", **more}
        body = msgspec.json.encode({key: value for key, value in fields.items() if value})
        at = self.app.clock.now() // 1000
        headers = sign(secret, body, at, id or f"msg_{next(numbers)}")
        async with self.bank.caller(peer="203.0.113.9") as caller:
            return await caller.post(f"/v1/channels/{self.name}", content=body, headers=headers)

    async def say(self, thread: str, text: str, **more: Any) -> Json:
        """Post a message that is taken, and return what is said to that."""
        response = await self.post(thread, text, **more)
        assert response.status_code == 202, response.text
        found: Json = response.json()
        return found

    async def press(self, asked: Json, option: str, **more: Any) -> httpx.Response:
        """Press a button below a question."""
        reply = {"request_id": asked["request"]["request_id"], "option": option}
        return await self.post(more.pop("thread", asked["thread"]), reply=reply, **more)

    async def told(self, count: int) -> list[Json]:
        """Wait for so many posts, and return what they say, each once and in order."""
        await self.hook.until(count)
        found = [
            verify(SECRET, post.headers, post.body, 1e6, self.app.clock) for post in self.hook.posts
        ]
        return list({each["id"]: each for each in found}.values())

    async def deliveries(self, session_id: str) -> list[str]:
        """Return the deliveries of a session, as far as they are messages."""
        found = await self.app.store.listing.deliveries(session_id)
        return [each.delivery_id for each in found if each.kind == "message"]


@asynccontextmanager
async def front_desk(answers: Answers = ok, **given: Any) -> AsyncIterator[Desk]:
    async with Receiver(answers) as hook:
        channel = SignedWebhookChannel("desk", "teller", SECRET, hook.url, allow_private=True)
        options = {"channels": [channel], "webhooks": QUICK, "worker": FAST, **given}
        async with scene(**options) as bank:
            yield Desk(bank, hook)
