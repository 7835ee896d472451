"""The results of performed actions, as the engine hands them to `outcome`.

Owns the types only. Executors make them (`agents/runtime`); `outcome.py` turns them into records.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from outlast.core.amount import NOTHING as NO_AMOUNTS
from outlast.core.amount import Amounts, BudgetKey
from outlast.core.message import Content, Part
from outlast.core.record import (
    NO_USAGE,
    AuthorizationRequired,
    Failure,
    IdempotencyKey,
    MessageDelta,
    NewOutboxCursor,
    Option,
    PromptSection,
    ReasoningDelta,
    RequestOpened,
    SessionRekeyed,
    ToolEmitted,
    UsageRecorded,
    UsageSum,
)
from outlast.core.slice import STATE_RECORDS, Slices, StateRecord, change

Asked = RequestOpened | AuthorizationRequired
"""A child's request to people, as its own records have it."""


MOST_USED = 10**13
"""Tokens, calls or billionths of a dollar that one report of usage counts for at most: rows of
databases have room for the sum of 900,000 such reports."""


def bounded(count: int) -> int:
    """Return what a provider or another server says was used, within what can be added up."""
    return min(max(count, 0), MOST_USED)


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """The usage of a model call, in tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    details: Mapping[str, int] = {}

    def within_bounds(self) -> Self:
        """Return this with every count bounded: a provider says it, and a lane has to go on."""
        counts = (
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
            *self.details.values(),
        )
        if min(counts) >= 0 and max(counts) <= MOST_USED:  # as those of all real calls are
            return self
        return type(self)(
            bounded(self.input_tokens),
            bounded(self.output_tokens),
            bounded(self.cache_read_tokens),
            bounded(self.cache_write_tokens),
            {name: bounded(count) for name, count in self.details.items()},
        )


class CallPrice(Struct, frozen=True, gc=False):
    """What a model call has cost, in billionths of a US dollar, by which data of which version."""

    nano_usd: int
    prices: str


class RequestedCall(Struct, frozen=True, gc=False):
    """A tool call that the model asked for, looked at: is it valid, does it need approval?

    `decision` is what the hook `decided_by` said to it: then `changed` are its arguments, or it
    is `denied` for a reason. `policy` is the rule that refuses it, for the same. `formerly` are the
    digests that it would have under names that its tool had before.
    """

    call_id: str
    tool: str
    digest: str
    asks: str = ""
    output: bool = False
    refusal: Failure | None = None
    dedupe: IdempotencyKey | None = None
    decision: str = ""
    decided_by: str = ""
    changed: str = ""
    denied: str = ""
    policy: str = ""
    formerly: tuple[str, ...] = ()


class Answered(Struct, frozen=True, gc=False):
    """The model gave a whole answer.

    Where it was streamed, the log has it from `deltas_from` on, `deltas` are what is left to write
    of it, and the text of the parts in `streamed` is there alone. `prompt` is what it was asked
    with, if that was made of sections. The `price` is None where none is known. `ended_ago` is for
    how many milliseconds hooks and policies have looked at it since the model gave it.
    """

    parts: tuple[Part, ...]
    usage: Usage
    wanted: tuple[RequestedCall, ...] = ()
    model: str = ""
    finish: str = ""
    deltas: tuple[MessageDelta | ReasoningDelta, ...] = ()
    deltas_from: int = 0
    streamed: tuple[int, ...] = ()
    misfit: str = ""
    prompt: tuple[PromptSection, ...] = ()
    price: CallPrice | None = None
    ended_ago: int = 0


class ModelFailed(Struct, frozen=True, gc=False):
    """The model call failed. `kind`: transient, blocked, recoverable or structural.

    `is_away`: the lane waits in the provider's line, and is not tried again soon; a call that is
    not even `is_asked` was not made, because the provider fails those of others. `heard` counts
    the bytes of an answer that are not in the log, and `cut_off` is about what was used for it.
    """

    error: Failure
    kind: str
    retry_after: int = 0
    backoff: int = 0
    deltas: tuple[MessageDelta | ReasoningDelta, ...] = ()
    is_asked: bool = True
    is_away: bool = False
    heard: int = 0
    cut_off: UsageRecorded | None = None
    prompt: tuple[PromptSection, ...] = ()


class SliceUpdate(Struct, frozen=True, gc=False):
    """A change of slices that is made of their newest values, when the outcome is recorded."""

    apply: Callable[[Slices], Sequence[StateRecord]]


Change = StateRecord | SessionRekeyed | SliceUpdate


class BufferedEffects(Struct, frozen=True, gc=False):
    """State and events that a tool buffered, to be committed with its outcome."""

    emitted: tuple[ToolEmitted, ...] = ()
    changes: tuple[Change, ...] = ()


NOTHING = BufferedEffects()


class PossibleMilestone(Struct, frozen=True, gc=False):
    """Says of a call that has returned whether it is a milestone, and what that is about.

    It is asked when the outcome is written down, perhaps more than once, with the calls and the
    seconds since the last milestone, and never fails.
    """

    is_reached: Callable[[int, float], bool]
    title: str = ""


class Returned(Struct, frozen=True, gc=False):
    call_id: str
    value: str
    message: str | None = None
    leftovers: BufferedEffects = NOTHING
    same_as: str = ""
    milestone: PossibleMilestone | None = None


class Raised(Struct, frozen=True, gc=False):
    """The tool failed for certain. `backoff` is how long to wait if it may be tried again."""

    call_id: str
    error: Failure
    backoff: int = 0


class Interrupted(Struct, frozen=True, gc=False):
    """Its outcome is unknown. `final`: there is no way to find out.

    `reason`: timeout, cancelled, unstorable, mismatch, undone, contended, unreconciled. `why` says
    more, in a sentence, where there is more to say.
    """

    call_id: str
    reason: str
    final: bool = False
    why: str = ""


class Question(Struct, frozen=True, gc=False):
    """A question that a tool asks a human with `ctx.ask`."""

    prompt: str
    options: tuple[Option, ...] = ()
    allow_freeform: bool = True
    expires_at: int = 0
    on_expiry: str = "deny"


class NewChild(Struct, frozen=True, gc=False):
    """A session that a tool starts, and waits for; with a `url`, behind another server.

    That server gives it its id. Here its turns stand in its agent's `queue`, if that has one. A run
    of a workflow has an `input`, and no content.
    """

    session_id: str
    agent: str
    content: Content
    outbox: tuple[NewOutboxCursor, ...] = ()
    url: str = ""
    queue: str = ""
    input: str = ""


class NewAuthorization(Struct, frozen=True, gc=False):
    """A sign-in that a tool waits for."""

    request_id: str
    connection: str
    url: str
    expires_at: int
    principal: str = ""


class ChildEnd(Struct, frozen=True, gc=False, omit_defaults=True):
    """A child's result, as its parent gets it: a value as JSON text, or a failure.

    `usage` is that of its session, with all below it.
    """

    value: str = ""
    error: Failure | None = None
    usage: UsageSum = NO_USAGE


class ShareReturned(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a child has spent of its share of a budget, and what humans have allowed beyond it."""

    spent: Amounts = NO_AMOUNTS
    extended: Amounts = NO_AMOUNTS


