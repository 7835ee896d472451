"""The report of `crash_everywhere`: one run per crash, compared with the run without one."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from outlast.testing.crash import CrashPoint
from outlast.testing.ledger import Effect


class CrashedRun(Struct, frozen=True, kw_only=True):
    """One run of a scenario. `unsettled` counts deliveries accepted and never dealt with."""

    point: CrashPoint | None
    effects: tuple[Effect, ...]
    output: Any = None
    error: str = ""
    unsettled: int = 0


class RepeatedEffect(Struct, frozen=True):
    """An effect that a crash made happen more often than it should."""

    what: str
    tool: str
    times: int
    expected: int
    point: CrashPoint

    def __str__(self) -> str:
        by = f" by the tool {self.tool}" if self.tool else ""
        return (
            f"{self.what}{by} happened {self.times} times instead of {self.expected}"
            f" after a crash {self.point}"
        )


class CrashReport(Struct, frozen=True):
    """All runs. `str(report)` is for people."""

    undisturbed: CrashedRun
    runs: tuple[CrashedRun, ...]

    @property
    def repeated(self) -> tuple[RepeatedEffect, ...]:
        """The effects that happened more often after a crash than without one."""
        return tuple(found for run in self.runs for found in compare(self.undisturbed, run))

    @property
    def unfinished(self) -> tuple[CrashedRun, ...]:
        """The runs in which the scenario itself failed, or did not end in time."""
        return tuple(run for run in self.runs if run.error)

    def assert_no_effect_repeated(self) -> None:
        """Raise AssertionError if a crash made any effect happen more often than without."""
        self._complain("effects repeated", [str(found) for found in self.repeated])

    def assert_nothing_lost(self) -> None:
        """Raise AssertionError if a crash left a delivery unsettled."""
        lost = [
            f"{run.unsettled - self.undisturbed.unsettled} by a crash {run.point}"
            for run in self.runs
            if run.unsettled > self.undisturbed.unsettled
        ]
        self._complain("deliveries lost", lost)

    def assert_same_output(self) -> None:
        """Raise AssertionError if the scenario returned something else after a crash."""
        expected = self.undisturbed.output
        other = [
            f"{run.output!r} instead of {expected!r} after a crash {run.point}"
            for run in self.runs
            if not run.error and run.output != expected
        ]
        self._complain("other outputs", other)

    def _complain(self, what: str, findings: list[str]) -> None:
        self._check_that_something_was_tried()
        failed = [f"after a crash {run.point}: {run.error}" for run in self.unfinished]
        lines = [*listed("the scenario failed", failed), *listed(what, findings)]
        if lines:
            raise AssertionError("\n".join([f"in {len(self.runs)} crashes:", *lines]))

    def _check_that_something_was_tried(self) -> None:
        """Nothing that was not tried is proven: say so rather than nothing."""
        if not self.runs:
            raise AssertionError(
                "no worker has committed anything, so none was crashed: does the scenario start"
                " a session and wait for it, and has each run a fresh store?"
            )

    def __str__(self) -> str:
        lines = [f"{len(self.runs)} crashes, effects repeated: {len(self.repeated)}"]
        lines += [f"  {found}" for found in self.repeated]
        lines += [f"  failed after a crash {run.point}: {run.error}" for run in self.unfinished]
        return "\n".join(lines)


def compare(undisturbed: CrashedRun, run: CrashedRun) -> Iterator[RepeatedEffect]:
    assert run.point is not None
    expected = Counter(effect.what for effect in undisturbed.effects)
    tools = {effect.what: effect.tool for effect in run.effects}
    for what, times in Counter(effect.what for effect in run.effects).items():
        if times > expected[what]:
            yield RepeatedEffect(what, tools[what], times, expected[what], run.point)


def listed(title: str, lines: list[str]) -> list[str]:
    return [f"{title}: {len(lines)}", *(f"  {line}" for line in lines)] if lines else []
