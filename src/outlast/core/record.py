"""The facts of a session's log: one frozen type per fact, named in the past tense.

A record knows nothing of where it stands: offset, time and lane belong to the
commit that carries it (see `Entry`). Instants inside records are milliseconds
since the epoch, and are there only where the fold needs them. JSON values are
kept as JSON text, so that nothing is encoded twice.

The format number counts changes of shape; `core/codec.py` reads older ones.
"""

from decimal import Decimal
from typing import ClassVar, Literal, Self

from msgspec import Struct

from outlast.core.amount import NOTHING, Amounts, BudgetHold, BudgetKey, BudgetTerms, OnBudgetEnd
from outlast.core.message import Content, Part

FORMAT = 1


class Failure(Struct, frozen=True, gc=False, omit_defaults=True):
    """Why something did not succeed: a stable code, a sentence, a hint of what to do."""

    code: str
    message: str
    hint: str = ""


class UsageSum(Struct, frozen=True, gc=False, omit_defaults=True):
    """The usage of model calls, added up.

    `nano_usd` is what those cost whose price was known, in billionths of a US dollar;
    `unpriced_calls` counts the others.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    model_calls: int = 0
    unpriced_calls: int = 0
    nano_usd: int = 0

    @property
    def usd(self) -> Decimal:
        """What the calls cost whose price was known, in US dollars."""
        return (
            Decimal(self.nano_usd) / 10**9
        )  # and not `scaleb`: a sum is shown as 0.25, not 0.250000000

    @property
    def tokens(self) -> int:
        """All tokens: the input, of which some may have come from a cache, and the output."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.model_calls + other.model_calls,
            self.unpriced_calls + other.unpriced_calls,
            self.nano_usd + other.nano_usd,
        )


NO_USAGE = UsageSum()


class Option(Struct, frozen=True, gc=False):
    """One of the answers that a request offers."""

    id: str
    label: str


class IdempotencyKey(Struct, frozen=True, gc=False):
    """A key under which only one call may happen, within a scope: a session or a tenant."""

    scope: str
    key: str


