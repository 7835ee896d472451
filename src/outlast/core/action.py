"""Everything that can come next for a lane: a closed union, each action with one meaning.

Owns the actions' types, nothing about when one is due (`decide.py`) or how it is written down
(`outcome.py`). An action with `is_effect` is performed by the worker after its opening is
committed; `Park` gives the lane back; the others are done once their records are written.

Nothing is derived from an action, a result or a record. So what is looked at in every step asks
`type(each) is CallModel`, which takes a fifth of the time of an `isinstance` that says no (35 and
170 ns): of those there were ninety in a step.
"""

from typing import ClassVar, Literal

from msgspec import Struct

from outlast.core.amount import NOTHING, Amounts, BudgetHold, BudgetKey
from outlast.core.lane import ArrivedReply, DeliveryOutcome, RelayedRequest
from outlast.core.record import (
    BudgetExhausted,
    BudgetWarned,
    ContextChangeRequested,
    ContextRestarted,
    EventSent,
    Failure,
    IdempotencyKey,
    StateChangeRequested,
)


class Action(Struct, frozen=True, gc=False, kw_only=True):
    """One action. If it has an `until`, the lane decides anew by then, even if nothing happened."""

    is_effect: ClassVar[bool] = False
    is_rest: ClassVar[bool] = False


class CallModel(Action, frozen=True, kw_only=True):
    """Ask the model of that name.

    `delivery` starts a turn with that message, `joins` adds others to it. `aborts` is the attempt
    whose partial answer ends, and `keeps` says whether it is continued; those of the attempts in
    `drops` are continued no longer. One that `probes` asks a provider that fails others' calls, to
    find out whether it still does: the engine puts that in, which knows whose turn it is. One that
    `restarts` begins anew from the last milestone: the engine puts in the record that says what the
    model sees from here on. Under budgets it has reserved its `hold`, and `warns` say which of
    them are nearly spent; one that `is_last` hands back what there is, without tools.
    """

    is_effect: ClassVar[bool] = True

    call_id: str
    attempt: int
    turn: str
    step: int
    until: int
    delivery: str = ""
    retries: str = ""
    joins: tuple[str, ...] = ()
    aborts: int = 0
    keeps: bool = False
    drops: tuple[int, ...] = ()
    model: str = ""
    running: bool = False
    probes: bool = False
    restarts: bool = False
    restarted: ContextRestarted | None = None
    hold: BudgetHold | None = None
    warns: tuple[BudgetWarned, ...] = ()
    is_last: bool = False


class CallWorkflow(Action, frozen=True, kw_only=True):
    """Begin the turn of a run with its first delivery: its body is called next."""

    turn: str
    call_id: str
    delivery: str
    retries: str = ""


class Start(Struct, frozen=True, gc=False):
    """One tool call to begin; `reconciles` is an attempt to ask the outside world about first.

    `key` is its idempotency key, if no other call with the same one may happen; `fired` are the
    waits of the call whose time has come. With `may_run_ahead` it may begin before its start is
    committed: it only reads, and would be run again anyway.
    """

    call_id: str
    attempt: int
    key: IdempotencyKey | None = None
    fired: tuple[str, ...] = ()
    reconciles: int = 0
    may_run_ahead: bool = False


class RunTools(Action, frozen=True, kw_only=True):
    """Begin some calls, report others as interrupted, and go on with those that run.

    `contact` names the remote children, by their requests, whose servers are to be contacted now:
    all that is said to one can be said again, so nothing has to be recorded before. `awaits_key`:
    there are more, which cannot begin before another call gives up their key. The calls in `gone`
    fail: no worker has had their tool for too long. `spends` counts the calls that are begun for
    the first time, where `budgets` count them.
    """

    is_effect: ClassVar[bool] = True

    until: int
    start: tuple[Start, ...] = ()
    report: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    contact: tuple[str, ...] = ()
    awaits_key: bool = False
    gone: tuple[str, ...] = ()
    spends: int = 0
    budgets: tuple[BudgetKey, ...] = ()


class GiveFeedback(Action, frozen=True, kw_only=True):
    """Ask feedback providers, by name, what they have to say before the model is asked again.

    They and the checkers of a completion only look: nothing is recorded before, and one that a
    crash cut off is asked again.
    """

    is_effect: ClassVar[bool] = True

    turn: str
    step: int
    due: tuple[str, ...]
    until: int


class CheckCompletion(Action, frozen=True, kw_only=True):
    """Ask the agent's checkers whether the turn may end with the answer `call_id`.

    `output` is the call that carries a typed answer.
    """

    is_effect: ClassVar[bool] = True

    turn: str
    step: int
    call_id: str
    until: int
    output: str = ""


class AskHuman(Action, frozen=True, kw_only=True):
    """Put a call before a human, who has `timeout` milliseconds to answer (0: any time).

    `misfit` says why the arguments that were approved before cannot be run with.
    """

    call_id: str
    kind: Literal["approval", "interrupted"]
    timeout: int = 0
    on_expiry: str = "deny"
    restricted: bool = False
    misfit: str = ""


class MissTools(Action, frozen=True, kw_only=True):
    """Note that the code of today lacks the tools of these calls, which wait for other code."""

    calls: tuple[str, ...]


