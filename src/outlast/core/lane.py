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

from outlast.core.amount import NOTHING, Amounts, BudgetHold, BudgetKey, BudgetTerms
from outlast.core.memo import NOTHING_KNOWN, Memo
from outlast.core.record import (
    NO_USAGE,
    ContextChangeRequested,
    DeliveryResult,
    EventSent,
    Failure,
    IdempotencyKey,
    JournalInherited,
    Parent,
    QueuePlace,
    StateChangeRequested,
    UsageSum,
)

FOLD = 9
"""Grows whenever the same log would fold into something else than before."""

CallStatus = Literal[
    "requested",
    "asked",
    "approved",
    "running",
    "cut",
    "waiting",
    "woken",
    "again",
    "mismatched",
    "done",
]
"""Of a tool call: `asked` waits for a human, `cut` was running when its owner was gone, `waiting`
stopped at a wait, `woken` goes on after it, `again` is tried again after a failure, `mismatched`
waits for code that fits what it has done."""

ModelStatus = Literal["running", "cut", "retry"]
"""Of a model call: `cut` was running when its owner was gone, `retry` failed and is tried again."""

Partial = Literal["", "text", "reasoning", "broken"]
"""The partial answer of a model call that was cut off: only `text` can be continued."""

Completion = Literal["", "accepted", "refused"]
"""The verdict of the completion checkers on the open step's answer; empty before they are asked."""

TurnResult = Literal["completed", "failed", "cancelled"]
SessionEnd = Literal["", "completed", "failed", "ended"]
StartMode = Literal["conversation", "task"]
"""How a session with an agent goes on after its first message."""
SessionMode = Literal["conversation", "task", "run"]
"""The same of any session: a `run` is one of a workflow."""
Status = Literal["running", "queued", "waiting", "sleeping", "idle", "completed", "failed", "ended"]
"""How a session, or a lane of one, stands."""
OpenStatus = Literal["running", "queued", "waiting", "sleeping"]
"""Those of a lane in which something can be stopped."""
Wait = Literal[
    "request",
    "authorization",
    "children",
    "callback",
    "event",
    "timer",
    "provider",
    "queue",
    "limit",
    "key",
    "budget",
    "code",
]
"""The wait of a lane at rest within a turn."""

RUNNING: Final = "running"
CUT: Final = "cut"
PROVIDER: Final = "provider"
"""The wait of a lane whose model cannot be had."""
CODE: Final = "code"
"""The wait of a lane that needs code which the worker that looked last does not have."""
BUDGET: Final = "budget"
"""The wait of a lane for which there is too little left of a budget."""
UNSTORABLE = "unstorable"
"""Why a call's outcome is unknown: what it returned cannot be written down."""
MISMATCH = "mismatch"
"""Why a call's outcome is unknown: it ran, and returned something else than it says it returns."""
UNKEPT = (UNSTORABLE, MISMATCH)
"""It was run, and would come to the same again."""
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
    """A delivery that waits for its turn; `input` is a run's, as JSON text."""

    delivery_id: str
    offset: int = 0
    retry: bool = False
    deadline: int = 0
    principal: str = ""
    traceparent: str = ""
    input: str = ""


class ArrivedCancel(Struct, frozen=True, gc=False, omit_defaults=True):
    """A wish to stop: the named turn or message, or the head of the queue; `ends` the session."""

    delivery_id: str
    offset: int = 0
    reason: str = ""
    turn: str = ""
    ends: bool = False
    message: str = ""


class UnavailableModel(Struct, frozen=True, gc=False, omit_defaults=True):
    """A model that could not be had for the open call; `retry_at` is its own wish, if it has one.

    `blocked`: that does not pass by itself.
    """

    name: str
    error: Failure
    blocked: bool = False
    retry_at: int = 0


class ModelCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """The open model call of a step.

    `asked` is the name of the model. `lost` counts attempts that ended without an outcome,
    `failed` those that it failed, the first failure of all being at `failing_since`. `parked`: the
    lane waits for the provider. `kept` are the attempts whose partial answers are to be continued,
    and `unavailable` the models that could not be had, where the agent has several. `heard` counts
    the bytes of the attempt's answer that are in the log.
    """

    call_id: str
    attempt: int
    status: ModelStatus = RUNNING
    partial: Partial = ""
    lost: int = 0
    failed: int = 0
    failing_since: int = 0
    not_before: int = 0
    parked: bool = False
    asked: str = ""
    kept: tuple[int, ...] = ()
    unavailable: tuple[UnavailableModel, ...] = ()
    heard: int = 0

    @property
    def may_pass(self) -> bool:
        """Whether a model other than the one asked last may be had again by itself."""
        return any(not each.blocked and each.name != self.asked for each in self.unavailable)


