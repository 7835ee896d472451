"""A worker's counters since it began, for metrics and the list of workers.

Owns the counters; they only grow, and nothing is decided by them. The store keeps each worker's
last counters with its lease (`lease_keeper.py`).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from outlast.core import record as r
from outlast.core.usage import UsageChange
from outlast.store import Commit, WorkerInfo

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""How long steps took, in seconds."""

UNGRACEFUL = ("lock_file", "port_refused", "lease_expired", "released")
"""On which evidence lanes are taken over that their owner did not hand back."""

MOST_CODES = 50
"""Codes that are told apart: some of them are chosen by users' code."""
OTHER = "other"

STEP_ENDS = frozenset({r.StepCompleted, r.StepFailed})
COUNTED = STEP_ENDS | {r.StepStarted, r.LaneTakenOver, r.TurnFailed, r.ProviderUnavailable}


def counters_of(info: WorkerInfo) -> dict[str, Any]:
    """Return what a worker has counted, as it told the store last."""
    found: dict[str, Any] = msgspec.json.decode(info.counters) if info.counters else {}
    return found


class BoundedCodes:
    """The first codes are told apart; those that come after so many are one."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def told(self, code: str) -> str:
        if code not in self._known and len(self._known) >= MOST_CODES:
            return OTHER
        self._known.add(code)
        return code


class FailureCounter:
    """Counts failures by code, agent and model."""

    def __init__(self) -> None:
        self._codes = BoundedCodes()
        self._counts = Counter[tuple[str, str, str]]()

    def add(self, error: r.Failure, agent: str, model: str) -> None:
        self._counts[self._codes.told(error.code), agent, model] += 1

    def plain(self) -> list[dict[str, Any]]:
        """Return the counts, each with what it is about."""
        return [
            {"code": code, "agent": agent, "model": model, "count": count}
            for (code, agent, model), count in list(self._counts.items())
        ]


class UsageCounter:
    """Adds up the usage of model calls by agent and model."""

    def __init__(self) -> None:
        self._models = BoundedCodes()
        self._sums: dict[tuple[str, str], r.UsageSum] = {}

    def add(self, change: UsageChange, agent: str) -> None:
        key = agent, self._models.told(change.model)
        self._sums[key] = self._sums.get(key, r.NO_USAGE) + change.used

    def plain(self) -> list[dict[str, Any]]:
        """Return the sums, each with what it is of."""
        return [
            {"agent": agent, "model": model, **asdict(used)}
            for (agent, model), used in list(self._sums.items())
        ]


class WorkerCounters:
    """Counters that only grow. `of_others` say what the store and others have counted."""

    def __init__(self, *of_others: Callable[[], Mapping[str, int]]) -> None:
        self.claims = 0
        self._of_others = of_others
        self._commits = 0
        self._refusals = 0
        self._takeovers = Counter[str](dict.fromkeys(UNGRACEFUL, 0))
        self._failed_turns = FailureCounter()
        self._outages = FailureCounter()
        self._usage = UsageCounter()
        self._input_tokens = 0
        self._output_tokens = 0
        self._steps = [0] * (len(BUCKETS) + 1)
        self._step_seconds = 0.0

    def committed(
        self, commit: Commit, at: int, step_began: int, agent: str = "", model: str = ""
    ) -> int:
        """Count a commit that was written; return when the step began that is open after it."""
        self._commits += 1
        for change in commit.used:
            if not change.remote:
                self._usage.add(change, agent)
                self._input_tokens += change.used.input_tokens
                self._output_tokens += change.used.output_tokens
        for record in commit.records:
            if (kind := type(record)) not in COUNTED:  # as most are
                continue
            if kind is r.StepStarted:
                step_began = at
            elif kind in STEP_ENDS:
                self._step_took(max(0, at - step_began) / 1000 if step_began else 0.0)
                step_began = 0
            elif isinstance(record, r.LaneTakenOver) and not record.graceful:
                self._takeovers[record.evidence] += 1
            elif isinstance(record, r.TurnFailed):
                self._failed_turns.add(record.error, agent, model)
            elif isinstance(record, r.ProviderUnavailable):
                self._outages.add(record.error, agent, model)
        return step_began

    def refused(self) -> None:
        self._refusals += 1

    def _step_took(self, seconds: float) -> None:
        self._steps[bisect_left(BUCKETS, seconds)] += 1
        self._step_seconds += seconds

    def text(self) -> str:
        """Return all that was counted, as JSON text."""
        buckets, so_far = {}, 0
        for limit, count in zip((*BUCKETS, "+Inf"), self._steps, strict=True):
            so_far += count
            buckets[str(limit)] = so_far
        counts = {
            "claims": self.claims,
            "takeovers": dict(self._takeovers),
            "commits": self._commits,
            "refusals": self._refusals,
            "failed_turns": self._failed_turns.plain(),
            "provider_outages": self._outages.plain(),
            "usage": self._usage.plain(),
            "input_tokens": self._input_tokens,
            "output_tokens": self._output_tokens,
            **{name: count for counts in self._of_others for name, count in counts().items()},
            "steps": {
                "count": so_far,
                "sum": round(self._step_seconds, 3),
                # Cumulative, as Prometheus wants histograms.
                "buckets": buckets,
            },
        }
        return msgspec.json.encode(counts).decode()