class RemoteView(Struct, frozen=True, gc=False):
    """How a remote child stands: what it asks, how its sign-ins ended, or its end."""

    asked: tuple[Asked, ...] = ()
    sign_ins: Mapping[str, str] = {}
    end: ChildEnd | None = None


class ChildContact(Struct, frozen=True, gc=False, kw_only=True):
    """The result of contacting the server of a remote child.

    `callback` is the address that has to be open before that; then nothing was sent. `started` is
    the session there, if it was started now, and `told` whether its server posts news. `refusals`
    say for each request here whose answer was sent why it was refused; empty if it was not. Without
    a `view` the server could not be reached. `rounds` says how much of its news was known then,
    `poll` when to look again, in milliseconds, if this is the first look that shows nothing new.
    `budgets` are those besides the turn's in which the child's usage counts; None: there are none.
    """

    request_id: str
    callback: str = ""
    started: str = ""
    told: bool = False
    refusals: Mapping[str, str] = {}
    view: RemoteView | None = None
    rounds: int = 0
    poll: int = 2000
    budgets: tuple[BudgetKey, ...] | None = None


class NewWait(Struct, frozen=True, gc=False):
    """One wait of a tool: for a time, an event, or what it begins; else for what has begun."""

    name: str
    due_at: int = 0
    question: Question | None = None
    child: NewChild | None = None
    authorization: NewAuthorization | None = None
    event: str = ""


