"""The messages of a lane to other sessions: to its children, and to its parent.

Owns their content. Each is an admission that goes into the commit of the records it is about, so
that it is sent if and only if they are written; the store drops one whose session is over.
Refuses to know when that commit is made: see `owned_lane.py`.
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.amount import BudgetTerms
from outlast.core.index import GIVEN_UP
from outlast.core.lane import Lane, OpenRequest
from outlast.core.name import MAIN
from outlast.core.record import AnyRecord, Parent, QueuePlace
from outlast.core.request import requesters
from outlast.core.result import Asked, ChildEnd, NewChild, ShareReturned
from outlast.core.usage import payer, usage_with_children
from outlast.engine.pin import NO_PINS, PinRule
from outlast.store import Admission

TOLD_TO_OTHERS = frozenset(
    {
        r.RequestOpened,
        r.RequestResolved,
        r.RequestExpired,
        r.AuthorizationRequired,
        r.AuthorizationCompleted,
        r.AuthorizationFailed,
        r.SubagentFailed,
    }
)

_encode = msgspec.json.Encoder().encode


class SessionMessages:
    """Makes the messages of one lane."""

    def __init__(self, clock: Clock, date: Callable[[], int], pins: PinRule = NO_PINS) -> None:
        self._clock = clock
        self._date = date
        self._pins = pins

    def about(self, record: AnyRecord, lane: Lane) -> tuple[Admission, ...]:
        """Return the messages about a record, for a lane that is as it was before the record."""
        match record:
            case r.RequestOpened() | r.AuthorizationRequired():
                return self._up(lane, record.request_id, asked=record)
            case r.AuthorizationCompleted():
                return self._up(lane, record.request_id, how="completed")
            case r.AuthorizationFailed():
                return self._up(lane, record.request_id, how=record.how)
            case r.RequestExpired():
                return (
                    *self._up(lane, record.request_id, how="expired"),
                    *self._expire_down(lane, record),
                )
            case r.RequestResolved():
                return (
                    *self._up(lane, record.request_id, how=record.how),
                    *self._answer_down(lane, record),
                )
            # A child of this app is ended; one behind another server is told by its outbox
            # (`integration/remote`).
            case r.SubagentFailed(error=error, url="") if error.code == GIVEN_UP:
                return (self._end(lane, record),)
        return ()

    # To children

    def start(
        self, lane: Lane, child: NewChild, request_id: str, share: BudgetTerms | None
    ) -> Admission:
        """Start a child: a task of the same owner, with what is left of the time.

        It has its share of this session's budgets.
        """
        started = r.SessionStarted(
            agent=child.agent,
            mode="run" if child.input else "task",
            can_ask=lane.can_ask,
            tenant=lane.tenant,
            principal=lane.principal,
            token=self._clock.token(),
            # An instant, and not what is left: the child's clock goes on while it waits for a
            # worker.
            deadline_at=lane.deadline,
            outbox=child.outbox,
            parent=Parent(
                lane.session,
                lane.name,
                request_id,
                lane.depth + 1,
                requesters(lane),
                payer(lane),
                has_share=share is not None,
            ),
            place=QueuePlace(queue=child.queue) if child.queue else None,
            budget=share,
        )
        # Chosen when the message is made: a commit that is sent again sends the same one.
        delivery_id = self._clock.new_id("dlv")
        queued = r.DeliveryQueued(delivery_id=delivery_id, content=child.content, args=child.input)
        return replace(
            self._admission(lane.tenant, child.session_id, MAIN, queued),
            records=(started, queued),
            scope="tenant",
            new=True,
            agent=started.agent,
            mode=started.mode,
            token=started.token,
            outbox=started.outbox,
            parent=lane.session,
            deployment=self._pins.deployment if self._pins.scope != "none" else "",
        )

    def _end(self, lane: Lane, record: r.SubagentFailed) -> Admission:
        cancel = r.CancelRequested(
            delivery_id=self._clock.new_id("dlv"), reason="its parent does not wait", ends=True
        )
        return self._admission(lane.tenant, record.child, MAIN, cancel)

    def _answer_down(self, lane: Lane, record: r.RequestResolved) -> tuple[Admission, ...]:
        request = find(lane, record.request_id)
        if request is None or not is_of_child_here(request) or record.how != "answered":
            return ()
        answer = r.DeliveryQueued(
            delivery_id=self._clock.new_id("dlv"),
            kind="reply",
            request_id=request.origin,
            option=record.option,
            text=record.text,
            args=record.args,
            principal=record.principal,
        )
        return (self._admission(lane.tenant, request.child, MAIN, answer),)

    def _expire_down(self, lane: Lane, record: r.RequestExpired) -> tuple[Admission, ...]:
        """Tell a child that its request has expired.

        The child does not decide that itself: an answer given here in time would reach it late.
        """
        request = find(lane, record.request_id)
        if request is None or not is_of_child_here(request):
            return ()
        relayed = r.RequestRelayed(
            delivery_id=self._clock.new_id("dlv"),
            request_id=request.origin,
            child=request.child,
            how="expired",
        )
        return (self._admission(lane.tenant, request.child, MAIN, relayed),)

    # To the parent

    def report(self, lane: Lane, end: ChildEnd) -> tuple[Admission, ...]:
        """Tell the parent, if there is one, what this session came to."""
        if lane.parent is None:
            return ()
        reply = r.DeliveryQueued(
            delivery_id=self._clock.new_id("dlv"),
            kind="reply",
            request_id=lane.parent.request_id,
            args=_encode(replace(end, usage=usage_with_children(lane))).decode(),
        )
        above, name = lane.parent.session_id, lane.parent.lane
        told = self._admission(lane.tenant, above, name, reply)
        if not lane.parent.has_share:
            return (told,)
        # Apart from the reply, which is refused where the parent has given this session up.
        held = (hold.amounts for hold in lane.holds.values())
        returned = ShareReturned(sum(held, lane.charged), lane.extended)
        relayed = r.RequestRelayed(
            delivery_id=self._clock.new_id("dlv"),
            request_id=lane.parent.request_id,
            child=lane.session,
            asked=_encode(returned).decode(),
            how="settled",
        )
        return (told, self._admission(lane.tenant, above, name, relayed))

    def _up(
        self, lane: Lane, request_id: str, asked: Asked | None = None, how: str = ""
    ) -> tuple[Admission, ...]:
        """Tell the parent of a question to a human or a sign-in, or that it is closed."""
        if lane.parent is None:
            return ()
        shown = replace(asked, agent=asked.agent or lane.agent) if asked else None
        relayed = r.RequestRelayed(
            delivery_id=self._clock.new_id("dlv"),
            request_id=request_id,
            child=lane.session,
            asked=_encode(shown).decode() if shown else "",
            how=how,
        )
        return (self._admission(lane.tenant, lane.parent.session_id, lane.parent.lane, relayed),)

    def _admission(
        self,
        tenant: str,
        session_id: str,
        lane: str,
        record: r.DeliveryQueued | r.CancelRequested | r.RequestRelayed,
    ) -> Admission:
        match record:
            case r.DeliveryQueued():
                kind, request_id = record.kind, record.request_id
            case r.CancelRequested():
                kind, request_id = "cancel", ""
            case _:
                kind, request_id = "relay", ""
        return Admission(
            tenant=tenant,
            session_id=session_id,
            lane=lane,
            delivery_id=record.delivery_id,
            kind=kind,
            records=(record,),
            at=self._date(),
            dispatch_id=record.delivery_id,
            scope=f"session:{session_id}",
            fingerprint=record.delivery_id,
            request_id=request_id,
        )


def is_of_child_here(request: OpenRequest) -> bool:
    """Say whether a child of this app asks it. A remote one is answered over its server."""
    return bool(request.origin) and not request.subagent


def find(lane: Lane, request_id: str) -> OpenRequest | None:
    return lane.turn.requests.get(request_id) if lane.turn else None
