"""All that happened in a simulation, as seen from outside: what the promises are held against.

Kept apart from the store, so that no crash takes anything of it away. Every note has a
number, so that of two that happened at the same instant one was first.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from outlast.core.limit import Bound
from outlast.core.queue import QueueSettings

N = TypeVar("N")


class HistoryNote(Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened: the how-manieth thing, when, and in which process."""

    number: int
    at: float
    who: str


class EffectBegan(HistoryNote, frozen=True, kw_only=True, tag=True):
    """The outside world was touched: a `model` or a `tool` was called, or a tool's `step` run.

    `shown` is a digest of what a model was shown.
    """

    kind: str
    session_id: str
    call_id: str
    attempt: int
    name: str = ""
    shown: str = ""


class DeedDone(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A step of a run's body did, in the world outside, what it is named after."""

    session_id: str
    what: str


class EffectEnded(HistoryNote, frozen=True, kw_only=True, tag=True):
    """An effect ended while its worker lived. `how`: returned, raised, …"""

    kind: str
    session_id: str
    call_id: str
    attempt: int
    how: str
    value: str = ""


class LaneClaimed(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A worker was given a lane; living workers had `at_work` lanes of its agent, if limited."""

    worker: str
    session_id: str
    lane: str
    fence: int
    at_work: int


class LaneGivenOut(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A worker of a `deployment` was given a lane, in an open turn or not.

    `pinned_to` is the deployment that it was pinned to, which `is_tended` by workers that claim.
    """

    deployment: str
    session_id: str
    lane: str
    in_turn: bool
    pinned_to: str
    stays: bool
    is_tended: bool
    is_current: bool


class LanePinned(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A commit had a lane pinned, and this is what it is pinned `to` now."""

    session_id: str
    lane: str
    to: str


class DeploymentPromoted(HistoryNote, frozen=True, kw_only=True, tag=True):
    """An operator is about to make a deployment the current one."""

    name: str


class DeploymentRetired(HistoryNote, frozen=True, kw_only=True, tag=True):
    """An operator has moved all that was pinned to a deployment, of which so much is `left`."""

    name: str
    to: str
    left: int


class ThreadTold(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A thread of a channel, by its token, was told an event; `taken` if the teller heard so."""

    token: str
    session_id: str
    offset: int
    event: str
    taken: bool


class TellerKilled(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A process that tells threads what happens was killed."""

    teller: str


class ThreadPosted(HistoryNote, frozen=True, kw_only=True, tag=True):
    """Something said in a thread was accepted by a session; `asked_at` is the last note before.

    `post` is its id: what is posted again has the receipt of the first time.
    """

    token: str
    tenant: str
    post: str
    session_id: str
    offset: int
    asked_at: int


class CallPermitted(HistoryNote, frozen=True, kw_only=True, tag=True):
    """The store let a call begin under all its limits."""

    session_id: str
    call_id: str
    bounds: tuple[Bound, ...]
    clock: int
    """The store's own time."""


class CallQueued(HistoryNote, frozen=True, kw_only=True, tag=True):
    """The store had a call wait for a limit; it holds no permit of limits that it did not name.

    `held` are those before it in a queue's lines, under which it has its place.
    """

    session_id: str
    call_id: str
    bounds: tuple[Bound, ...]
    held: tuple[str, ...] = ()


class QueueChanged(HistoryNote, frozen=True, kw_only=True, tag=True):
    """An operator changed the settings of a queue: these are written."""

    queue: str
    settings: QueueSettings


class ProviderSpoke(HistoryNote, frozen=True, kw_only=True, tag=True):
    """The provider of a model answered an agent, or began to."""

    agent: str
    model: str


class PermitKept(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A model call that waits for its provider holds a permit of a limit."""

    session_id: str
    call_id: str
    name: str


class CommitWritten(HistoryNote, frozen=True, kw_only=True, tag=True):
    """The store said that a commit was written, now or when it was first asked."""

    worker: str
    session_id: str
    lane: str
    fence: int
    commit: int
    first_offset: int
    records: tuple[str, ...]
    size: int
    parked: bool = False
    released: bool = False
    frees: tuple[str, ...] = ()
    clock: int = 0
    """The store's own time."""


class ArrivalAdmitted(HistoryNote, frozen=True, kw_only=True, tag=True):
    """The store said that something had arrived."""

    session_id: str
    lane: str
    delivery_id: str
    kind: str
    offset: int
    duplicate: bool
    size: int


class ReceiptReceived(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A user was given a receipt."""

    session_id: str
    lane: str
    delivery_id: str
    kind: str
    offset: int


class UserAsked(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A user sent something to a session, whether or not it arrives."""

    what: str
    session_id: str
    lane: str = ""


class CallbackMade(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A tool's callback was called from outside, whether or not that arrives."""

    request_id: str
    body: str


class UserSignedIn(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A user granted or denied a sign-in. `how`: granted or denied."""

    request_id: str
    owner: str
    how: str


class TokenUsed(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A tool used a token; `owner` is the user it came from, if it was still valid."""

    session_id: str
    owner: str


class EventRead(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A reader was given an event."""

    session_id: str
    offset: int
    event: str


class FaultInjected(HistoryNote, frozen=True, kw_only=True, tag=True):
    """Something went wrong on purpose."""

    what: str
    whom: str = ""


class WorkerStarted(HistoryNote, frozen=True, kw_only=True, tag=True):
    """A worker looks around before it claims lanes; once more when it `is_ready` to claim them."""

    worker: str
    is_ready: bool = False


class UnexpectedError(HistoryNote, frozen=True, kw_only=True, tag=True):
    """An error that no fault explains."""

    what: str


class History:
    """The notes of one simulation, in order."""

    def __init__(self, now: Callable[[], float], who: Callable[[], str]) -> None:
        self.notes: list[HistoryNote] = []
        self._kinds: defaultdict[type, list[Any]] = defaultdict(list)
        self._now = now
        self._who = who

    def note(self, kind: type[HistoryNote], /, **facts: object) -> None:
        number, at = len(self.notes) + 1, round(self._now(), 6)
        noted = kind(number=number, at=at, who=self._who(), **facts)
        self.notes.append(noted)
        self._kinds[kind].append(noted)

    def of(self, kind: type[N]) -> list[N]:
        """Return all notes of a kind."""
        return self._kinds[kind]

    def faults(self) -> Counter[str]:
        return Counter(fault.what for fault in self.of(FaultInjected))
