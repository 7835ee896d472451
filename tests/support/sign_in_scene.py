"""An agent whose tool needs somebody to sign in first, for tests of connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oauth_provider import Remote, brought

from outlast import Agent, Connection, ConnectionSettings, Context, Event, Outlast, Session, tool
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

KEY = "a key that is long enough for tests"
HERE = "https://agents.example"


class Hub:
    """A service called `hub`, the tool `look` that uses it, and the agent `a` that has the tool."""

    def __init__(self, remote: Remote, **connection: Any) -> None:
        self.remote = remote
        self.connection = Connection("hub", **remote.settings(**connection))
        self.wish: dict[str, Any] = {}
        """What the tool demands of its token."""
        self.tokens: list[str] = []
        """What the tool was given."""
        self.asked = 0
        """How often the model was asked."""

        @tool(on_interrupt="rerun", timeout=20)
        async def look(ctx: Context) -> str:
            """Look something up at the hub."""
            token = await ctx.require_auth("hub", **self.wish)
            self.tokens.append(token)
            return f"status {await remote.user(token)}"

        self.look = look

    def agent(self, *script: ScriptedReply, name: str = "a", **options: Any) -> Agent[Any, Any]:
        model = ScriptedModel(list(script) or [call("look"), say("done")], on_request=self._note)
        return Agent(name, model, **{"tools": [self.look], **options})

    def _note(self, _: object) -> None:
        self.asked += 1

    @property
    def app(self) -> dict[str, Any]:
        """What the app needs to know."""
        return self.app_with()

    def app_with(self, secret_key: str | Sequence[str] = KEY, times: int = 1) -> dict[str, Any]:
        """What it needs to know with another key, or with the connection more than once."""
        connections = ConnectionSettings([self.connection] * times, secret_key)
        return {"connections": connections, "public_url": HERE}


async def required(session: Session[Any], number: int = 1) -> Event:
    """Wait until somebody has to sign in, for the so-manieth time."""
    while True:
        found = []
        async for event in session.events():
            if event.type == "authorization.required":
                found.append(event)
                if len(found) == number:
                    return event
        raise AssertionError(f"nobody was asked to sign in: {await session.wait()}")


async def visit(
    hub: Hub, session: Session[Any], error: str = "", number: int = 1
) -> dict[str, str]:
    """Sign in, or not; return what is brought back."""
    asked = await required(session, number)
    return brought(await hub.remote.visit(asked.data["url"], error))


async def sign_in(app: Outlast, hub: Hub, session: Session[Any], number: int = 1) -> str:
    """Sign in and come back; return how that ended."""
    back = await visit(hub, session, number=number)
    return await app.connections.complete("hub", **without_description(back))


def without_description(back: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in back.items() if name != "error_description"}
