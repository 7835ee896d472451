"""An agent whose tool needs somebody to sign in to another service first, and that service."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from crash_book import Book
from crash_model import scripted

from outlast import Agent, Connection, ConnectionSettings, Context, tool
from outlast.testing import call, say

SIGNED = "It was looked up."
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing here is called over TLS, and to read all certificates takes its time."""


def signer(book: Book) -> Agent[Any, Any]:
    @tool(on_interrupt="rerun")
    async def use(ctx: Context[Any]) -> str:
        book.begin(ctx)
        await ctx.step(book.effect, "drafted", name="draft")
        token = await ctx.require_auth("hub")
        book.effect(f"used under {token}")
        return "used"

    return Agent("signer", scripted("signer", book, call("use"), say(SIGNED)), tools=[use])


def signing_in(provider: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what an app needs to know to have people sign in there, if anywhere."""
    if provider is None:
        return {}
    return {
        "connections": ConnectionSettings(
            [Connection("hub", **provider, tls=NO_TLS)], "a key that is long enough for tests"
        ),
        "public_url": "https://agents.example",
    }
