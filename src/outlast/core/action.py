"""All that can come next for a lane: a closed union.

An action with work to do is an effect; the worker performs it. `Park` is rest: the
lane is given back. The others are written down and done.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from outlast.core.lane import ArrivedReply, RelayedRequest
from outlast.core.record import Failure


class Action(Struct, frozen=True, gc=False, kw_only=True):
    """What has an `until` is decided anew then at the latest, should nothing have happened."""

    is_effect: ClassVar[bool] = False
    is_rest: ClassVar[bool] = False


class CallModel(Action, frozen=True, kw_only=True):
    """Ask the model. `delivery` starts a turn with that message, `joins` adds others to it."""

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
    running: bool = False


class Start(Struct, frozen=True, gc=False):
    """One tool call to begin; `reconciles` is an attempt to ask the outside world about first.

    `key` is its scope and idempotency key, where no other call with the same may happen; `fired`
    are the waits of the call whose time has come.
    """

    call_id: str
    attempt: int
    key: str = ""
    fired: tuple[str, ...] = ()
    reconciles: int = 0


class RunTools(Action, frozen=True, kw_only=True):
    """Begin some calls, report others as interrupted, and go on with those that run.

    `awaits_key`: there are more, which cannot begin before another call gives up their key.
    """

    is_effect: ClassVar[bool] = True

    until: int
    start: tuple[Start, ...] = ()
    report: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    awaits_key: bool = False


class AskHuman(Action, frozen=True, kw_only=True):
    """Put a call before a human; `kind` is approval or interrupted."""

    call_id: str
    kind: Literal["approval", "interrupted"]
    expires_at: int = 0
    on_expiry: str = "deny"
    restricted: bool = False


class Sleep(Action, frozen=True, kw_only=True):
    """Wait a short while in the worker."""

    is_effect: ClassVar[bool] = True

    until: int


class Settle(Action, frozen=True, kw_only=True):
    """Take a reply or a relay, close what has expired, or tell deliveries what became of them.

    A reply is `refused` if it comes from somebody who may not give it, or changes the arguments to
    such that do not fit; then it is asked anew, of some people only if that is `restricted`.
    `dedupe` is the key of the call whose arguments it changes.
    """

    reply: ArrivedReply | None = None
    refused: bool = False
    restricted: bool = False
    dedupe: str = ""
    relay: RelayedRequest | None = None
    expired: str = ""
    settled: tuple[tuple[str, str, str], ...] = ()

    @property
    def expires(self) -> bool:
        """Whether a request is closed because its time is up, which an answer may prevent."""
        return bool(self.expired or (self.relay and self.relay.how == "expired"))


class CompleteTurn(Action, frozen=True, kw_only=True):
    turn: str
    step: int
    call_id: str
    output: str = ""


class FailTurn(Action, frozen=True, kw_only=True):
    is_effect: ClassVar[bool] = True

    turn: str
    error: Failure
    structural: bool = False


class CancelTurn(Action, frozen=True, kw_only=True):
    is_effect: ClassVar[bool] = True

    turn: str
    reason: str = ""
    delivery_id: str = ""
    superseded: bool = False


class CompleteSession(Action, frozen=True, kw_only=True):
    """End the session well: its task is done, or somebody asked for the end."""

    turn: str = ""
    reason: str = ""
    delivery_id: str = ""


class FailSession(Action, frozen=True, kw_only=True):
    error: Failure


class Park(Action, frozen=True, kw_only=True):
    """Give the lane back until something of `wait` is here, or until a time."""

    is_rest: ClassVar[bool] = True

    wait: tuple[str, ...]
    requests: tuple[str, ...] = ()
    until: int = 0


AnyAction = (
    CallModel
    | RunTools
    | AskHuman
    | Sleep
    | Settle
    | CompleteTurn
    | FailTurn
    | CancelTurn
    | CompleteSession
    | FailSession
    | Park
)
