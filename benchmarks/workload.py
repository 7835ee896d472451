"""What a workload is, and what it found: medians over repeats, held against goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """What a workload is given: where to put its files, how much to do, whom to tell."""

    directory: Path
    quick: bool
    say: Say

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def database(self, name: str) -> Path:
        """Return where a new database goes; one that was there is removed."""
        path = self.directory / name
        for old in files_of(path):
            old.unlink()
        return path


def files_of(path: Path) -> list[Path]:
    """Return a database and what lies beside it."""
    return [file for file in path.parent.glob(f"{path.name}*") if file.is_file()]


@dataclass(frozen=True)
class Measure:
    """One number that a workload finds; `goal` is a bound that its median must keep."""

    name: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else ""

    def is_met(self, value: float) -> bool | None:
        """Say whether a value keeps the goal; None where there is none."""
        if self.at_least is not None:
            return value >= self.at_least
        return value <= self.at_most if self.at_most is not None else None


@dataclass(frozen=True)
class Workload:
    """`once` makes one repeat and returns its numbers by the names of the measures."""

    name: str
    about: str
    measures: tuple[Measure, ...]
    once: Callable[[Bench], Mapping[str, float]]


@dataclass
class Found:
    """All repeats of a workload."""

    workload: Workload
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.values.setdefault(name, []).append(value)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each measure that was taken."""
        return [
            {
                "name": measure.name,
                "unit": measure.unit,
                "median": median(values),
                "values": values,
                "goal": measure.goal,
                "met": measure.is_met(median(values)),
            }
            for measure in self.workload.measures
            if (values := self.values.get(measure.name))
        ]

    @property
    def is_met(self) -> bool | None:
        """Whether all goals were met; None for a workload without any."""
        verdicts = [row["met"] for row in self.rows if row["met"] is not None]
        return all(verdicts) if verdicts else None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.workload.name,
            "about": self.workload.about,
            "met": self.is_met,
            "measures": self.rows,
        }


def run(workload: Workload, bench: Bench, repeats: int) -> Found:
    """Repeat a workload and collect what it found."""
    found = Found(workload)
    for number in range(1, repeats + 1):
        bench.say(f"{workload.name}: repeat {number} of {repeats}")
        found.add(workload.once(bench))
    return found
