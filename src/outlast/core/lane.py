"""The state of a lane: everything the next decision depends on, without the texts.

Owns the immutable types that `fold.py` folds into and `decide.py` decides from. The texts are in
the other fold, `view.py`. A snapshot of a `Lane` is small, and names with `FOLD` the rules that
made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from outlast.core.record import DeliveryResult, Failure, IdempotencyKey, Parent, Tokens

FOLD = 1
"""Grows whenever the same log would fold into something else than before."""

CallStatus = Literal[
    "requested", "asked", "approved", "running", "cut", "waiting", "woken", "again", "done"
]
"""Of a tool call: `asked` waits for a human, `cut` was running when its owner was gone, `waiting`
stopped at a wait, `woken` goes on after it, `again` is tried again after a failure."""

ModelStatus = Literal["running", "cut", "retry"]
"""Of a model call: `cut` was running when its owner was gone, `retry` failed and is tried again."""

Partial = Literal["", "text", "reasoning", "broken"]
"""The partial answer of a model call that was cut off: only `text` can be continued."""

TurnResult = Literal["completed", "failed", "cancelled"]
SessionEnd = Literal["", "completed", "failed", "ended"]

RUNNING: Final = "running"
CUT: Final = "cut"
UNSTORABLE = "unstorable"
"""Why a call's outcome is unknown: what it returned cannot be written down."""
UNDONE = "undone"
"""Why a call left nothing: its transaction was rolled back."""
CONTENDED = "contended"
"""Why a call was undone: another lane was quicker. It is no sign of one that never gets on."""


class ArrivedReply(Struct, frozen=True, gc=False, omit_defaults=True):
    """An answer that has arrived and was not taken yet."""

    delivery_id: str
    request_id: str
    option: str = ""
    text: str = ""
    args: str = ""
    principal: str = ""


class RelayedRequest(Struct, frozen=True, gc=False, omit_defaults=True):
    """A child's request that was opened or closed, and that was not taken here yet."""

    delivery_id: str
    request_id: str
    child: str
    asked: str = ""
    how: str = ""


class QueuedDelivery(Struct, frozen=True, gc=False, omit_defaults=True):
    """A delivery that waits for its turn."""

    delivery_id: str
    offset: int = 0
    retry: bool = False
    deadline: int = 0
    principal: str = ""


class ArrivedCancel(Struct, frozen=True, gc=False, omit_defaults=True):
    """A wish to stop: the named turn, or what is at the head of the queue; `ends` the session."""

    delivery_id: str
    offset: int = 0
    reason: str = ""
    turn: str = ""
    ends: bool = False


class ModelCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """The open model call of a step.

    `lost` counts attempts that ended without an outcome, `failed` those that ended with a
    failure.
    """

    call_id: str
    attempt: int
    status: ModelStatus = RUNNING
    partial: Partial = ""
    lost: int = 0
    failed: int = 0
    not_before: int = 0
    parked: bool = False


class OpenCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool call of the open step.

    `memo` holds what the call's own steps and answered waits returned, as JSON text by name;
    `waits_for` are those that it stopped at, and `timers` when some of them are over by themselves.
    `reconciles` is the attempt about which it was finding out when it stopped. `failure` is how the
    last attempt failed, after which another is due. `by` and `request` are the principal who
    allowed it and the request that was answered.
    """

    call_id: str
    tool: str
    args: str
    digest: str
    status: CallStatus = "requested"
    asks: str = ""
    repeats: str = ""
    output: bool = False
    dedupe: IdempotencyKey | None = None
    attempt: int = 0
    lost: int = 0
    failed: int = 0
    reason: str = ""
    due_at: int = 0
    waits_for: tuple[str, ...] = ()
    timers: Mapping[str, int] = {}
    reconciles: int = 0
    memo: Mapping[str, str] = {}
    approved_by: str = ""
    request: str = ""
    succeeded: bool = False
    failure: Failure | None = None

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def wakes_at(self) -> int:
        """When it goes on by itself; 0: not before something comes."""
        match self.status:
            case "waiting":
                return min(self.timers.values(), default=0)
            case "again":
                return self.due_at
        return 0


class OpenRequest(Struct, frozen=True, gc=False, omit_defaults=True):
    """An open wait for others: a question to a human, a callback, a sign-in, or a child.

    `name` is that of the tool's own wait, where it is one. `child` is the session that is waited
    for, or that asks: then `origin` is its own request. `connection` is what to sign in to; `tool`
    and `digest` are of the call elsewhere that somebody is asked about here. `agent` and `url` are
    of a child behind another server; `told`: that server posts to us when there is something new.
    """

    request_id: str
    kind: str
    call_id: str
    name: str = ""
    expires_at: int = 0
    child: str = ""
    origin: str = ""
    on_expiry: str = "deny"
    connection: str = ""
    tool: str = ""
    digest: str = ""
    expires_above: bool = False
    agent: str = ""
    url: str = ""
    told: bool = False

    @property
    def due_at(self) -> int:
        """When its time is up by this lane's own word; 0: never."""
        return 0 if self.expires_above else self.expires_at

    @property
    def is_question(self) -> bool:
        """Whether a human can answer it."""
        return self.kind not in ("callback", "authorization", "child")