class Outage(Struct, frozen=True, gc=False, omit_defaults=True):
    """The model has not answered this lane `since` then, in so many attempts after it parked."""

    since: int
    error: Failure
    attempts: int = 1
    blocked: bool = False


class SpoiltStep(Struct, frozen=True, gc=False, omit_defaults=True):
    """A step of a call that has failed, or was `interrupted`, and is not done again."""

    error: Failure
    interrupted: bool = False


class OpenCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool call of the open step, or the one call of a workflow's body (`is_body`).

    `memo` holds what the call's own steps and answered waits returned, as JSON text by name;
    `begun` the attempts at steps that may be under way, `tried` those that failed and are followed
    by another, and `spoilt` the steps that came to no result. `events` are the names of the events
    that its waits are for, by wait, `undos` what undoes it if it fails, by name.
    Code of `mismatch` did not fit what it has done, for the first time at `mismatched_since`. Of a
    body, `progress` is how much it has said is done, by name, and `restarts` how often its history
    was dropped.
    `waits_for` are those that it stopped at last, `woken_by` which of them was over first, and
    `timers` when some of them are over by themselves. `unused` are the answers that it had not
    asked for when it stopped; `unstable` counts how often in a row it was woken by such.
    `reconciles` is the attempt about which it was finding out when it stopped. `failure` is how the
    last attempt failed, after which another is due. `why` says more of the `reason` for which it
    was cut off. `approved_by` and `request` are the principal who allowed it and the request that
    was answered. Since `vanished` the code that it met has had no such tool.
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
    why: str = ""
    due_at: int = 0
    waits_for: tuple[str, ...] = ()
    woken_by: str = ""
    unused: tuple[str, ...] = ()
    unstable: int = 0
    timers: Mapping[str, int] = {}
    reconciles: int = 0
    memo: Memo[str] = NOTHING_KNOWN
    begun: Mapping[str, int] = {}
    tried: Mapping[str, int] = {}
    spoilt: Mapping[str, SpoiltStep] = {}
    approved_by: str = ""
    request: str = ""
    succeeded: bool = False
    failure: Failure | None = None
    vanished: int = 0
    is_body: bool = False
    events: Mapping[str, str] = {}
    undos: Mapping[str, str] = {}
    mismatch: Failure | None = None
    mismatched_since: int = 0
    progress: Mapping[str, int] = {}
    restarts: int = 0

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def awaits_code(self) -> bool:
        """Whether it waits for a worker whose code has its tool."""
        return not self.is_done and (self.vanished > 0 or self.status == "mismatched")

    @property
    def wakes_at(self) -> int:
        """When it goes on by itself; 0: not before something comes."""
        match self.status:
            case "waiting":
                return min(self.timers.values(), default=0)
            case "again" | "mismatched":
                return self.due_at
        return 0


class UnsentAnswer(Struct, frozen=True, gc=False, omit_defaults=True):
    """An answer to a remote child's request that was not sent there yet.

    `request_id` is the request that was answered here, `origin` the one there.
    """

    request_id: str
    origin: str
    option: str = ""
    text: str = ""
    args: str = ""


