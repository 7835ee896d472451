"""One call of a remote agent, from its start to what it came to.

Runs from its first line whenever it wakes: it starts what is not started, looks how that
stands, shows here what is asked there and hands over the answers, then rests until there may be
news. Only the start and the answers are recorded; looking again does no harm.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.agents.runtime.callback import Callback
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.durable_wait import Parked
from outlast.agents.runtime.subagent_call import check_depth
from outlast.core import record as r
from outlast.core.instant import milliseconds_at
from outlast.core.lane import OpenRequest as Open
from outlast.core.name import request_name
from outlast.core.request import Shown, authorization_ends
from outlast.errors import ServerUnavailable, SubagentError
from outlast.integration.remote.peer import RemoteSignIn, RemoteStarted, RemoteState
from outlast.session import Request

if TYPE_CHECKING:
    from outlast.integration.remote.agent import RemoteAgent

A_MONTH = timedelta(days=30)
LAST_LOOK = 3600.0
"""The most seconds between two looks: what there is to see is told."""
LAST_LOOK_UNTOLD = 300.0
"""The same where nobody tells, and nobody is asked here either."""


class RemoteCall:
    """Carries one call as far as it goes; `run` returns its output, or parks the tool."""

    def __init__(self, remote: RemoteAgent, ctx: Context[Any], message: str) -> None:
        self._remote = remote
        self._far = remote.far
        self._ctx = ctx
        self._waiting = ctx.waiting
        self._message = message
        self._hook: Callback | None = None
        self._is_told = False

    async def run(self) -> Any:
        token = self._remote.callback_token(self._ctx.idempotency_key)
        if token and self._ctx.has_address:
            self._hook = await self._ctx.signed_callback(token, timeout=A_MONTH)
        try:
            started = await self._start()
            session_id = started.session_id
            self._is_told = started.calls_back and self._hook is not None
            seen = await self._far.look(session_id, at_sign_ins=bool(self._sign_ins))
            await self._show(session_id, seen)
            if seen.is_over:
                return self._come_to(seen)
            await self._hand_over(session_id, seen)
        except ServerUnavailable:
            raise await self._pause() from None
        raise await self._pause()

    async def _start(self) -> RemoteStarted:
        lane, key = self._waiting.lane, self._ctx.idempotency_key
        depth = check_depth(self._remote.name, lane.depth, self._ctx.max_depth)
        commission = self._remote.commission(key, self._message, lane.can_ask, lane.deadline, depth)
        url = self._hook.url if self._hook else ""
        known = await self._ctx.step("start", self._far.start, commission, url)
        started = msgspec.convert(known, RemoteStarted)
        where = {
            "remote": self._remote.name,
            "url": self._far.url,
            "session_id": started.session_id,
        }
        await self._ctx.step("tell", self._ctx.heartbeat, where)
        return started

    # What is asked there

    async def _show(self, session_id: str, seen: RemoteState) -> None:
        """Have the same open here as there."""
        asked = {self._question(request): request for request in seen.requests}
        for name, request in asked.items():
            if self._is_new(name):
                await self._relay(self._asked(name, session_id, request))
        for shown in self._questions:
            if shown.name not in asked:
                await self._relay(r.RequestResolved(request_id=shown.request_id, how="superseded"))
        for sign_in in seen.sign_ins:
            await self._show_sign_in(session_id, sign_in)
        for shown in self._sign_ins if seen.is_over else ():
            await self._relay(authorization_ends(shown, "cancelled"))

    async def _show_sign_in(self, session_id: str, sign_in: RemoteSignIn) -> None:
        name = f"sign_in:{sign_in.request_id}"
        shown = self._shown.get(self._request_id(name))
        if shown and sign_in.how:
            await self._relay(authorization_ends(shown, sign_in.how))
        elif not sign_in.how and self._is_new(name):
            await self._relay(self._required(name, session_id, sign_in))

    async def _hand_over(self, session_id: str, seen: RemoteState) -> None:
        """Say there what was answered here."""
        for request in seen.requests:
            name = self._question(request)
            said = msgspec.json.decode(self._waiting.come_since(name) or "{}")
            if said and not said.get("expired"):
                args = msgspec.json.decode(said["args"]) if said.get("args") else None
                answer = (request.request_id, said["option"], said["text"], args)
                await self._ctx.step(f"answer:{name}", self._far.answer, session_id, name, *answer)

    def _question(self, request: Request) -> str:
        """Name what is asked here for a request there: once more if an answer was refused."""
        rounds = 1
        while self._refusal(question_name(request, rounds)):
            rounds += 1
        return question_name(request, rounds)

    def _refusal(self, name: str) -> str:
        """Return why an answer was not taken there, if one was given and refused."""
        return str(msgspec.json.decode(self._waiting.come_since(f"step:answer:{name}") or '""'))

    def _is_new(self, name: str) -> bool:
        shown = self._request_id(name)
        return shown not in self._shown and self._waiting.come_since(name) is None

    def _request_id(self, name: str) -> str:
        return request_name(self._ctx.session.id, self._ctx.call_id, name)

    async def _relay(self, record: Shown) -> None:
        await self._waiting.desk.relay(record)

    @property
    def _shown(self) -> dict[str, Open]:
        """What is open here for this call, by its request."""
        turn = self._waiting.lane.turn
        found = turn.requests.values() if turn else ()
        return {q.request_id: q for q in found if q.call_id == self._ctx.call_id}

    @property
    def _sign_ins(self) -> list[Open]:
        return [shown for shown in self._shown.values() if shown.kind == "authorization"]

    @property
    def _questions(self) -> list[Open]:
        return [shown for shown in self._shown.values() if shown.is_question]

    # Records

    def _asked(self, name: str, session_id: str, request: Request) -> r.RequestOpened:
        refusal = self._refusal(question_name(request, rounds_of(name) - 1))
        again = f" (the last answer was refused: {refusal})" if refusal else ""
        return r.RequestOpened(
            request_id=self._request_id(name),
            kind=request.kind,
            prompt=f"{self._remote.name}: {request.prompt}{again}",
            options=request.options,
            allow_freeform=request.allow_freeform,
            call_id=self._ctx.call_id,
            tool=request.tool,
            args=msgspec.json.encode(request.args).decode() if request.args is not None else "",
            digest=request.digest,
            name=name,
            expires_at=milliseconds_at(request.expires_at) if request.expires_at else 0,
            path=(session_id, *request.path),
            agent=elsewhere(request.agent, self._remote),
        )

    def _required(
        self, name: str, session_id: str, sign_in: RemoteSignIn
    ) -> r.AuthorizationRequired:
        return r.AuthorizationRequired(
            request_id=self._request_id(name),
            call_id=self._ctx.call_id,
            attempt=self._ctx.attempt,
            name=name,
            connection=sign_in.connection,
            url=sign_in.url,
            expires_at=sign_in.expires_at,
            principal=sign_in.principal,
            path=(session_id, *sign_in.path),
            agent=elsewhere(sign_in.agent, self._remote),
        )

    # Waiting, and the end

    async def _pause(self) -> Parked:
        """Rest until there may be news: an answer here, a call from there, or a time."""
        is_patient = self._is_told or bool(self._questions)
        return await self._waiting.pause(
            self._awaited(),
            # After each answer something new is awaited, and looked for soon.
            self._waiting.count("step:answer:"),
            first=timedelta(seconds=self._remote.poll),
            longest=timedelta(seconds=LAST_LOOK if is_patient else LAST_LOOK_UNTOLD),
        )

    def _awaited(self) -> str:
        """Name what wakes the call besides an answer, which does so whatever is awaited."""
        return self._hook.name if self._hook else "news"

    def _come_to(self, seen: RemoteState) -> Any:
        if seen.status == "completed":
            return self._remote.parse(seen.output)
        error = seen.error or r.Failure(seen.status.upper(), "it was stopped")
        raise SubagentError(f"{self._remote.name} failed: {error.code}: {error.message}")


def question_name(request: Request, rounds: int) -> str:
    return f"ask:{request.request_id}#{rounds}"


def rounds_of(name: str) -> int:
    return int(name.rpartition("#")[2])


def elsewhere(agent: str, remote: RemoteAgent) -> str:
    """Name an agent there so that nobody takes it for one that is here."""
    return f"{agent or remote.name}@{remote.name}"
