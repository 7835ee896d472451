"""The protocol between the engine and the code that knows models and tools.

Owns the two protocols between them: the engine decides when, an `Executor` knows how. An executor
never writes to the log; it is given a `CallJournal` for the little that a call may record while
it runs. Agents' executor is in `agents/runtime/executor.py`, the journal in `call_journal.py`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from msgspec import Struct

from outlast.core.action import CallModel, CheckCompletion, CompactContext, GiveFeedback, Start
from outlast.core.breaker import Provider
from outlast.core.budget_admission import CallEstimate
from outlast.core.lane import ArrivedReply, Lane, OpenCall, OpenRequest
from outlast.core.limit import Bound
from outlast.core.policy import Policy
from outlast.core.record import (
    AnyRecord,
    Failure,
    IdempotencyKey,
    MessageDelta,
    ReasoningDelta,
    StateChanged,
    StateChangeRequested,
)
from outlast.core.result import (
    Answered,
    CallPrice,
    ChildContact,
    Compacted,
    CompletionChecked,
    FeedbackCollected,
    ModelFailed,
    NewWait,
    Returned,
    SummaryLost,
    ToolEnd,
)
from outlast.core.slice import Slices, StateRecord
from outlast.core.view import View
from outlast.engine.call_tasks import CallTimeouts
from outlast.store import Transaction

T = TypeVar("T")

Hear = Callable[[MessageDelta | ReasoningDelta | None], None]
"""Takes each piece of an answer that is being streamed, and None for a mere sign of life."""


class LaneModel(Struct, frozen=True, gc=False):
    """The model that a lane asks next: its place in the agent's list, counted from 0, and its name.

    `streams`: its answers come in pieces.
    """

    number: int
    name: str
    streams: bool


class CallSlot(Protocol):
    """One of the slots that calls in this process share, or a place in the queue for one."""

    is_taken: bool

    def begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in the slot, once it is taken."""
        ...

    def leave(self) -> None:
        """Give the slot to the next in the queue, when what runs in it has ended."""
        ...


class CallJournal(Protocol):
    """The part of its lane that a running call may read and record in."""

    slot: CallSlot | None

    @property
    def stop_grace(self) -> float:
        """How long a call that is told to end has for it, in seconds."""
        ...

    @property
    def lane(self) -> Lane: ...

    @property
    def slices(self) -> Slices:
        """The session's slices as committed."""
        ...

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def is_stopped(self) -> bool:
        """Whether the call was told to end."""
        ...

    def earliest(self) -> int:
        """Return a time that has come by the store's clock."""
        ...

    def latest(self) -> int:
        """Return a time that has not passed by the store's clock: spans count from here."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return a new id."""
        ...

    def jitter(self, seconds: float) -> float:
        """Return about so many seconds: calls that fail at once do not all come back at once."""
        ...

    def note(self, record: AnyRecord) -> None:
        """Record something with the lane's next commit, whenever that is."""
        ...

    async def record(self, record: AnyRecord) -> None:
        """Record something now, and all that was noted before."""
        ...

    async def record_noted(self) -> None:
        """Record what was noted and is not in the log yet."""
        ...

    async def fail(self, error: Failure) -> None:
        """Have the turn of the call fail, which stops the call."""
        ...

    def check_awaited(self) -> None:
        """Raise CancelledError in what is left of a run of the call that has ended."""
        ...

    async def record_first(self, call_id: str, name: str, lost: tuple[str, ...]) -> None:
        """Record which branch of the call came first, durably, and close what the others opened.

        `lost` are their scopes.
        """
        ...

    async def progress(self, call_id: str, progress: str, name: str = "", done: int = 0) -> None:
        """Tell readers how far the call is; of frequent ones the last. `done` is remembered."""
        ...

    async def start_child(self, call_id: str, wait: NewWait) -> None:
        """Start a child now, whose end the call may wait for later."""
        ...

    async def open_callback(self, call_id: str, name: str, within: int) -> str:
        """Open an address for a wait of the call, durably, and return its secret.

        The wait is over `within` milliseconds after its first address was opened.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction; nothing else of this lane is written while it is open."""
        ...

    async def conclude(self, transaction: Transaction, end: Returned) -> None:
        """Record the call's outcome in the transaction and commit both.

        Raises TransactionUndone where another lane changed the same slice first, or the transaction
        was lost and nothing of it was written; RollbackRefused where it rolls state back and
        another lane has an open turn.
        """
        ...

    async def record_within(self, transaction: Transaction, record: AnyRecord) -> None:
        """Record something in the transaction and commit both; the call goes on.

        Raises TransactionUndone where the transaction was lost and nothing of it was written.
        """
        ...

    async def find_token(self, token: str) -> str | None:
        """Return the session that a continuation token leads to."""
        ...

    async def read_result(self, offset: int) -> str | None:
        """Return the text of the result of a tool whose outcome stands there in the lane's log."""
        ...


