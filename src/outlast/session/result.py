"""The result of a message.

Owns its fields and statuses. How it is waited for and read from the log is in `handle.py`.
"""

from typing import Any, Generic, Literal

from msgspec import Struct
from typing_extensions import TypeVar

from outlast.core.record import Failure
from outlast.core.usage import TreeUsage
from outlast.errors import DeadlineExceeded, SessionError, StillWaiting
from outlast.session.request import Request
from outlast.session.waiting import WaitingFor, in_words

Out = TypeVar("Out", default=Any)

ResultStatus = Literal[
    "completed", "waiting", "running", "failed", "cancelled", "ended", "idle", "refused", "ignored"
]


class Result(Struct, Generic[Out], frozen=True, kw_only=True):
    """The result of a turn.

    Attributes:
        status: `completed`; `waiting` for a human (see `requests`); `failed` (see `error`);
            `cancelled`; `ended`; `idle` if no message has come yet; `refused` or `ignored` if no
            turn took the message, because the session was over; `running` if the `timeout` was up.
        output: The answer: a text, or a value of the agent's `output_type`.
        usage: The turn's own usage, and the total with the children that it waited for.
        budget_exhausted: The budget at whose end the turn handed back what it had; empty if the
            turn ended by itself.
        waiting_for: What a running or waiting session waits for; None if it is at work.
    """

    status: ResultStatus
    output: Out | None = None
    requests: tuple[Request, ...] = ()
    error: Failure | None = None
    usage: TreeUsage = TreeUsage()
    turn: str = ""
    waiting_for: WaitingFor | None = None
    budget_exhausted: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether the turn goes on once a human has answered its `requests`, or signed in."""
        return self.status == "waiting"

    def unwrap(self) -> Out:
        """Return the output of a completed turn.

        Raises StillWaiting if the turn waits for a human or goes on, and SessionError if it has
        ended without an output: DeadlineExceeded is one.
        """
        if self.status == "running":
            waits = f"waits for {in_words(self.waiting_for)}" if self.waiting_for else "is at work"
            raise StillWaiting(f"there is no output yet: the session {waits}; wait again")
        if self.is_waiting:
            asked = ", ".join(request.request_id for request in self.requests)
            raise StillWaiting(
                f"there is no output yet: the session waits for {asked or 'a human'};"
                " answer it, then wait again",
                requests=[request.request_id for request in self.requests],
            )
        if self.status != "completed":
            reason = f"{self.error.code}: {self.error.message}" if self.error else self.status
            is_late = self.error is not None and self.error.code == DeadlineExceeded.code
            failed = DeadlineExceeded if is_late else SessionError
            raise failed(f"there is no output: {reason}", status=self.status)
        return self.output  # type: ignore[return-value]
