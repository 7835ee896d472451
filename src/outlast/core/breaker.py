"""The circuit breaker of a provider: how it opens, is probed and closes again.

Owns the rules, as pure functions of a `Breaker`; no `Breaker` is a provider that answers. Calls
that wait for it stand in line, and the first `group` of them may ask at once: one at first, the
probe.
Each group that is answered makes way for one of twice its size. Refuses to know where breakers are
kept (`engine/provider_breaker.py`) and how calls stand in line (the store's topic `limit`).
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from outlast.core.limit import Bound
from outlast.core.policy import MINUTE, SECOND
from outlast.core.record import Failure
from outlast.core.result import ModelFailed

OPENS_AT = 3
"""How many failures in a row open a breaker, of as many calls or of one that is given up for now:
one call may fail by its own fault, and may be tried a few times first."""
FIRST_PAUSE, LONGEST_PAUSE = 4 * SECOND, MINUTE
OVERDUE = 10 * SECOND
"""For so long after a pause the first in line may take to ask; perhaps no worker takes its lane."""

LINE = "provider:"
"""The beginning of the names of the limits in whose lines calls wait for a provider."""

BreakerState = Literal["failing", "open", "recovering"]


class Provider(Struct, frozen=True, gc=False):
    """A model as one agent asks it, at the address of the provider, where that is known.

    Another deployment may have another key, so it finds out for itself.
    """

    agent: str
    model: str
    address: str = ""
    deployment: str = ""

    @property
    def name(self) -> str:
        """The name of its breaker, and of the limit under which calls wait for it.

        Unambiguous: no name of an agent or a deployment and no address has a blank in it.
        """
        return f"{LINE}{self.agent} {self.address} {self.deployment} {self.model}"


class Breaker(Struct, frozen=True, gc=False, kw_only=True):
    """A provider that has not answered `since` then, in `failures` in a row.

    Calls that wait for it stand in line; while it `is_open`, all calls do. `probes` of them have
    failed since then; the next may ask at `next_at`, and at once as many as are in the `group`, of
    which `answered` have been answered. `blocked`: time alone will not mend it. `is_proven`: an
    answer came to its end, and not only to its beginning. The last failure was at `failed_at`:
    answers that had ended before it tell nothing of what the provider does now.
    """

    provider: Provider
    since: int
    error: Failure
    failures: int
    is_open: bool
    next_at: int
    probes: int = 0
    blocked: bool = False
    group: int = 1
    answered: int = 0
    is_proven: bool = False
    failed_at: int = 0

    @property
    def state(self) -> BreakerState:
        if self.group > 1:
            return "recovering"
        return "open" if self.is_open else "failing"

    def is_paused(self, now: int) -> bool:
        """Say whether the first in line has to wait before it asks."""
        return self.group == 1 and self.next_at > now

    def is_overdue(self, now: int) -> bool:
        """Say whether nobody has asked although the pause is over."""
        return self.state == "open" and now >= self.next_at + OVERDUE

    @property
    def bound(self) -> Bound:
        """The limit in whose line the calls stand."""
        return Bound(self.provider.name, concurrency=self.group)


def is_line(name: str) -> bool:
    """Say whether a limit is the line of a provider."""
    return name.startswith(LINE)


class FailuresInARow(Struct, frozen=True, gc=False):
    """How often a provider has failed since it last answered, and in which calls."""

    count: int = 0
    calls: frozenset[tuple[str, str]] = frozenset()

    def with_call(self, session_id: str, call_id: str) -> "FailuresInARow":
        """Return them with one more; only as many calls are told apart as matter."""
        calls = self.calls if len(self.calls) >= OPENS_AT else self.calls | {(session_id, call_id)}
        return FailuresInARow(self.count + 1, calls)

    def open_breaker(self, *, parks: bool) -> bool:
        """Say whether they are enough, the last of a call that `parks` or is tried again soon."""
        return len(self.calls) >= OPENS_AT or (parks and self.count >= OPENS_AT)


def after_failure(
    breaker: Breaker | None,
    provider: Provider,
    failed: ModelFailed,
    failures: int,
    now: int,
    *,
    opens: bool,
) -> Breaker:
    """Return the breaker after one more failure, of so many in a row that this worker has seen."""
    before = breaker or Breaker(
        provider=provider, since=now, error=failed.error, failures=0, is_open=False, next_at=now
    )
    counted = replace(
        before,
        error=failed.error,
        # Each worker counts its own: the most that any has seen is shown.
        failures=max(failures, before.failures + 1),
        is_open=before.is_open or opens,
        blocked=failed.kind == "blocked",
        failed_at=now,
    )
    if before.is_paused(now):
        return counted  # the call began before the pause: it was no probe
    # While others are answered again, a failure may be its call's own: it costs a short pause.
    # A provider that begins to answer, and cuts every stream, is left alone longer each time.
    is_back = before.state == "recovering" and before.is_proven
    probes = before.probes + 1 if breaker and not is_back else 0
    next_at = now + pause_after(failed, probes)
    return replace(counted, next_at=next_at, probes=probes, group=1, answered=0, is_proven=False)


def pause_after(failed: ModelFailed, probes: int) -> int:
    """Return for how long a provider is left alone: as it asks, or longer each time up to a minute.

    Time alone does not mend a key or an unknown model, so those are tried once a minute.
    """
    if failed.retry_after:
        return failed.retry_after
    if failed.kind == "blocked":
        return LONGEST_PAUSE
    return min(int(FIRST_PAUSE * 2.0 ** min(probes, 10)), LONGEST_PAUSE)


def with_probe(breaker: Breaker, now: int) -> Breaker:
    """Return a breaker that one call asks now: others leave it alone meanwhile.

    That call may be stopped, or lost with its worker; so the next one may ask after a minute.
    """
    return replace(breaker, next_at=now + LONGEST_PAUSE)


def after_answers(breaker: Breaker, answers: int = 1, *, proven: bool = True) -> Breaker:
    """Return a breaker after some answers: a group that was answered makes way for two of it.

    Answers that have only begun are not `proven`.
    """
    group, answered = breaker.group, breaker.answered + answers
    # Several answers may be told at once; each full group doubles the next.
    while answered >= group:
        answered -= group
        group *= 2
    proven = proven or breaker.is_proven
    return replace(breaker, group=group, answered=answered, is_proven=proven)