class NewOutboxCursor(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where events of the types in `events` are told of; without a `url` the app knows where.

    `secret` signs what is posted to the `url`. Records never have it: only the row in the store.
    """

    name: str
    events: tuple[str, ...]
    url: str = ""
    secret: str = ""

    def __repr__(self) -> str:
        return f"NewOutboxCursor({self.name!r}, {self.events!r}, {self.url!r})"


class Parent(Struct, frozen=True, gc=False, omit_defaults=True):
    """The session that started this one and waits for its result; `depth` counts those above.

    `requesters` are whom the turn that started it acts for, and `payer` is for whom its model
    calls are counted. `has_share`: this session has a share of that one's budget to return.
    """

    session_id: str
    lane: str
    request_id: str
    depth: int = 1
    requesters: tuple[str, ...] = ()
    payer: str = ""
    has_share: bool = False


class QueuePlace(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a session stands in line: by its `key`, and `ahead` of others by milliseconds.

    Without `ahead` it is as far ahead as the queue says.
    """

    queue: str
    key: str = ""
    ahead: int | None = None


class Record(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", omit_defaults=True):
    """A fact. `internal` facts are hidden from readers without the scope for them."""

    internal: ClassVar[bool] = False


# Sessions


class SessionStarted(Record, frozen=True, kw_only=True, tag="session.started"):
    """Where it was not a `parent` here that started it, `depth` counts those above elsewhere.

    Its starter chose `tags` to find it by; they are in the order of their names. It begins at
    `starts_at`, and its turns stand in a queue at their `place`. A run may try again what
    `retry_of` came to. `seed` is the first run of such a row: what a body derives by chance is
    derived from it. `budget` is what it may use with all that it starts: what its starter
    said, or its share of its parent's.
    """

    agent: str
    mode: str = "conversation"
    can_ask: bool = True
    tenant: str = "default"
    principal: str = ""
    token: str = ""
    deadline_at: int = 0
    outbox: tuple[NewOutboxCursor, ...] = ()
    parent: Parent | None = None
    depth: int = 0
    tags: dict[str, str] = {}
    starts_at: int = 0
    retry_of: str = ""
    seed: str = ""
    place: QueuePlace | None = None
    budget: BudgetTerms | None = None


class SessionWaiting(Record, frozen=True, kw_only=True, tag="session.waiting"):
    """Nothing can go on until one of `wait` is here; `spent` is the turn's active time so far."""

    wait: tuple[str, ...]
    since: int
    requests: tuple[str, ...] = ()
    spent: int = 0


class SessionResumed(Record, frozen=True, kw_only=True, tag="session.resumed"):
    since: int


class SessionCompleted(Record, frozen=True, kw_only=True, tag="session.completed"):
    turn: str


class SessionFailed(Record, frozen=True, kw_only=True, tag="session.failed"):
    error: Failure


class SessionEnded(Record, frozen=True, kw_only=True, tag="session.ended"):
    reason: str = ""


class SessionRekeyed(Record, frozen=True, kw_only=True, tag="session.rekeyed"):
    """The session has a new continuation token; older ones forward unless revoked.

    From here on its events go to the cursors of the `outbox`, too.
    """

    token: str
    revoked: tuple[str, ...] = ()
    outbox: tuple[NewOutboxCursor, ...] = ()


# Turns and steps


class TurnStarted(Record, frozen=True, kw_only=True, tag="turn.started"):
    """A delivery was taken up. `retries` names the failed turn that this one tries again.

    `traceparent` is the delivery's: the code that adds the turn's span has it at hand. `deployment`
    is the named version of the code with which it begins.
    """

    turn: str
    delivery_id: str
    since: int
    retries: str = ""
    traceparent: str = ""
    deployment: str = ""


class TurnCompleted(Record, frozen=True, kw_only=True, tag="turn.completed"):
    """The agent has answered: with the text of `call_id`, or by the tool call `output`.

    `usage` is that of the turn's own model calls, `below` that of the children it waited for.
    `exhausted` names the budget at whose end it was asked for what it had.
    """

    turn: str
    call_id: str
    output: str = ""
    usage: UsageSum = NO_USAGE
    below: UsageSum = NO_USAGE
    exhausted: str = ""


class TurnFailed(Record, frozen=True, kw_only=True, tag="turn.failed"):
    """The turn came to nothing. A `structural` failure is one that no follow-up can mend."""

    turn: str
    error: Failure
    structural: bool = False
    usage: UsageSum = NO_USAGE
    below: UsageSum = NO_USAGE


class TurnCancelled(Record, frozen=True, kw_only=True, tag="turn.cancelled"):
    turn: str
    reason: str = ""
    superseded: bool = False
    usage: UsageSum = NO_USAGE
    below: UsageSum = NO_USAGE


class TurnStopping(Record, frozen=True, kw_only=True, tag="turn.stopping"):
    """The requests of the turn are closed, so it ends, whatever may change before it has.

    It fails for `error`, where there is one, and is cancelled otherwise.
    """

    internal: ClassVar[bool] = True

    turn: str
    reason: str = ""
    superseded: bool = False
    delivery_id: str = ""
    error: Failure | None = None
    structural: bool = False


class StepStarted(Record, frozen=True, kw_only=True, tag="step.started"):
    turn: str
    step: int


class StepCompleted(Record, frozen=True, kw_only=True, tag="step.completed"):
    turn: str
    step: int


class StepFailed(Record, frozen=True, kw_only=True, tag="step.failed"):
    turn: str
    step: int
    error: Failure
    structural: bool = False


# Deliveries


class DeliveryQueued(Record, frozen=True, kw_only=True, tag="delivery.queued"):
    """Something arrived for the lane: a `message`, a `retry` of a failed turn, or a `reply`.

    `traceparent` is the span in which it was sent, as W3C has it.
    """

    delivery_id: str
    kind: str = "message"
    content: Content = ()
    principal: str = ""
    request_id: str = ""
    option: str = ""
    text: str = ""
    args: str = ""
    deadline_at: int = 0
    traceparent: str = ""


class DeliveryJoined(Record, frozen=True, kw_only=True, tag="delivery.joined"):
    delivery_id: str
    turn: str


DeliveryResult = Literal["completed", "failed", "cancelled", "answered", "ignored", "refused"]
"""The outcome of a delivery. A reply is `answered` when it is taken; its turn goes on."""


class DeliverySettled(Record, frozen=True, kw_only=True, tag="delivery.settled"):
    delivery_id: str
    outcome: DeliveryResult
    turn: str = ""


class CancelRequested(Record, frozen=True, kw_only=True, tag="cancel.requested"):
    """The open turn is to be stopped, or with `ends` the whole session.

    A `turn` or a `message` that is named is stopped, and nothing else: a message whether it is
    queued next or its turn has begun.
    """

    delivery_id: str
    reason: str = ""
    turn: str = ""
    message: str = ""
    ends: bool = False
    principal: str = ""


class RequestRelayed(Record, frozen=True, kw_only=True, tag="request.relayed"):
    """A child asks a human (`asked` is its request as JSON text), or with `how` no longer does."""

    internal: ClassVar[bool] = True

    delivery_id: str
    request_id: str
    child: str
    asked: str = ""
    how: str = ""


# Model calls


class ModelStarted(Record, frozen=True, kw_only=True, tag="model.started"):
    """A model may have been asked: the one of that name."""

    internal: ClassVar[bool] = True

    call_id: str
    attempt: int
    model: str = ""


class ModelRetrying(Record, frozen=True, kw_only=True, tag="model.retrying"):
    """An attempt failed in a way that another may mend, which follows soon, in the same worker.

    `since` is when the first attempt of this row failed.
    """

    call_id: str
    attempt: int
    error: Failure
    not_before: int
    since: int = 0


class ModelSwitched(Record, frozen=True, kw_only=True, tag="model.switched"):
    """A model cannot be had for now, and another is asked in its place, from the beginning.

    `left` is the one that failed by `error`, `model` the one that the turn goes on with. `since`,
    `blocked`, `asked` and `retry_at` as in `ProviderUnavailable`.
    """

    call_id: str
    attempt: int
    left: str
    model: str
    error: Failure
    since: int
    blocked: bool = False
    asked: bool = True
    retry_at: int = 0


class ProviderUnavailable(Record, frozen=True, kw_only=True, tag="provider.unavailable"):
    """No model can be had for now: the lane waits and tries again from time to time.

    Said once, however often it is tried before one answers. `model` is the one that failed last, by
    `error`. `blocked`: time alone will not mend that (a rejected key, a model that is not there),
    somebody has to. Not `asked`: the error is what other sessions were told, and this attempt was
    spared. `in_line`: it is tried again when its turn in the provider's line has come; the first in
    line asks at `not_before`. `next_model` is the one that is asked next, where the agent has
    several, and `retry_at` when the one that failed may be asked again, if that is known.
    """

    call_id: str
    attempt: int
    error: Failure
    not_before: int
    since: int
    blocked: bool = False
    asked: bool = True
    in_line: bool = False
    model: str = ""
    next_model: str = ""
    retry_at: int = 0


class ProviderStillUnavailable(Record, frozen=True, kw_only=True, tag="provider.still_unavailable"):
    """Another attempt failed while no model can be had, or was spared (not `asked`).

    The fields are those of `ProviderUnavailable`.
    """

    internal: ClassVar[bool] = True

    call_id: str
    attempt: int
    error: Failure
    not_before: int
    blocked: bool = False
    asked: bool = True
    in_line: bool = False
    model: str = ""
    next_model: str = ""
    retry_at: int = 0


class ProviderAvailable(Record, frozen=True, kw_only=True, tag="provider.available"):
    """A provider answers again, that of `model`, after `attempts` that failed since `since`."""

    call_id: str
    attempt: int
    since: int
    attempts: int
    model: str = ""


class MessageDelta(Record, frozen=True, kw_only=True, tag="message.delta"):
    """A piece of an answer that is being given; `tool` instead of text says that a call began."""

    call_id: str
    attempt: int
    part: int
    text: str = ""
    tool: str = ""


class ReasoningDelta(Record, frozen=True, kw_only=True, tag="reasoning.delta"):
    call_id: str
    attempt: int
    part: int
    text: str


class MessageCompleted(Record, frozen=True, kw_only=True, tag="message.completed"):
    """The whole answer. The texts of parts in `streamed` are the deltas since `deltas_from`.

    `misfit` says why it is not of the type that was asked for: then the model is asked again.
    """

    call_id: str
    attempt: int
    parts: tuple[Part, ...]
    model: str = ""
    finish: str = ""
    deltas_from: int = 0
    streamed: tuple[int, ...] = ()
    misfit: str = ""


class MessageAborted(Record, frozen=True, kw_only=True, tag="message.aborted"):
    """The answer of that attempt ended early: `kept` as a partial answer, or to be dropped.

    One that was kept is dropped later, by another such record, if another model begins anew.
    """

    call_id: str
    attempt: int
    kept: bool = False


class ReasoningCompleted(Record, frozen=True, kw_only=True, tag="reasoning.completed"):
    """The thinking of an answer is over; its text is in the answer's part of that number."""

    call_id: str
    attempt: int
    part: int


class UsageRecorded(Record, frozen=True, kw_only=True, tag="usage.recorded"):
    """The usage of a model call, for the `principal` whose turn it is, and what it has cost.

    `prices` is the price data by which it was computed, and its version: that is done once, here.
    Where no price was known it is empty, and the call counts as unpriced. With a `remote` these
    are all calls of that agent's session behind another server, as that server tells. `estimated`:
    the call was cut off, and nobody has told what it used; this is about what was asked and heard.
    """

    call_id: str
    attempt: int
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    details: dict[str, int] = {}
    model: str = ""
    principal: str = ""
    nano_usd: int = 0
    prices: str = ""
    remote: str = ""
    model_calls: int = 1
    unpriced_calls: int = 0
    estimated: bool = False


# Budgets


class BudgetCharged(Record, frozen=True, kw_only=True, tag="budget.charged"):
    """What a call has reserved, given back or spent, in the turn's budget and in `budgets`.

    A model call reserves before it is made: then `hold` is what it has. It gives that back with
    what it has used, and a child with what it has used in all, which `call_id` names by its
    request. `active` is the turn's active time in milliseconds that is counted by now.
    """

    internal: ClassVar[bool] = True

    call_id: str
    budgets: tuple[BudgetKey, ...] = ()
    reserved: Amounts = NOTHING
    spent: Amounts = NOTHING
    active: int = 0
    hold: BudgetHold | None = None


class BudgetWarned(Record, frozen=True, kw_only=True, tag="budget.warned"):
    """Four fifths of a budget are spent, of what is limited the one named in `what`."""

    budget: BudgetKey
    what: str
    limit: int
    used: int


class BudgetExhausted(Record, frozen=True, kw_only=True, tag="budget.exhausted"):
    """What is left of a budget is too little to go on with, of what is limited that in `what`.

    With `on_end="hand_back"` the turn's step of that number is its last.
    """

    turn: str
    budget: BudgetKey
    what: str
    limit: int
    used: int
    on_end: OnBudgetEnd
    step: int = 0


class BudgetExtended(Record, frozen=True, kw_only=True, tag="budget.extended"):
    """A human allows so much more, here or in a child."""

    budget: BudgetKey
    by: Amounts
    principal: str = ""


class PromptSection(Struct, frozen=True, gc=False, omit_defaults=True):
    """A section of a rendered prompt; at the `tail` it stands behind the conversation.

    In a record its text is left out where the prompt that was recorded before has the same.
    """

    key: str
    digest: str
    text: str = ""
    tail: bool = False
    summary: bool = False


class PromptRendered(Record, frozen=True, kw_only=True, tag="prompt.rendered"):
    """The model call had another prompt than the one that was recorded last in this lane."""

    internal: ClassVar[bool] = True

    call_id: str
    attempt: int
    digest: str
    sections: tuple[PromptSection, ...]


# Rules


class FeedbackGiven(Record, frozen=True, kw_only=True, tag="feedback.given"):
    """A feedback provider has something to say, which the model is told with its next request.

    Its calls and its time count anew `since` then.
    """

    turn: str
    step: int
    name: str
    text: str
    since: int


class FeedbackSkipped(Record, frozen=True, kw_only=True, tag="feedback.skipped"):
    """A feedback provider was due, and had nothing to say, or failed for `error`."""

    internal: ClassVar[bool] = True

    turn: str
    step: int
    name: str
    since: int
    error: Failure | None = None


class CompletionAccepted(Record, frozen=True, kw_only=True, tag="completion.accepted"):
    """No completion checker has anything against the end of the turn with this answer."""

    internal: ClassVar[bool] = True

    turn: str
    step: int
    checkers: tuple[str, ...]


class CompletionRefused(Record, frozen=True, kw_only=True, tag="completion.refused"):
    """The turn may not end with this answer: `reasons` says by checker what is missing.

    It is the refusal of that `number` in the turn; the model is told, and makes another step.
    """

    turn: str
    step: int
    reasons: dict[str, str]
    number: int


# Milestones and what the model sees


class MilestoneReached(Record, frozen=True, kw_only=True, tag="milestone.reached"):
    """A call's outcome is progress worth keeping: a milestone of its lane.

    The place of this record is its snapshot: the session's state is what all slices come to up to
    here. `title` says what it is about, where that is known. Calls and time until the next one are
    counted anew `since` then.
    """

    call_id: str
    attempt: int
    since: int
    title: str = ""


class ContextRestarted(Record, frozen=True, kw_only=True, tag="context.restarted"):
    """From here on the model sees of the lane what came after the offset `until`, and no more.

    Of what came before it keeps the messages that were made by the records at the offsets in
    `keep`: those that began the turn of the last `milestone`, which is named by its offset. The
    calls that were made since keep their outcomes.
    """

    turn: str
    milestone: int
    until: int
    keep: tuple[int, ...] = ()


class CompactionCompleted(Record, frozen=True, kw_only=True, tag="compaction.completed"):
    """From here on the model sees less of the lane: about `tokens` instead of those `before`.

    The messages made up to the offset `until` are left out, but for those made by the records at
    the offsets in `keep`; behind these stands the `text`, if there is one, which sums up what is
    left out. `results` are texts in the place of tools' results, by call, and `shortened` those in
    the place of users' messages, by offset. `call_id` is that of the model call which gave the
    summary, if one did.
    """

    before: int
    tokens: int
    until: int = 0
    keep: tuple[int, ...] = ()
    text: str = ""
    results: dict[str, str] = {}
    shortened: dict[int, str] = {}
    call_id: str = ""


class SummaryStarted(Record, frozen=True, kw_only=True, tag="summary.started"):
    """A model may have been asked to sum up what the view leaves out: the one of that name."""

    internal: ClassVar[bool] = True

    call_id: str
    attempt: int
    model: str = ""


class SummaryFailed(Record, frozen=True, kw_only=True, tag="summary.failed"):
    """What the view leaves out is not summed up, for `error`: old results are cleared instead.

    Not `asked`: the provider was known not to answer, and the call was spared.
    """

    internal: ClassVar[bool] = True

    call_id: str
    attempt: int
    error: Failure
    asked: bool = True


class ContextOverflowed(Record, frozen=True, kw_only=True, tag="context.overflowed"):
    """A provider found the request too long: it is made again when the view is shorter."""

    turn: str
    call_id: str
    attempt: int
    error: Failure


class ContextRewound(Record, frozen=True, kw_only=True, tag="context.rewound"):
    """From here on the model sees the lane as it did behind the turn `to`, at the offset `until`.

    Nothing that came between that and this record is seen; what has been compacted since is seen as
    it was then. It has about so many `tokens`.
    """

    to: str
    until: int
    tokens: int = 0


ContextOperation = Literal["compact", "rewind"]


class ContextChangeRequested(Record, frozen=True, kw_only=True, tag="context.change_requested"):
    """Somebody wants a lane's view compacted, or taken back behind a `turn`; its owner does it."""

    internal: ClassVar[bool] = True

    delivery_id: str
    op: ContextOperation
    turn: str = ""
    principal: str = ""


class ContextChangeRefused(Record, frozen=True, kw_only=True, tag="context.change_refused"):
    """A change of the view that was asked for cannot be made, for `error`."""

    internal: ClassVar[bool] = True

    delivery_id: str
    error: Failure


# Tool calls


class ToolRequested(Record, frozen=True, kw_only=True, tag="tool.requested"):
    """The model wants a tool run. `asks` says what a human has to say to it first, if anything.

    `output` marks the call that carries the agent's typed answer. The arguments are those of
    the answer's part with the same `call_id`, or what a hook has `changed` them to.
    """

    call_id: str
    tool: str
    digest: str
    asks: str = ""
    repeats: str = ""
    output: bool = False
    dedupe: IdempotencyKey | None = None
    decision: str = ""
    decided_by: str = ""
    changed: str = ""


class ToolStarted(Record, frozen=True, kw_only=True, tag="tool.started"):
    """The call may have begun."""

    call_id: str
    attempt: int


class ToolVanished(Record, frozen=True, kw_only=True, tag="tool.vanished"):
    """The code of a worker has no tool of the call's name: it waits for a worker that has."""

    call_id: str
    tool: str
    since: int


class ToolProgress(Record, frozen=True, kw_only=True, tag="tool.progress"):
    call_id: str
    attempt: int
    progress: str
    name: str = ""
    done: int = 0


class ToolStepStarted(Record, frozen=True, kw_only=True, tag="tool.step_started"):
    """A step within a call may have begun: this attempt at it."""

    internal: ClassVar[bool] = True

    call_id: str
    name: str
    attempt: int = 1


class ToolStepRecorded(Record, frozen=True, kw_only=True, tag="tool.step_recorded"):
    """The result of a step within a call, which is not done again."""

    internal: ClassVar[bool] = True

    call_id: str
    name: str
    value: str


class ToolStepFailed(Record, frozen=True, kw_only=True, tag="tool.step_failed"):
    """A step within a call has failed. With `again` another attempt at it follows.

    It was `interrupted` where nobody knows what became of it, and it is not done again.
    """

    internal: ClassVar[bool] = True

    call_id: str
    name: str
    attempt: int
    error: Failure
    again: bool = False
    interrupted: bool = False


class ToolEmitted(Record, frozen=True, kw_only=True, tag="tool.emitted"):
    """An event of the user's own. One of a workflow has a `key`, by which it is added once."""

    call_id: str
    name: str
    data: str
    key: str = ""


class ToolWaiting(Record, frozen=True, kw_only=True, tag="tool.waiting"):
    """The tool stopped at a wait, and will be called again when that is over.

    One that does several things at once may stop at others `also`: the first that is over counts.
    `reconciles`: it was still finding out what became of that attempt. `unused`: answers that have
    come, and that it has not asked for up to here. `unstable` counts how often in a row it was
    woken by such an answer and stopped at something new. `events` are the names of the events that
    waits are for.
    """

    call_id: str
    attempt: int
    name: str
    also: tuple[str, ...] = ()
    reconciles: int = 0
    unused: tuple[str, ...] = ()
    unstable: int = 0
    events: dict[str, str] = {}


class ToolMismatched(Record, frozen=True, kw_only=True, tag="tool.mismatched"):
    """The code does not fit what the call has done: it waits for code that does.

    It is run again at `again_at`, by whichever worker takes it then. `since` is when it was found
    first.
    """

    call_id: str
    attempt: int
    error: Failure
    since: int
    again_at: int


class ToolWoken(Record, frozen=True, kw_only=True, tag="tool.woken"):
    """A wait of the tool is over, which is called again."""

    call_id: str
    name: str


class ToolCompleted(Record, frozen=True, kw_only=True, tag="tool.completed"):
    """The result as JSON text; `message`, where given, is what the model sees instead."""

    call_id: str
    attempt: int
    value: str
    message: str | None = None
    same_as: str = ""


class ToolFailed(Record, frozen=True, kw_only=True, tag="tool.failed"):
    """A definite failure. With `again_at` the call is tried again by itself."""

    call_id: str
    attempt: int
    error: Failure
    again_at: int = 0


class ToolInterrupted(Record, frozen=True, kw_only=True, tag="tool.interrupted"):
    """Its outcome is unknown: it may have happened.

    `reason`: crash, stopped, timeout, cancelled, unstorable, mismatch, undone, contended,
    unreconciled. `why` says which value could not be kept, and for what.
    """

    call_id: str
    attempt: int
    reason: str
    final: bool = True
    why: str = ""


class ToolDenied(Record, frozen=True, kw_only=True, tag="tool.denied"):
    call_id: str
    reason: str
    principal: str = ""


# Runs of workflows


class WorkflowCalled(Record, frozen=True, kw_only=True, tag="workflow.called"):
    """The body of a workflow is called, with the input that the run was started with."""

    call_id: str
    workflow: str


class RunRestarted(Record, frozen=True, kw_only=True, tag="run.restarted"):
    """The body begins again in the same run, with another input and an empty history."""

    call_id: str
    attempt: int
    input: str


class JournalInherited(Record, frozen=True, kw_only=True, tag="journal.inherited"):
    """What a run has from the one that it tries again: the `steps` and waits that are over.

    `spoilt` are steps that were cut off and are not done again, `begun` the attempts at those that
    were under way at its end: each knows what a cut of it means. With `undoing` that run's undo
    goes on, of all that is in `undos` and not in `steps`; it had failed for that.
    """

    internal: ClassVar[bool] = True

    steps: dict[str, str] = {}
    spoilt: dict[str, Failure] = {}
    begun: dict[str, int] = {}
    undos: dict[str, str] = {}
    undoing: Failure | None = None
    input: str = ""


class EventSent(Record, frozen=True, kw_only=True, tag="event.sent"):
    """Somebody sent an event to a run: it is kept until the body waits for one of that name."""

    delivery_id: str
    name: str
    payload: str
    principal: str = ""


class EventReceived(Record, frozen=True, kw_only=True, tag="event.received"):
    """The run has an event, behind those of the same name that nobody waited for."""

    internal: ClassVar[bool] = True

    delivery_id: str
    name: str


class EventTaken(Record, frozen=True, kw_only=True, tag="event.taken"):
    """A wait of a call has the first event of a name that nobody had."""

    internal: ClassVar[bool] = True

    call_id: str
    name: str
    event: str


class UndoRegistered(Record, frozen=True, kw_only=True, tag="undo.registered"):
    """What the body does next is undone by a function of that `title`, if the run fails."""

    internal: ClassVar[bool] = True

    call_id: str
    name: str
    title: str


class UndoStarted(Record, frozen=True, kw_only=True, tag="undo.started"):
    """What the body has done is undone, in reverse; then the turn ends as it would have."""

    call_id: str
    error: Failure | None = None
    reason: str = ""
    superseded: bool = False
    delivery_id: str = ""


class UndoEnded(Record, frozen=True, kw_only=True, tag="undo.ended"):
    """All is undone; with an `error` it could not be, and the functions in `left` did not run."""

    call_id: str
    error: Failure | None = None
    left: tuple[str, ...] = ()


# Waiting


class RequestOpened(Record, frozen=True, kw_only=True, tag="request.opened"):
    """A human is asked. `kind`: approval, question, interrupted or budget.

    `name` is a tool's own wait. `on_expiry` says what becomes of it then: the call is denied, or
    the turn fails.
    Where a child asks, `path` leads to it through the sessions between, `agent` is its own, and
    `origin` is the request of the first of them. A `restricted` one is not everybody's to
    answer; then `requesters` are whom the call is made for. `expires_above`: it is answered above,
    too, so that its time is up is told from there. `subagent`: the child is remote, and this is the
    request by which it is waited for here. `budget` is one at its end, and `extends_by` what a
    yes adds to it.
    """

    request_id: str
    kind: str
    prompt: str
    options: tuple[Option, ...] = ()
    allow_freeform: bool = False
    call_id: str = ""
    tool: str = ""
    args: str = ""
    digest: str = ""
    name: str = ""
    expires_at: int = 0
    on_expiry: str = "deny"
    path: tuple[str, ...] = ()
    agent: str = ""
    origin: str = ""
    restricted: bool = False
    requesters: tuple[str, ...] = ()
    expires_above: bool = False
    subagent: str = ""
    budget: BudgetKey | None = None
    extends_by: Amounts = NOTHING


class RequestResolved(Record, frozen=True, kw_only=True, tag="request.resolved"):
    """`how`: answered, cancelled or superseded; `digest` is that of the arguments approved.

    `dedupe` is the idempotency key of a call whose arguments were changed to `args`.
    """

    request_id: str
    how: str = "answered"
    option: str = ""
    text: str = ""
    args: str = ""
    principal: str = ""
    digest: str = ""
    dedupe: IdempotencyKey | None = None


class RequestExpired(Record, frozen=True, kw_only=True, tag="request.expired"):
    request_id: str


class CallbackOpened(Record, frozen=True, kw_only=True, tag="callback.opened"):
    """A tool has an address at which it can be reached from outside; its secret is not kept.

    Where there is a `signer`, the address is for the server of that remote agent, which posts there
    when its session has news: what is not signed by it is refused. `subagent` is the request by
    which that session is waited for.
    """

    request_id: str
    call_id: str
    attempt: int
    name: str
    expires_at: int
    signer: str = ""
    subagent: str = ""


class CallbackClosed(Record, frozen=True, kw_only=True, tag="callback.closed"):
    """`how`: answered (with what came as JSON text), expired, cancelled or superseded."""

    request_id: str
    call_id: str
    how: str = "answered"
    value: str = ""


class AuthorizationRequired(Record, frozen=True, kw_only=True, tag="authorization.required"):
    """A sign-in at `url` has to come before a call can go on: by `principal`, if it is a user's.

    `path`, `agent`, `origin` and `subagent` are as in `request.opened`.
    """

    request_id: str
    call_id: str
    attempt: int
    name: str
    connection: str
    url: str
    expires_at: int
    principal: str = ""
    path: tuple[str, ...] = ()
    agent: str = ""
    origin: str = ""
    subagent: str = ""


class AuthorizationCompleted(Record, frozen=True, kw_only=True, tag="authorization.completed"):
    request_id: str
    call_id: str
    connection: str


class AuthorizationFailed(Record, frozen=True, kw_only=True, tag="authorization.failed"):
    """`how`: denied, failed (both with the provider's `reason`), expired, cancelled, superseded."""

    request_id: str
    call_id: str
    connection: str
    how: str = "denied"
    reason: str = ""


class TimerSet(Record, frozen=True, kw_only=True, tag="timer.set"):
    call_id: str
    name: str
    due_at: int


class TimerFired(Record, frozen=True, kw_only=True, tag="timer.fired"):
    call_id: str
    name: str


# Children


class SubagentCalled(Record, frozen=True, kw_only=True, tag="subagent.called"):
    """A session is started for a call, which waits for what it comes to.

    With a `url` the agent is behind another server. Then nothing has been sent there yet, `child`
    is not known before `subagent.started`, and `message` is what the agent is asked. `excerpt` is
    its beginning.
    """

    request_id: str
    call_id: str
    attempt: int
    name: str
    child: str
    agent: str
    url: str = ""
    message: str = ""
    excerpt: str = ""


class SubagentStarted(Record, frozen=True, kw_only=True, tag="subagent.started"):
    """A server has started the session that was called at its `url`: `child` is its id there.

    `told`: that server posts to us when there is something new.
    """

    request_id: str
    call_id: str
    child: str
    agent: str
    url: str
    told: bool = False


class SubagentContacted(Record, frozen=True, kw_only=True, tag="subagent.contacted"):
    """The server of a remote child was asked how it stands, and is asked again at `next_at`.

    `contacts` counts how often that was since something changed. `answered` are the requests
    here whose answers were sent there; `settled` are those there that it still lists, and that were
    answered or have expired here.
    """

    internal: ClassVar[bool] = True

    request_id: str
    call_id: str
    next_at: int
    contacts: int = 0
    answered: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()


class SubagentCompleted(Record, frozen=True, kw_only=True, tag="subagent.completed"):
    """`usage` is that of its session, with all below it; a remote one's is recorded by itself."""

    request_id: str
    call_id: str
    child: str
    value: str
    usage: UsageSum = NO_USAGE


class SubagentFailed(Record, frozen=True, kw_only=True, tag="subagent.failed"):
    """It failed, or its call does not wait for it any more: then it is ended.

    Of an agent behind another server it has the `url`; `child` is empty if it is not known whether
    a session was started there.
    """

    request_id: str
    call_id: str
    child: str
    error: Failure
    agent: str = ""
    url: str = ""
    usage: UsageSum = NO_USAGE


# State and ownership


class SliceValue(Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """A value of a slice: JSON text, and the version of the schema in which it was written."""

    text: str
    version: int = 1


class StateChanged(Record, frozen=True, kw_only=True, tag="state.changed"):
    """A slice has other `values` now: JSON texts, written in that `version` of its schema.

    `op`: they are all that it has (`put`), follow those before (`append`), or are in the place of
    `drop` others from `at` on (`splice`). A `log` is only ever added to.
    """

    internal: ClassVar[bool] = True

    slice: str
    op: str
    values: tuple[str, ...] = ()
    at: int = 0
    drop: int = 0
    version: int = 1
    log: bool = False


class StateRolledBack(Record, frozen=True, kw_only=True, tag="state.rolled_back"):
    """These slices, of all lanes, are again as they were; with `reset`, as in the beginning.

    No other lane has an open turn. Those named in `logs` are logs, of which the session had none.
    """

    internal: ClassVar[bool] = True

    slices: dict[str, tuple[SliceValue, ...]] = {}
    reset: bool = False
    logs: tuple[str, ...] = ()


StateOperation = Literal["seed", "append", "dispatch", "reset", "rollback", "rekey"]


class StateChangeRequested(Record, frozen=True, kw_only=True, tag="state.change_requested"):
    """Somebody outside of all turns wants state changed. It arrives for `main`; its owner does it.

    `seed` and `append` have the `values` of a `slice`, which may be a `log`. `dispatch` has an
    `event` by the name of its class, the one of its `values`, for a `slice` or for all that have a
    reducer for it. `rollback` has all `slices` as they are to be, those in `logs` being logs.
    `rekey` has what a `SessionRekeyed` is to say.
    """

    internal: ClassVar[bool] = True

    delivery_id: str
    op: StateOperation
    slice: str = ""
    values: tuple[SliceValue, ...] = ()
    log: bool = False
    event: str = ""
    slices: dict[str, tuple[SliceValue, ...]] = {}
    logs: tuple[str, ...] = ()
    principal: str = ""
    token: str = ""
    revoked: tuple[str, ...] = ()
    outbox: tuple[NewOutboxCursor, ...] = ()


class StateChangeRefused(Record, frozen=True, kw_only=True, tag="state.change_refused"):
    """A change of state that was asked for cannot be made, for `error`: nothing has changed."""

    internal: ClassVar[bool] = True

    delivery_id: str
    error: Failure


class LaneTakenOver(Record, frozen=True, kw_only=True, tag="lane.taken_over"):
    """The lane changed hands with work under way; `graceful` if its owner gave it up.

    Then there are two: that of the owner, who hands it back, and that of the next. `evidence` says
    how it is known that the owner before could be passed over (`outlast.store.TakeoverEvidence`),
    and `deployment` names the version of the code with which the turn goes on.
    """

    internal: ClassVar[bool] = True

    worker: str
    fence: int
    since: int
    spent: int = 0
    graceful: bool = False
    evidence: str = ""
    deployment: str = ""


class LaneBlocked(Record, frozen=True, kw_only=True, tag="lane.blocked"):
    """The lane's owner cannot carry it any further: its turn, or its next one, is to fail."""

    internal: ClassVar[bool] = True

    error: Failure


AnyRecord = (
    SessionStarted
    | SessionWaiting
    | SessionResumed
    | SessionCompleted
    | SessionFailed
    | SessionEnded
    | SessionRekeyed
    | TurnStarted
    | TurnCompleted
    | TurnFailed
    | TurnCancelled
    | TurnStopping
    | StepStarted
    | StepCompleted
    | StepFailed
    | DeliveryQueued
    | DeliveryJoined
    | DeliverySettled
    | CancelRequested
    | RequestRelayed
    | ModelStarted
    | ModelRetrying
    | ModelSwitched
    | ProviderUnavailable
    | ProviderStillUnavailable
    | ProviderAvailable
    | MessageDelta
    | ReasoningDelta
    | MessageCompleted
    | MessageAborted
    | ReasoningCompleted
    | UsageRecorded
    | BudgetCharged
    | BudgetWarned
    | BudgetExhausted
    | BudgetExtended
    | PromptRendered
    | FeedbackGiven
    | FeedbackSkipped
    | CompletionAccepted
    | CompletionRefused
    | MilestoneReached
    | ContextRestarted
    | CompactionCompleted
    | SummaryStarted
    | SummaryFailed
    | ContextOverflowed
    | ContextRewound
    | ContextChangeRequested
    | ContextChangeRefused
    | ToolRequested
    | ToolStarted
    | ToolVanished
    | ToolProgress
    | ToolStepStarted
    | ToolStepRecorded
    | ToolStepFailed
    | ToolEmitted
    | ToolWaiting
    | ToolMismatched
    | ToolWoken
    | ToolCompleted
    | ToolFailed
    | ToolInterrupted
    | ToolDenied
    | WorkflowCalled
    | RunRestarted
    | JournalInherited
    | EventSent
    | EventReceived
    | EventTaken
    | UndoRegistered
    | UndoStarted
    | UndoEnded
    | RequestOpened
    | RequestResolved
    | RequestExpired
    | CallbackOpened
    | CallbackClosed
    | AuthorizationRequired
    | AuthorizationCompleted
    | AuthorizationFailed
    | TimerSet
    | TimerFired
    | SubagentCalled
    | SubagentStarted
    | SubagentContacted
    | SubagentCompleted
    | SubagentFailed
    | StateChanged
    | StateRolledBack
    | StateChangeRequested
    | StateChangeRefused
    | LaneTakenOver
    | LaneBlocked
)


class Entry(Struct, frozen=True, gc=False):
    """A record in its place in the log. `version` is the format in which it was written.

    `checksum` is that of the stored row that it is part of (see `core/codec.py`).
    """

    offset: int
    at: int
    lane: str
    record: AnyRecord
    version: int = FORMAT
    checksum: str = ""