class AskForBudget(Action, frozen=True, kw_only=True):
    """Ask a human to allow `by` more of the budget that has `ended`, before the turn goes on.

    With a `delivery` the turn begins with it.
    """

    turn: str
    step: int
    ended: BudgetExhausted
    by: Amounts = NOTHING
    delivery: str = ""
    retries: str = ""


class HandBack(Action, frozen=True, kw_only=True):
    """Make the `step` the turn's last, in which the model is asked for what it has.

    The calls in `denies` are not begun any more.
    """

    turn: str
    step: int
    ended: BudgetExhausted
    denies: tuple[str, ...] = ()
    delivery: str = ""
    retries: str = ""


class Sleep(Action, frozen=True, kw_only=True):
    """Wait a short while in the worker."""

    is_effect: ClassVar[bool] = True

    until: int


class TakeReply(Action, frozen=True, kw_only=True):
    """Give a reply to the wait that it is for; `dedupe` is the key of the arguments it changes."""

    reply: ArrivedReply
    dedupe: IdempotencyKey | None = None


class RefuseReply(Action, frozen=True, kw_only=True):
    """Ask anew instead of taking a reply, which its giver may not give or no call can run with.

    `decide` never returns it, because only the agent's code knows who may answer: the engine
    puts it in the place of a `TakeReply`. `restricted`: only some people may answer. `misfit` as in
    `AskHuman`.
    """

    reply: ArrivedReply
    restricted: bool
    misfit: str = ""


class TakeRelay(Action, frozen=True, kw_only=True):
    """Show what a child asks, or that it does so no longer; or expire it by the parent's word."""

    relay: RelayedRequest


class TakeEvent(Action, frozen=True, kw_only=True):
    """Take in an event that was sent to a run, and wake the body if it waits for one."""

    event: EventSent


class ChangeState(Action, frozen=True, kw_only=True):
    """Change the session's state as somebody outside asks, or say why that cannot be."""

    change: StateChangeRequested


class CompactContext(Action, frozen=True, kw_only=True):
    """Make the view of about so many `tokens` shorter, before the model is asked in a `turn`.

    `level` counts how often a provider has found it too long: each time less is left. Where it
    only has an oversized result, and is not `is_near` its limit, nothing else is touched.
    `delivery_id` is that of whoever asked for it. With `may_sum_up` the attempt `attempt` at the
    model call `call_id` may sum up what is left out; the engine, which knows the view, says whether
    it does: then it `sums_up`, and that is recorded before. Else nothing is, and one that a crash
    cut off is begun again. A summary has reserved what is in `hold`.
    """

    is_effect: ClassVar[bool] = True

    until: int
    tokens: int
    level: int
    is_near: bool
    turn: str = ""
    delivery_id: str = ""
    call_id: str = ""
    attempt: int = 1
    model: str = ""
    may_sum_up: bool = False
    sums_up: bool = False
    hold: BudgetHold | None = None


class ChangeContext(Action, frozen=True, kw_only=True):
    """Change the view as somebody outside asks, or say why that cannot be.

    It is taken back behind a turn; any other change is refused, for an `error`.
    """

    change: ContextChangeRequested
    error: Failure | None = None


class ExpireRequest(Action, frozen=True, kw_only=True):
    """Close a request that was not answered in time."""

    request_id: str


class SettleDeliveries(Action, frozen=True, kw_only=True):
    """Tell deliveries what became of them."""

    outcomes: tuple[DeliveryOutcome, ...]


class CompleteTurn(Action, frozen=True, kw_only=True):
    turn: str
    step: int
    call_id: str
    output: str = ""


class FailTurn(Action, frozen=True, kw_only=True):
    """Fail the open turn; with a `delivery`, one that begins with it and comes to nothing else."""

    is_effect: ClassVar[bool] = True

    turn: str
    error: Failure
    structural: bool = False
    delivery: str = ""
    retries: str = ""


class CancelTurn(Action, frozen=True, kw_only=True):
    is_effect: ClassVar[bool] = True

    turn: str
    reason: str = ""
    delivery_id: str = ""
    superseded: bool = False


class CompleteSession(Action, frozen=True, kw_only=True):
    """End the session well: its task is done, or its end was asked for."""

    turn: str = ""
    reason: str = ""
    delivery_id: str = ""


class FailSession(Action, frozen=True, kw_only=True):
    error: Failure


class Park(Action, frozen=True, kw_only=True):
    """Give the lane back until something of `wait` is here, or until a time.

    With `keeps_permits` a call of it stands in the line of a limit, and keeps its place there. One
    that waits for `budgets` has seen them after so many returns; `ended` tells of one at its end.
    """

    is_rest: ClassVar[bool] = True

    wait: tuple[str, ...]
    requests: tuple[str, ...] = ()
    until: int = 0
    keeps_permits: bool = False
    budgets: tuple[tuple[BudgetKey, int], ...] = ()
    ended: BudgetExhausted | None = None


AnyAction = (
    CallModel
    | CallWorkflow
    | RunTools
    | GiveFeedback
    | CheckCompletion
    | AskHuman
    | MissTools
    | AskForBudget
    | HandBack
    | Sleep
    | TakeReply
    | RefuseReply
    | TakeRelay
    | TakeEvent
    | ChangeState
    | CompactContext
    | ChangeContext
    | ExpireRequest
    | SettleDeliveries
    | CompleteTurn
    | FailTurn
    | CancelTurn
    | CompleteSession
    | FailSession
    | Park
)
