"""Plans of fifty steps whose worker is killed twenty times, by transcript and by milestone.

The plan itself, and what must be true of it, are those of tests/crash (`crash_long.py`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from chaos.place import Place
from outlast.core.policy import Resume

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))

from crash_long import LongRun, run_long
from crash_process import Zygote

STEPS, KILLED = 50, 20
WAYS: tuple[Resume, ...] = ("transcript", "milestone")


@dataclass(frozen=True)
class PlanReport:
    """What came of a plan, beside one like it that was left in peace."""

    store: str
    ran: LongRun
    undisturbed: LongRun

    @property
    def wrong(self) -> list[str]:
        return [*self.ran.complaints(KILLED), *self.undisturbed.complaints(0)]

    def __str__(self) -> str:
        spent, least = self.ran.tokens, self.undisturbed.tokens
        lines = [
            f"{self.store}: a plan of {self.ran.steps} steps by {self.ran.resume}, {self.ran.kills}"
            f" kills: {len(self.wrong) or 'nothing'} found wrong; {spent:,} tokens were sent,"
            f" {least:,} without a kill ({spent / least:.0%})",
            *(f"  {text}" for text in self.wrong[:20]),
        ]
        return "\n".join(lines)


async def run_plans(place: Place, directory: Path, seed: int) -> list[PlanReport]:
    """Carry out a plan by each way to go on, with and without kills."""
    zygote = await Zygote.start("crash_long")
    try:
        found = []
        for resume in WAYS:
            ran, undisturbed = [
                await run_long(zygote, directory, place.url, resume, STEPS, kills, seed)
                for kills in (KILLED, 0)
            ]
            found.append(PlanReport(place.name, ran, undisturbed))
        return found
    finally:
        await zygote.stop()
