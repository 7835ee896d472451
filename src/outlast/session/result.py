"""The result of a message."""

from __future__ import annotations

from typing import Any, Generic

from msgspec import Struct
from typing_extensions import TypeVar

from outlast.core.record import Failure, Tokens
from outlast.errors import DeadlineExceeded, SessionError
from outlast.session.request import Request

Out = TypeVar("Out", default=Any)


class Result(Struct, Generic[Out], frozen=True, kw_only=True):
    """The result of a turn.

    `status`: completed, waiting (for a human: see `requests`), failed (see `error`), cancelled,
    ended, or idle where nothing has been said yet.
    """

    status: str
    output: Out | None = None
    requests: tuple[Request, ...] = ()
    error: Failure | None = None
    usage: Tokens = Tokens()
    turn: str = ""

    def unwrap(self) -> Out:
        """Return the output, or raise SessionFailed if there is none; DeadlineExceeded is one."""
        if self.status != "completed":
            reason = f"{self.error.code}: {self.error.message}" if self.error else self.status
            is_late = self.error is not None and self.error.code == DeadlineExceeded.code
            failed = DeadlineExceeded if is_late else SessionError
            raise failed(f"there is no output: {reason}", status=self.status)
        return self.output  # type: ignore[return-value]
