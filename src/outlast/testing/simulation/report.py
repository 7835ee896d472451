"""The report of a simulation."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from outlast.testing.simulation.history import CommitWritten, FaultInjected, History, HistoryNote
from outlast.testing.simulation.promise import Violation

LAST = 60
"""How many lines of a trace are shown where the whole would be too much."""


class SimulationReport(Struct, frozen=True):
    """One simulation. `digest` stands for all that was stored and all that happened."""

    seed: int
    digest: str
    violations: tuple[Violation, ...]
    sessions: int
    lasted: float
    history: History
    workflows: bool = False

    @property
    def commits(self) -> int:
        return len(self.history.of(CommitWritten))

    @property
    def faults(self) -> Counter[str]:
        return self.history.faults()

    def check(self) -> None:
        """Raise AssertionError if any promise was broken."""
        if self.violations:
            raise AssertionError(str(self))

    def trace(self) -> Iterator[str]:
        """Give everything that happened, a line each."""
        return (line_of(note) for note in self.history.notes)

    def summary(self) -> str:
        """Say what there was, and what was broken."""
        things = f"{self.sessions} sessions, {self.commits} commits"
        faults = f"{sum(self.faults.values())} faults"
        of = " of workflows" if self.workflows else ""
        lines = [f"seed {self.seed}{of}: {things}, {faults} in {self.lasted:.0f} s of its own time"]
        lines += [f"  broken: {violation}" for violation in self.violations]
        return "\n".join(lines)

    def __str__(self) -> str:
        if not self.violations:
            return self.summary()
        of = " --workflows" if self.workflows else ""
        replay = f"replay: python -m outlast.testing.simulation --seed {self.seed}{of}"
        return "\n".join([self.summary(), *self.about_violations(), replay])

    def about_violations(self) -> list[str]:
        """Return what happened to the first session that is complained of, and to workers."""
        words = self.violations[0].what.replace("@", " ").replace(":", " ").replace("'", " ")
        name = next((word for word in words.split() if word.startswith(("ses_", "run_"))), "")
        lines = [
            line_of(note)
            for note in self.history.notes
            if getattr(note, "session_id", None) == name or is_blow(note)
        ]
        return lines[-LAST:]


def is_blow(note: HistoryNote) -> bool:
    return isinstance(note, FaultInjected) and not note.what.startswith(("slow", "wake-up"))


def line_of(note: HistoryNote) -> str:
    facts = msgspec.structs.asdict(note)
    at, who = facts.pop("at"), facts.pop("who")
    facts.pop("number")
    told = " ".join(f"{name}={value}" for name, value in facts.items() if value not in ("", ()))
    return f"{at:10.3f} {who or '-':7} {type(note).__name__:8} {told}"