class ToolWaits(Struct, frozen=True, gc=False):
    """The tool stopped, each of its branches at a wait, and goes on when the first of them is over.

    `reconciles`: it was still finding out what became of that attempt. `unused` are the answers
    that have come, and that it did not ask for on its way here.
    """

    call_id: str
    waits: tuple[NewWait, ...]
    reconciles: int = 0
    unused: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[NewChild, ...]:
        """The children in this app that are started with it."""
        return tuple(wait.child for wait in self.waits if wait.child and not wait.child.url)


class Mismatched(Struct, frozen=True, gc=False):
    """The code does not fit what the call has done."""

    call_id: str
    error: Failure


class Restarted(Struct, frozen=True, gc=False):
    """The body of a workflow begins again, with another `input` and an empty history."""

    call_id: str
    input: str


class Undone(Struct, frozen=True, gc=False):
    """What the body had done is undone; with an `error` it could not be, and those are `left`."""

    call_id: str
    error: Failure | None = None
    left: tuple[str, ...] = ()


def is_contended(end: Returned) -> bool:
    """Whether a tool's end depends on what others do meanwhile: a slice's newest value, a token."""
    for item in end.leftovers.changes:  # noqa: SIM110 - most ends have none, a generator costs a call
        if isinstance(item, SliceUpdate | SessionRekeyed):
            return True
    return False


def with_updates(end: Returned, slices: Slices) -> Returned:
    """Return a tool's end with its updates made of the slices as they are now."""
    changes: list[Change] = []
    for item in end.leftovers.changes:
        made = item.apply(slices) if isinstance(item, SliceUpdate) else (item,)
        changes += made
        for record in made:
            if isinstance(record, STATE_RECORDS):
                slices = change(slices, record)
    return replace(end, leftovers=replace(end.leftovers, changes=tuple(changes)))


class FeedbackSaid(Struct, frozen=True, gc=False):
    """The sentence of one feedback provider, or why it failed."""

    name: str
    text: str = ""
    error: Failure | None = None


class FeedbackCollected(Struct, frozen=True, gc=False):
    """The sentences of the feedback providers that were due at the end of a step."""

    turn: str
    step: int
    said: tuple[FeedbackSaid, ...]


class CompletionChecked(Struct, frozen=True, gc=False):
    """The verdict of the `checkers` on the end of a turn; `reasons` are of those that refuse it."""

    turn: str
    step: int
    checkers: tuple[str, ...]
    reasons: dict[str, str]


class Compacted(Struct, frozen=True, gc=False):
    """How a view is made shorter: see `compaction.completed`. `usage` is that of the summary.

    It was given by a `model`, for a `price` if that is known.
    """

    tokens: int
    until: int = 0
    keep: tuple[int, ...] = ()
    text: str = ""
    results: Mapping[str, str] = {}
    shortened: Mapping[int, str] = {}
    usage: Usage | None = None
    model: str = ""
    price: CallPrice | None = None


class SummaryLost(Struct, frozen=True, gc=False):
    """What a compaction leaves out could not be summed up. An answer of no use has its usage."""

    failed: ModelFailed
    usage: Usage | None = None
    model: str = ""
    price: CallPrice | None = None


ToolEnd = Returned | Raised | Interrupted | ToolWaits | Mismatched | Restarted | Undone


class TurnStopped(Struct, frozen=True, gc=False):
    """All work of the turn has been stopped; these calls came to an end by themselves.

    `cut_off` is about what a model call has used that was under way.
    """

    ends: tuple[ToolEnd, ...] = ()
    cut_off: UsageRecorded | None = None


Result = (
    Answered
    | ModelFailed
    | ToolEnd
    | TurnStopped
    | ChildContact
    | FeedbackCollected
    | CompletionChecked
    | Compacted
    | SummaryLost
)