class RemoteChild(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a child behind another server stands.

    `message` is what it is asked, until it is started; `told`: that server posts to us when there
    is something new, and `rounds` counts the addresses for that which have been used. The server
    is contacted at `next_at`, for which `contacts` counts how often that changed nothing. `answers`
    have to be sent there. `shown` counts what it has asked here; `settled` are requests there
    that it may still list, and that are over here.
    """

    agent: str
    url: str
    message: str = ""
    told: bool = False
    rounds: int = 0
    next_at: int = 0
    contacts: int = 0
    answers: tuple[UnsentAnswer, ...] = ()
    shown: int = 0
    settled: tuple[str, ...] = ()


class OpenRequest(Struct, frozen=True, gc=False, omit_defaults=True):
    """An open wait for others: a question to a human, a callback, a sign-in, or a child.

    `name` is that of the tool's own wait, where it is one. `child` is the session that is waited
    for, or that asks: then `origin` is its own request. `connection` is what to sign in to. A child
    behind another server has a `remote`; `subagent` is the request of such a child that asks this,
    or whose news this is the address for, and `tool` and `digest` are of its call that somebody is
    asked about here. `asked` is what the tool's own wait asks, as far as it goes with the answer.
    A `restricted` one is not everybody's to answer: the tool's code says whose.
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
    subagent: str = ""
    remote: RemoteChild | None = None
    asked: str = ""
    restricted: bool = False
    budget: BudgetKey | None = None
    extends_by: Amounts = NOTHING

    @property
    def due_at(self) -> int:
        """When its time is up by this lane's own word; 0: never."""
        return 0 if self.expires_above else self.expires_at

    @property
    def is_question(self) -> bool:
        """Whether a human can answer it."""
        return self.kind not in ("callback", "authorization", "child")


NO_EVENTS: Memo[tuple[str, ...]] = Memo()


class StoppingTurn(Struct, frozen=True, gc=False, omit_defaults=True):
    """How a turn ends whose requests are closed already: see the record of the same name."""

    reason: str = ""
    superseded: bool = False
    delivery_id: str = ""
    error: Failure | None = None
    structural: bool = False


class FeedbackMark(Struct, frozen=True, gc=False, omit_defaults=True):
    """When a feedback provider had its last say: after so many calls of the lane, and `since`."""

    calls: int = 0
    since: int = 0


class LastMilestone(Struct, frozen=True, gc=False, omit_defaults=True):
    """How many milestones a lane has reached, the last after so many `calls`, and `since` then."""

    reached: int = 0
    calls: int = 0
    since: int = 0


class ContextSize(Struct, frozen=True, gc=False, omit_defaults=True):
    """How large the lane's view is: the `tokens` of the last request and its answer, as reported.

    Since then `added` bytes of results have come, the largest of them with `largest`. After the
    last compaction it had `floor` tokens; with `is_fresh` the model has not answered since.
    `overflows` counts the requests since the last answer that the provider found too long.
    """

    tokens: int = 0
    added: int = 0
    largest: int = 0
    floor: int = 0
    overflows: int = 0
    is_fresh: bool = False


class SummaryCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """The model call that sums up what a compaction leaves out, of which nothing has come yet.

    It is made again by a new owner. With `failed` it is not: old results are cleared instead.
    `is_told`: what this attempt at it has used is recorded, so none is under way.
    """

    call_id: str
    attempt: int = 1
    failed: bool = False
    model: str = ""
    is_told: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether an attempt was begun of which nothing has come."""
        return self.attempt > 0 and not (self.failed or self.is_told)


class RecordedPrompt(Struct, frozen=True, gc=False, omit_defaults=True):
    """The prompt that was recorded last, and the digests of its sections' texts."""

    digest: str = ""
    texts: tuple[str, ...] = ()


class Turn(Struct, frozen=True, gc=False, omit_defaults=True):
    """The open turn. `input` is that of a run, until its body is called.

    `events` are those that the body has not taken yet, by name. While what the body has done is
    undone, `undo` says how the turn ends then.

    `spent` is its active time up to `since`, `taken` the offset of the delivery that it began
    with, `senders` are whose messages it is about, and `corrections` counts what the model was
    asked to correct, `misfit` being whether that is its last answer. `handed_back`: its owner has
    given it up, and no other has taken it yet. `is_recovering`: an owner crashed during it.
    `fallback` names the model that it has moved on to; else it asks the agent's first.
    It `began` then, and `ended` counts its tool calls that have an outcome. `heard` are the
    feedback providers that had their say in the open step; `refusals` counts the answers that the
    completion checkers did not let pass, those in `objectors` being who refused the last.
    `restarts`: an owner crashed since the model was asked last, so that its context begins anew
    from the last milestone, if the agent wants that.
    `usage` is that of its own model calls, `below` that of its children that have ended.
    `charged` is what it and its children have spent of budgets, `active` how much of its active
    time that counts, and `extended` what humans have allowed beyond its own. A budget `exhausted`
    makes the step of the number `last_step` its last. `budget_asks` counts how often a human was
    asked for more.
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
    usage: UsageSum = NO_USAGE
    below: UsageSum = NO_USAGE
    deadline: int = 0
    senders: tuple[str, ...] = ()
    handed_back: bool = False
    is_recovering: bool = False
    fallback: str = ""
    began: int = 0
    ended: int = 0
    heard: tuple[str, ...] = ()
    completion: Completion = ""
    refusals: int = 0
    objectors: tuple[str, ...] = ()
    restarts: bool = False
    input: str = ""
    events: Memo[tuple[str, ...]] = NO_EVENTS
    undo: StoppingTurn | None = None
    charged: Amounts = NOTHING
    active: int = 0
    extended: Amounts = NOTHING
    exhausted: str = ""
    last_step: int = 0
    budget_asks: int = 0

    @property
    def asks_for_budget(self) -> bool:
        """Whether a human is asked for more of a budget before the turn goes on."""
        return any(q.kind == "budget" and not q.origin for q in self.requests.values())

    def with_remote(self, request_id: str, **changes: object) -> Turn:
        """Return the turn with one of its remote children changed."""
        request = self.requests[request_id]
        assert request.remote is not None
        changed = replace(request, remote=replace(request.remote, **changes))
        return replace(self, requests={**self.requests, request_id: changed})

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
    events that the session's outbox cursors tell, `usage` is that of all turns' model calls,
    `below` that of the children of its past turns, and `blocked` says why the open turn, or the
    next one, can only fail.
    `outage` outlives its turn: a message behind it does not make the provider's time begin anew.
    One that comes when the lane has come to rest does.
    `ended` counts the tool calls of its past turns, and `feedback` says by name when each provider
    had its last say. `prompt` is the one that was recorded last, `milestone` the last of the lane.
    `views` are the changes of the model's view that were asked for, `summary` is the call that sums
    up what a compaction leaves out, if one was begun, and `summaries` counts these calls. `back_to`
    is the turn behind which the view went back, unless it was made shorter since. `place` is where
    its session stands in a queue of turns; `queue` are this lane's own deliveries. Of a run,
    `sent` are the events that its owner has not taken in yet, `inherited` is what it has from the
    one that it tries again, and `seed` that one's id.
    `budget` is what the session may use, as its start says; `extended` what humans have allowed
    beyond it, here and in children, and `charged` what this lane and its children have spent of it.
    `holds` are what calls have reserved, by the call or the request of a child, and `warned` the
    budgets of which four fifths are spent.
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
    tags: Mapping[str, str] = {}
    place: QueuePlace | None = None
    over: SessionEnd = ""
    queue: tuple[QueuedDelivery, ...] = ()
    replies: tuple[ArrivedReply, ...] = ()
    relays: tuple[RelayedRequest, ...] = ()
    changes: tuple[StateChangeRequested, ...] = ()
    cancels: tuple[ArrivedCancel, ...] = ()
    unsettled: tuple[DeliveryOutcome, ...] = ()
    turns: int = 0
    turn: Turn | None = None
    last: TurnEnd | None = None
    waiting: tuple[str, ...] = ()
    unknown: Mapping[str, str] = {}
    usage: UsageSum = NO_USAGE
    below: UsageSum = NO_USAGE
    blocked: Failure | None = None
    outage: Outage | None = None
    ended: int = 0
    feedback: Mapping[str, FeedbackMark] = {}
    prompt: RecordedPrompt = RecordedPrompt()
    milestone: LastMilestone = LastMilestone()
    views: tuple[ContextChangeRequested, ...] = ()
    context: ContextSize = ContextSize()
    starts_at: int = 0
    seed: str = ""
    summary: SummaryCall | None = None
    summaries: int = 0
    back_to: str = ""
    sent: tuple[EventSent, ...] = ()
    inherited: JournalInherited | None = None
    budget: BudgetTerms | None = None
    extended: Amounts = NOTHING
    charged: Amounts = NOTHING
    holds: Mapping[str, BudgetHold] = {}
    warned: tuple[BudgetKey, ...] = ()

    @property
    def is_run(self) -> bool:
        """Whether it runs a workflow, and not an agent."""
        return self.mode == "run"

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