class Executor(Protocol):
    """Calls the model and runs the tools of one agent."""

    @property
    def policy(self) -> Policy: ...

    def model_of(self, lane: Lane) -> LaneModel:
        """Return which of the agent's models a lane asks next, by the code of today."""
        ...

    async def estimate(
        self, lane: Lane, slices: Slices, view: View, joins: Sequence[str]
    ) -> CallEstimate:
        """Return what the next call of that model may use, and cost.

        `joins` are the messages that it takes up.
        """
        ...

    def price(self, lane: Lane, input_tokens: int, output_tokens: int) -> CallPrice | None:
        """Return what so many tokens of that model cost, as far as is known here."""
        ...

    def model_timeouts(self, lane: Lane) -> CallTimeouts:
        """Return how long that model may take to answer."""
        ...

    def tool_timeouts(self, tool: str) -> CallTimeouts:
        """Return how long a tool may run."""
        ...

    def digests(self) -> Mapping[str, str]:
        """Return digests of what the models and the callers of the agent see, by what they are of.

        The agent's own is under its name, those of its parts behind it: `support.tool.refund`.
        """
        ...

    def providers(self) -> Collection[Provider]:
        """Return the providers of all models that the agent may ask and wait for."""
        ...

    def provider_of(self, lane: Lane, model: str = "") -> Provider | None:
        """Return the provider that the lane asks next, or that of another of the agent's models.

        None where it must not be waited for.
        """
        ...

    def bounds_of_model(self, lane: Lane, *, starts_turn: bool) -> tuple[Bound, ...]:
        """Return the limits that a call of it is under, by name; more where it starts a turn."""
        ...

    def bounds_of_tool(self, call: OpenCall, lane: Lane) -> tuple[Bound, ...]:
        """Return the limits that a tool call is under, by name."""
        ...

    def key_of_tool(self, call: OpenCall, lane: Lane) -> IdempotencyKey | None:
        """Return the scope and key under which a tool call must not happen twice, if it has one."""
        ...

    def change_state(self, change: StateChangeRequested, slices: Slices) -> list[StateRecord]:
        """Return the records of a change that somebody outside asks for.

        Raises what stands against it: an error of ours, or what a user's reducer raises.
        """
        ...

    def note_of_tool(self, call: OpenCall, lane: Lane, slices: Slices) -> StateChanged | None:
        """Return the record by which policies know that a call succeeded, if one is needed."""
        ...

    def slot_for(
        self, call: OpenCall, start: Start, tenant: str, tell: Callable[[], None]
    ) -> CallSlot | None:
        """Return the slot that a call has to have before it begins, if it needs one.

        If it has to wait for it, `tell` is called when it is taken. Slots are shared out among
        tenants.
        """
        ...

    async def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Answered | ModelFailed:
        """Ask the model, and return what the call came to; what it says before is heard."""
        ...

    async def may_answer(self, lane: Lane, reply: ArrivedReply) -> bool:
        """Say whether a reply is its giver's to give."""
        ...

    def misfit(self, call: OpenCall) -> str:
        """Say why a call cannot be run with its arguments; empty if it can."""
        ...

    def cut_off(self, lane: Lane) -> ModelFailed:
        """Say what it means that the model's client has cancelled its own call."""
        ...

    def timed_out(self, lane: Lane) -> ModelFailed:
        """Return what a model call came to that had to be stopped."""
        ...

    def output_of(self, text: str, output: str | None) -> str:
        """Return an answer as JSON text: what the agent said, or its typed value."""
        ...

    async def contact_child(self, lane: Lane, child: OpenRequest) -> ChildContact:
        """Contact the server of a remote child: start it, send it answers, look how it stands.

        All of that can be done again. A server that is away is no error.
        """
        ...

    async def run_tool(self, call: OpenCall, start: Start, journal: CallJournal) -> ToolEnd | None:
        """Run a tool to its end; None if the end has been recorded already."""
        ...

    async def give_feedback(
        self, lane: Lane, slices: Slices, view: View, action: GiveFeedback, now: int
    ) -> FeedbackCollected:
        """Ask the feedback providers that are due what they have to say."""
        ...

    def needs_summary(self, slices: Slices, view: View, action: CompactContext) -> bool:
        """Say whether messages are left out of a view that the model is to sum up before."""
        ...

    def compact(self, slices: Slices, view: View, action: CompactContext) -> Compacted:
        """Choose what is left out of a view, without asking the model."""
        ...

    async def sum_up(
        self, lane: Lane, slices: Slices, view: View, action: CompactContext, hear: Hear
    ) -> Compacted | SummaryLost:
        """Choose what is left out of a view, and ask the model for a summary of it."""
        ...

    async def check_completion(
        self, lane: Lane, slices: Slices, view: View, action: CheckCompletion, now: int
    ) -> CompletionChecked:
        """Ask the completion checkers whether the turn may end."""
        ...