class StoppingTurn(Struct, frozen=True, gc=False, omit_defaults=True):
    """How a turn ends whose requests are closed already: see the record of the same name."""

    reason: str = ""
    superseded: bool = False
    delivery_id: str = ""
    error: Failure | None = None
    structural: bool = False


class Turn(Struct, frozen=True, gc=False, omit_defaults=True):
    """The open turn.

    `spent` is its active time up to `since`, `taken` the offset of the delivery that it began
    with, `senders` are whose messages it is about, and `corrections` counts what the model was
    asked to correct, `misfit` being whether that is its last answer. `handed_back`: its owner has
    given it up, and no other has taken it yet. `is_recovering`: an owner crashed during it.
    """

    id: str
    deliveries: tuple[str, ...]
    since: int
    taken: int = 0
    spent: int = 0
    step: int = 0
    model: ModelCall | None = None
    answer: str = ""
    failure: Failure | None = None
    structural: bool = False
    calls: Mapping[str, OpenCall] = {}
    requests: Mapping[str, OpenRequest] = {}
    corrections: int = 0
    misfit: bool = False
    stopping: StoppingTurn | None = None
    usage: Tokens = Tokens()
    deadline: int = 0
    senders: tuple[str, ...] = ()
    handed_back: bool = False
    is_recovering: bool = False

    def with_call(self, call_id: str, **changes: object) -> Turn:
        """Return the turn with one of its calls changed."""
        calls = {**self.calls, call_id: replace(self.calls[call_id], **changes)}
        return replace(self, calls=calls)


class DeliveryOutcome(Struct, frozen=True, gc=False):
    """The outcome of a delivery, and the turn that took it, if any."""

    delivery_id: str
    outcome: DeliveryResult
    turn: str = ""


class TurnEnd(Struct, frozen=True, gc=False, omit_defaults=True):
    """How the last turn ended."""

    turn: str
    how: TurnResult
    failure: Failure | None = None
    structural: bool = False
    senders: tuple[str, ...] = ()


class Lane(Struct, frozen=True, gc=False, omit_defaults=True):
    """All that the next decision depends on.

    `above` counts the sessions elsewhere that this one was started for, `tells` are the types of
    events that the session's outbox cursors tell, and `usage` is what all turns have cost.
    """

    session: str
    name: str = "main"
    agent: str = ""
    mode: str = "conversation"
    can_ask: bool = True
    tenant: str = "default"
    principal: str = ""
    parent: Parent | None = None
    above: int = 0
    deadline: int = 0
    tells: frozenset[str] = frozenset()
    over: SessionEnd = ""
    queue: tuple[QueuedDelivery, ...] = ()
    replies: tuple[ArrivedReply, ...] = ()
    relays: tuple[RelayedRequest, ...] = ()
    cancels: tuple[ArrivedCancel, ...] = ()
    unsettled: tuple[DeliveryOutcome, ...] = ()
    turns: int = 0
    turn: Turn | None = None
    last: TurnEnd | None = None
    waiting: tuple[str, ...] = ()
    unknown: Mapping[str, str] = {}
    usage: Tokens = Tokens()

    @property
    def depth(self) -> int:
        """How many sessions stand above this one, here and elsewhere."""
        return self.parent.depth if self.parent else self.above

    def with_turn(self, **changes: object) -> Lane:
        """Return the lane with its open turn changed."""
        assert self.turn is not None
        return replace(self, turn=replace(self.turn, **changes))

    def with_call(self, call_id: str, **changes: object) -> Lane:
        """Return the lane with one call of its open turn changed."""
        assert self.turn is not None
        return replace(self, turn=self.turn.with_call(call_id, **changes))
