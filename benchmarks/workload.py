"""What a workload is, and what it found: medians over repeats, held against goals."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.place import Database, Place

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """What a workload is given: where its databases are, how much to do, whom to tell."""

    place: Place
    quick: bool
    say: Say
    kept: dict[str, Database] = field(default_factory=dict)

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def database(self, name: str) -> Database:
        """Return a new database; one that had this name is removed."""
        return self.place.database(name)

    def filled(self, name: str, fill: Callable[[Database], None]) -> Database:
        """Return a database that was filled once and is there for all repeats."""
        if name not in self.kept:
            database = self.database(name)
            fill(database)
            self.kept[name] = database
        return self.kept[name]


@dataclass(frozen=True)
class Measure:
    """One number that a workload finds; `goal` is a bound that its median must keep.

    Where the goals differ there is one measure for each `store`.
    """

    name: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    store: str = ""

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
    """`once` makes one repeat and returns its numbers by the names of the measures.

    `stores` are those that it makes sense on.
    """

    name: str
    about: str
    measures: tuple[Measure, ...]
    once: Callable[[Bench], Mapping[str, float]]
    stores: tuple[str, ...] = ("sqlite", "postgres")


@dataclass
class Found:
    """All repeats of a workload at a place."""

    workload: Workload
    place: Place
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.values.setdefault(name, []).append(value)

    @property
    def name(self) -> str:
        title = self.place.title
        return f"{self.workload.name} ({title})" if title else self.workload.name

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
            if measure.store in ("", self.place.store)
            if (values := self.values.get(measure.name))
        ]

    @property
    def is_met(self) -> bool | None:
        """Whether all goals were met; None for a workload without any."""
        verdicts = [row["met"] for row in self.rows if row["met"] is not None]
        return all(verdicts) if verdicts else None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "about": self.workload.about,
            "met": self.is_met,
            "measures": self.rows,
        }


def run(workload: Workload, bench: Bench, repeats: int) -> Found:
    """Repeat a workload and collect what it found."""
    found = Found(workload, bench.place)
    for number in range(1, repeats + 1):
        bench.say(f"{found.name}: repeat {number} of {repeats}")
        gc.collect()  # what others have left is not this one's to clear away
        found.add(workload.once(bench))
    return found
