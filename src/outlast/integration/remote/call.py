"""One call of a remote agent, from its start to its result.

Runs from its first line whenever it wakes: it starts the session there unless that is recorded,
looks at its state, asks here what is asked there, sends the answers, then parks until there may be
news. The call, the start, the answers and the result are recorded; looking again does no harm.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.agents.runtime.callback import Callback
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.durable_wait import Parked
from outlast.agents.runtime.json_value import to_json
from outlast.agents.runtime.subagent_call import check_depth
from outlast.core import record as r
from outlast.core.instant import milliseconds_at
from outlast.core.lane import OpenRequest as Open
from outlast.core.name import request_name
from outlast.core.request import Shown, authorization_ends
from outlast.core.result import ChildEnd
from outlast.errors import ServerUnavailable, SubagentError
from outlast.integration.remote.peer import RemoteSignIn, RemoteState
from outlast.session import Request

if TYPE_CHECKING:
    from outlast.integration.remote.agent import RemoteAgent

A_MONTH = timedelta(days=30)
LAST_LOOK = 3600.0
"""The most seconds between two looks if the other server posts news, or a human is asked here."""
LAST_LOOK_UNTOLD = 300.0
"""The most seconds between two looks otherwise."""


REMOTE = "remote"
"""The name under which a call waits for its remote agent; a call asks one."""


class RemoteCall:
    """Runs one call as far as it goes; `run` returns its output, or parks the tool."""

    def __init__(self, remote: RemoteAgent, ctx: Context[Any], message: str) -> None:
        self._remote = remote
        self._peer = remote.peer
        self._ctx = ctx
        self._waiting = ctx._waiting
        self._message = message
        self._callback: Callback | None = None

    async def run(self) -> Any:
        if (known := self._waiting.come_since(REMOTE)) is not None:
            return self._output(known)  # the call was cut off before its own end was recorded
        if self._child is None:
            await self._call()
        token = self._remote.callback_token(self._ctx.idempotency_key)
        if token and self._ctx.has_address:
            self._callback = await self._ctx._signed_callback(token, timeout=A_MONTH)
        try:
            session_id = await self._start()
            seen = await self._peer.look(session_id, at_sign_ins=bool(self._sign_ins))
            await self._show(session_id, seen)
            if seen.is_over:
                return self._output(await self._end(session_id, seen))
            await self._hand_over(session_id, seen)
        except ServerUnavailable:
            raise await self._pause() from None
        raise await self._pause()

    # The child

    @property
    def _child(self) -> Open | None:
        """The remote session as the log has it: called, and perhaps started."""
        return self._open.get(self._request_id(REMOTE))

    async def _call(self) -> None:
        """Record what is about to be sent, and where, before anything is sent."""
        check_depth(self._remote.name, self._waiting.lane.depth, self._ctx._max_depth)
        await self._record(
            r.SubagentCalled(
                request_id=self._request_id(REMOTE),
                call_id=self._ctx.call_id,
                attempt=self._ctx.attempt,
                name=REMOTE,
                child="",
                agent=self._remote.name,
                url=self._peer.url,
                message=self._message,
            )
        )

    async def _start(self) -> str:
        """Return the session there; start it, unless that is recorded."""
        child = self._child
        assert child is not None
        if child.child:
            return child.child
        lane, key = self._waiting.lane, self._ctx.idempotency_key
        wanted = self._remote.request_for(
            key, self._message, lane.can_ask, lane.deadline, lane.depth + 1
        )
        with self._waiting.busy():
            started = await self._peer.start(wanted, self._callback.url if self._callback else "")
            await self._record(
                r.SubagentStarted(
                    request_id=child.request_id,
                    call_id=self._ctx.call_id,
                    child=started.session_id,
                    agent=self._remote.name,
                    url=self._peer.url,
                    told=started.calls_back,
                )
            )
        return started.session_id

    async def _end(self, session_id: str, seen: RemoteState) -> str:
        """Record what the session there came to, and return it as the log has it."""
        where = {
            "request_id": self._request_id(REMOTE),
            "call_id": self._ctx.call_id,
            "child": session_id,
        }
        if seen.status == "completed":
            await self._record(r.SubagentCompleted(**where, value=to_json(seen.output)))
        else:
            error = seen.error or r.Failure(seen.status.upper(), "it was stopped")
            await self._record(
                r.SubagentFailed(**where, error=error, agent=self._remote.name, url=self._peer.url)
            )
        return self._waiting.come_since(REMOTE) or ""

    def _output(self, known: str) -> Any:
        came = msgspec.json.decode(known, type=ChildEnd)
        if error := came.error:
            raise SubagentError(f"{self._remote.name} failed: {error.code}: {error.message}")
        return msgspec.json.decode(came.value)

    # What is asked there

    async def _show(self, session_id: str, seen: RemoteState) -> None:
        """Open here what is open there, and close the rest."""
        asked = {self._question(request): request for request in seen.requests}
        for name, request in asked.items():
            if self._is_new(name):
                await self._record(self._asked(name, session_id, request))
        for shown in self._questions:
            if shown.name not in asked:
                await self._record(r.RequestResolved(request_id=shown.request_id, how="superseded"))
        for sign_in in seen.sign_ins:
            await self._show_sign_in(session_id, sign_in)
        for shown in self._sign_ins if seen.is_over else ():
            await self._record(authorization_ends(shown, "cancelled"))

    async def _show_sign_in(self, session_id: str, sign_in: RemoteSignIn) -> None:
        name = f"sign_in:{sign_in.request_id}"
        shown = self._open.get(self._request_id(name))
        if shown and sign_in.how:
            await self._record(authorization_ends(shown, sign_in.how))
        elif not sign_in.how and self._is_new(name):
            await self._record(self._required(name, session_id, sign_in))

    async def _hand_over(self, session_id: str, seen: RemoteState) -> None:
        """Send there what was answered here."""
        for request in seen.requests:
            name = self._question(request)
            said = msgspec.json.decode(self._waiting.come_since(name) or "{}")
            if said and not said.get("expired"):
                args = msgspec.json.decode(said["args"]) if said.get("args") else None
                answer = (request.request_id, said["option"], said["text"], args)
                await self._ctx.step(f"answer:{name}", self._peer.answer, session_id, name, *answer)

    def _question(self, request: Request) -> str:
        """Name the request here for one there: a new one after each answer that was refused."""
        rounds = 1
        while self._refusal(question_name(request, rounds)):
            rounds += 1
        return question_name(request, rounds)

    def _refusal(self, name: str) -> str:
        """Return why the other server refused an answer; empty if it did not."""
        return str(msgspec.json.decode(self._waiting.come_since(f"step:answer:{name}") or '""'))

    def _is_new(self, name: str) -> bool:
        shown = self._request_id(name)
        return shown not in self._open and self._waiting.come_since(name) is None

    def _request_id(self, name: str) -> str:
        return request_name(self._ctx.session.id, self._ctx.call_id, name)

    async def _record(self, record: Shown) -> None:
        await self._waiting.journal.relay(record)

    @property
    def _open(self) -> dict[str, Open]:
        """All requests of this call that are open, by their ids."""
        turn = self._waiting.lane.turn
        found = turn.requests.values() if turn else ()
        return {q.request_id: q for q in found if q.call_id == self._ctx.call_id}

    @property
    def _sign_ins(self) -> list[Open]:
        return [shown for shown in self._open.values() if shown.kind == "authorization"]

    @property
    def _questions(self) -> list[Open]:
        return [shown for shown in self._open.values() if shown.is_question]

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
            agent=remote_name(request.agent, self._remote),
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
            agent=remote_name(sign_in.agent, self._remote),
        )

    # Waiting

    async def _pause(self) -> Parked:
        """Park until there may be news: an answer here, a callback from there, or a time."""
        child = self._child
        is_told = child is not None and child.told and self._callback is not None
        return await self._waiting.pause(
            self._awaited(),
            # After each answer something new is awaited, and looked for soon.
            self._waiting.count("step:answer:"),
            first=timedelta(seconds=self._remote.poll),
            longest=timedelta(
                seconds=LAST_LOOK if is_told or self._questions else LAST_LOOK_UNTOLD
            ),
        )

    def _awaited(self) -> str:
        """Name the wait that a callback ends; an answer wakes the call whatever it awaits."""
        return self._callback.name if self._callback else "news"


def question_name(request: Request, rounds: int) -> str:
    return f"ask:{request.request_id}#{rounds}"


def rounds_of(name: str) -> int:
    return int(name.rpartition("#")[2])


def remote_name(agent: str, remote: RemoteAgent) -> str:
    """Return the name of an agent there, marked so that it is not taken for one of this app."""
    return f"{agent or remote.name}@{remote.name}"
