"""One contact with the server of a remote child: start it, send it answers, look how it stands.

Owns what is said, and how what is seen there reads here. All of it can be said again: the start and
each answer have a key, and nothing is kept between two contacts. `core/remote_child.py` writes
down what a contact means for the lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from outlast.agents.runtime.json_value import to_json
from outlast.core import record as r
from outlast.core.instant import milliseconds_at
from outlast.core.lane import Lane, OpenRequest
from outlast.core.name import callback_name, round_token
from outlast.core.remote_child import has_callback
from outlast.core.result import Asked, ChildContact, ChildEnd, RemoteView
from outlast.errors import OutlastError, ServerUnavailable, UnknownSession
from outlast.integration.remote.limit import failure_of
from outlast.integration.remote.peer import RemoteSignIn, RemoteStarted, RemoteState
from outlast.log_context import get_logger
from outlast.session import Request

if TYPE_CHECKING:
    from outlast.integration.remote.host import RemoteHost

log = get_logger("outlast.remote")


class RemoteContact:
    """A contact for one child of a lane, as both are when it begins."""

    def __init__(self, remote: RemoteHost, lane: Lane, child: OpenRequest, public_url: str) -> None:
        assert child.remote is not None
        self._remote = remote
        self._peer = remote.peer
        self._lane = lane
        self._child = child
        self._state = child.remote
        self._url = remote.callback_url(child.request_id, public_url)

    async def make(self) -> ChildContact:
        """Go as far as the server lets it, and return how far that was."""
        # A contact of its own, so that the address is in the log before the other server can use
        # it.
        if callback := self._unopened_callback():
            return self._result(callback=callback)
        started: RemoteStarted | None = None
        try:
            if not self._child.child:
                started = await self._start()
            session_id = started.session_id if started else self._child.child
            refusals = await self._send_answers(session_id)
            view = await self._look(session_id)
        # The server is there and says no: that is the child's end, and not an outage.
        except RefusedStart as refused:
            refusals, view = {}, RemoteView(end=ChildEnd(error=refused.failure))
        except OutlastError as error:
            # It is away, or does not take our token any more: both can be mended.
            extra = {"remote": self._remote.name, "code": error.code, "why": error.message}
            log.warning("a remote agent cannot be reached; it is tried again later", extra=extra)
            refusals, view = {}, None
        return self._result(started=started, refusals=refusals, view=view)

    def _result(
        self,
        *,
        callback: str = "",
        started: RemoteStarted | None = None,
        refusals: dict[str, str] | None = None,
        view: RemoteView | None = None,
    ) -> ChildContact:
        return ChildContact(
            request_id=self._child.request_id,
            callback=callback,
            started=started.session_id if started else "",
            told=bool(started and started.calls_back),
            refusals=refusals or {},
            view=view,
            rounds=self._state.rounds,
            poll=int(self._remote.poll * 1000),
        )

    def _unopened_callback(self) -> str:
        """Return the address for news that has to be open first, if it is not."""
        turn = self._lane.turn
        if not self._url or turn is None or has_callback(turn, self._child):
            return ""
        token = self._remote.callback_token(self._child.request_id)
        return callback_name(round_token(token, self._state.rounds + 1))

    async def _start(self) -> RemoteStarted:
        """Start the session there, or find the one that was started under the same key."""
        lane = self._lane
        wanted = self._remote.request_for(
            self._child.request_id,
            self._state.message,
            lane.can_ask,
            lane.deadline,
            lane.depth + 1,
        )
        try:
            return await self._peer.start(wanted, self._url)
        except ServerUnavailable:
            raise
        except OutlastError as error:
            raise RefusedStart(failure_of(r.Failure(error.code, error.message))) from None

    async def _send_answers(self, session_id: str) -> dict[str, str]:
        """Send what was answered here; return why each was refused, empty if it was not."""
        refusals: dict[str, str] = {}
        for answer in self._state.answers:
            args = msgspec.json.decode(answer.args) if answer.args else None
            refusals[answer.request_id] = await self._peer.answer(
                session_id, answer.request_id, answer.origin, answer.option, answer.text, args
            )
        return refusals

    # What is seen

    async def _look(self, session_id: str) -> RemoteView:
        requests = self._lane.turn.requests.values() if self._lane.turn else ()
        shows_sign_ins = any(
            (q.kind, q.subagent) == ("authorization", self._child.request_id) for q in requests
        )
        try:
            seen = await self._peer.look(
                session_id, at_sign_ins=shows_sign_ins, relayed=self._state.shown
            )
        except UnknownSession as error:
            return RemoteView(end=ChildEnd(error=r.Failure(error.code, error.message)))
        ended = {each.request_id: each.how for each in seen.sign_ins if each.how}
        if seen.is_over:
            return RemoteView(sign_ins=ended, end=end_of(seen))
        questions = [self._question(request) for request in seen.requests]
        sign_ins = [self._sign_in(each) for each in seen.sign_ins if not each.how]
        return RemoteView((*questions, *sign_ins), ended)

    def _question(self, request: Request) -> Asked:
        return r.RequestOpened(
            request_id=request.request_id,
            kind=request.kind,
            # The approver has to see that these are another server's words.
            prompt=f"{self._remote.name}: {request.prompt}",
            options=request.options,
            allow_freeform=request.allow_freeform,
            tool=request.tool,
            args=msgspec.json.encode(request.args).decode() if request.args is not None else "",
            digest=request.digest,
            expires_at=milliseconds_at(request.expires_at) if request.expires_at else 0,
            path=request.path,
            agent=self._name_of(request.agent),
        )

    def _sign_in(self, sign_in: RemoteSignIn) -> Asked:
        return r.AuthorizationRequired(
            request_id=sign_in.request_id,
            call_id="",
            attempt=0,
            name="",
            connection=sign_in.connection,
            url=sign_in.url,
            expires_at=sign_in.expires_at,
            principal=sign_in.principal,
            path=sign_in.path,
            agent=self._name_of(sign_in.agent),
        )

    def _name_of(self, agent: str) -> str:
        """Return the name of an agent there, marked so that it is not taken for one of this app."""
        return f"{agent or self._remote.name}@{self._remote.name}"


class RefusedStart(Exception):
    """The other server will not start the session, and says why."""

    def __init__(self, failure: r.Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


def end_of(seen: RemoteState) -> ChildEnd:
    """Return what a session there came to."""
    if seen.status == "completed":
        return ChildEnd(value=to_json(seen.output), usage=seen.usage)
    error = seen.error or r.Failure(seen.status.upper(), "it was stopped")
    return ChildEnd(error=error, usage=seen.usage)
