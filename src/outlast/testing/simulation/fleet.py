"""Many simulations, as many at once as there are cores; each is run twice and must be the same."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from outlast.testing.simulation.history import CommitWritten
from outlast.testing.simulation.promise import Violation
from outlast.testing.simulation.report import SimulationReport
from outlast.testing.simulation.run import Simulation

DETERMINISM = "the same seed gives the same"


class SeedCounts(Struct, frozen=True):
    """Counts of one seed, or of many. `failed` holds reports of broken promises."""

    seeds: int = 0
    sessions: int = 0
    commits: int = 0
    records: int = 0
    lasted: float = 0.0
    faults: dict[str, int] = {}
    failed: tuple[str, ...] = ()

    def __add__(self, other: SeedCounts) -> SeedCounts:
        return SeedCounts(
            self.seeds + other.seeds,
            self.sessions + other.sessions,
            self.commits + other.commits,
            self.records + other.records,
            self.lasted + other.lasted,
            dict(Counter(self.faults) + Counter(other.faults)),
            (*self.failed, *other.failed),
        )


def run_twice(seed: int, *, workflows: bool = False) -> SimulationReport:
    """Run a seed, and once more to see whether that gives the same, to the byte."""
    report, again = (Simulation(seed, workflows=workflows).run() for _ in range(2))
    if report.digest == again.digest:
        return report
    pairs = zip(report.trace(), again.trace(), strict=False)
    parted = next((f"{a.strip()!r} or {b.strip()!r}" for a, b in pairs if a != b), "in the log")
    return SimulationReport(
        seed,
        report.digest,
        (*report.violations, Violation(DETERMINISM, f"they part at {parted}")),
        report.sessions,
        report.lasted,
        report.history,
        workflows,
    )


def counts_of(seed: int) -> SeedCounts:
    """Count what there was under a seed, with agents and with workflows."""
    agents, runs = (counts_in(run_twice(seed, workflows=each)) for each in (False, True))
    return replace(agents + runs, seeds=1)


def counts_in(report: SimulationReport) -> SeedCounts:
    writes = report.history.of(CommitWritten)
    failed = (str(report),) if report.violations else ()
    records = sum(len(wrote.records) for wrote in writes)
    return SeedCounts(
        1, report.sessions, len(writes), records, report.lasted, dict(report.faults), failed
    )


def run_many(seeds: Sequence[int], jobs: int) -> Iterator[SeedCounts]:
    """Yield each seed's counts as it is done."""
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap_unordered(counts_of, seeds)
