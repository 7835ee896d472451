"""An agent of another Holdfast, asked over HTTP as if it were one of this app's.

It is started under the call's own key, so that no retry starts it twice. Its server's webhook
says when to look at it, and a poll that gets slower is the net beneath. What it asks a human is
asked here. Everything is a wait or a recorded step of the tool that asks: nothing is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import asdict

from holdfast.agents.context import Context
from holdfast.agents.outside import Webhook
from holdfast.agents.subagent import FOR_EVER
from holdfast.agents.tool import Tool
from holdfast.agents.value import from_json, to_json
from holdfast.client import Client, RemoteSession
from holdfast.core.record import Option
from holdfast.errors import InvalidInput, ServerUnavailable, SubagentFailed

ENDS = ("turn.completed", "turn.failed", "turn.cancelled", "input.requested")
OVER = ("completed", "failed", "cancelled", "ended")
A_MONTH = timedelta(days=30)
LAST_LOOK = 300.0
"""The most seconds between two looks."""


class RemoteAgent:
    """An agent behind another server; give it to `Agent(subagents=…)`.

    `agent` is what it is called there, if not by the same name; `token` is a key with the scopes
    read, send and approve. `output_type` is that of its answers. A server that is away for
    more than `patience` seconds is tried again later, holding nothing meanwhile. The first look
    at what it does comes after `poll` seconds, the next ones after more and more.
    """

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None = None,
        *,
        agent: str = "",
        description: str = "",
        output_type: type | None = None,
        patience: float = 10.0,
        poll: float = 2.0,
    ) -> None:
        self.name = name
        self.description = description
        self._url = url
        self._token = token
        self._agent = agent or name
        self._output_type = output_type
        self._patience = patience
        self._poll = poll
        self._client()  # says at once what is wrong with URL and token

    def _client(self) -> Client:
        return Client(self._url, self._token, patience=self._patience)

    def __repr__(self) -> str:
        return f"RemoteAgent({self.name!r})"

    def as_tool(self) -> Tool:
        """Return the tool by which a model hands work to it."""

        async def ask(ctx: Context[Any], message: str) -> Any:
            return await self.ask(ctx, message)

        told = self.description or f"Hand work to {self.name}; say all that it needs."
        return Tool(ask, name=self.name, description=told, on_interrupt="rerun", timeout=FOR_EVER)

    async def ask(self, ctx: Context[Any], message: str) -> Any:
        """Start a session there, wait for its end, and return its output."""
        hook = await ctx.webhook(timeout=A_MONTH) if ctx.has_address else None
        session_id = await self._started(ctx, message, hook)
        await ctx.heartbeat({"remote": self.name, "url": self._url, "session_id": session_id})
        pause, looks = self._poll, 0
        while True:
            looks += 1
            seen = await ctx.step(f"look:{looks}", self._look, session_id)
            if seen["status"] in OVER:
                return self._come_to(seen)
            if seen["requests"]:
                await self._pass_on(ctx, session_id, seen["requests"][0])
                pause = self._poll
                continue
            if await pause_for(ctx, hook, pause):
                hook = None  # it was called, and is good for once
            pause = min(pause * 2, LAST_LOOK)

    async def _started(self, ctx: Context[Any], message: str, hook: Webhook | None) -> str:
        tries, pause = 0, self._poll
        while True:
            tries += 1
            url = hook.url if hook else ""
            started = await ctx.step(f"start:{tries}", self._start, ctx, message, url)
            if started["session_id"]:
                return str(started["session_id"])
            await ctx.sleep(timedelta(seconds=pause))
            pause = min(pause * 2, LAST_LOOK)

    async def _start(self, ctx: Context[Any], message: str, callback: str) -> dict[str, str]:
        options: dict[str, Any] = {
            "mode": "task",
            "dispatch_id": ctx.idempotency_key,
            "capabilities": {"request_input": ctx.session.can_ask},
        }
        if ctx.session.deadline:
            options["deadline"] = datetime.fromtimestamp(ctx.session.deadline / 1000, UTC)
        told: dict[str, Any] = {}
        if callback:
            told = {"callback_url": callback, "callback_events": ENDS}
        try:
            async with self._client() as client:
                try:
                    session = await client.start(self._agent, message, **options, **told)
                except InvalidInput:
                    if not told:
                        raise
                    # It posts nothing, or not to us: then it is polled.
                    session = await client.start(self._agent, message, **options)
        except ServerUnavailable:
            return {"session_id": ""}
        return {"session_id": session.id}

    async def _look(self, session_id: str) -> dict[str, Any]:
        try:
            async with self._client() as client:
                return await seen_of(client.session(session_id))
        except ServerUnavailable:
            return {"status": "away", "requests": []}

    async def _pass_on(
        self, ctx: Context[Any], session_id: str, request: Mapping[str, Any]
    ) -> None:
        """Ask here what is asked there, and answer it."""
        answer = await ctx.ask(
            f"{self.name}: {request['prompt']}",
            [Option(each["id"], each["label"]) for each in request["options"]],
            allow_freeform=request["allow_freeform"],
        )
        said = (request["request_id"], answer.option, answer.text)
        tries, pause = 0, self._poll
        while True:
            tries += 1
            name = f"answer:{request['request_id']}:{tries}"
            if await ctx.step(name, self._answer, session_id, *said):
                return
            await ctx.sleep(timedelta(seconds=pause))
            pause = min(pause * 2, LAST_LOOK)

    async def _answer(self, session_id: str, request_id: str, option: str, text: str) -> bool:
        try:
            async with self._client() as client:
                await client.session(session_id).answer(
                    request_id, option or None, text=text or None, dispatch_id=request_id
                )
        except ServerUnavailable:
            return False
        return True

    def _come_to(self, seen: Mapping[str, Any]) -> Any:
        if seen["status"] != "completed":
            error = seen["error"] or {"code": seen["status"].upper(), "message": "it was stopped"}
            raise SubagentFailed(f"{self.name} failed: {error['code']}: {error['message']}")
        if self._output_type is None:
            return seen["output"]
        return from_json(to_json(seen["output"]), self._output_type)


async def pause_for(ctx: Context[Any], hook: Webhook | None, seconds: float) -> bool:
    """Wait for a call from there, or for a while; say whether it was a call."""
    if hook is None:
        await ctx.sleep(timedelta(seconds=seconds))
        return False
    return await hook.wait_for(timedelta(seconds=seconds)) is not None


async def seen_of(session: RemoteSession[Any]) -> dict[str, Any]:
    """Return how a session stands: what it came to, or what it asks."""
    info = await session.info()
    if not info.over and info.status != "waiting":
        return {"status": info.status, "requests": []}
    result = await session.wait()
    return {
        "status": result.status,
        "output": result.output,
        "error": asdict(result.error) if result.error else None,
        "requests": [
            {
                "request_id": request.request_id,
                "prompt": request.prompt,
                "options": [{"id": each.id, "label": each.label} for each in request.options],
                "allow_freeform": request.allow_freeform,
            }
            for request in result.requests
        ],
    }
