"""Runs the tests on mutants, chosen by a seed, until the time is up; compares the survivors.

    make mutants ARGS="--minutes 10 --seed 7 --only core/decide"

A mutant that no test notices is a guard that may be removed unnoticed. Those that are known are in
survivors.txt, each with its reason; one that is not there fails the command, and one that was
killed may be struck off. The code is changed in a copy.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from mutants.mutation import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
screen = Console(markup=False, highlight=False, soft_wrap=True)
SURVIVORS = Path(__file__).parent / "survivors.txt"
LONGEST_RUN = 300

CONTRACT = ("tests/contract/test_memory_store.py", "tests/contract/test_sqlite_store.py")
ENGINE = ("tests/engine", "tests/agents/test_unclear.py", "tests/agents/test_failures.py")
BREAKER = (
    "tests/unit/test_breaker.py",
    "tests/engine/test_provider_breaker.py",
    "tests/engine/test_fallback.py",
)
TESTS: Mapping[str, tuple[str, ...]] = {
    "core/decide.py": ("tests/unit", *ENGINE),
    "core/fold.py": ("tests/unit", *ENGINE),
    "core/fold_wait.py": ("tests/unit", *ENGINE, "tests/agents/test_waiting.py"),
    "core/outcome.py": ("tests/unit", *ENGINE),
    "core/index.py": ("tests/unit", *CONTRACT, *ENGINE),
    "core/codec.py": ("tests/unit", *CONTRACT),
    "core/limit.py": ("tests/unit", *CONTRACT),
    "core/json_text.py": (
        "tests/unit/test_json_text.py",
        "tests/server/test_body.py",
        "tests/agents/test_arguments.py",
    ),
    "engine/owned_lane.py": ENGINE,
    "engine/lane_folds.py": ENGINE,
    "engine/lane_call.py": ENGINE,
    "engine/lane_runner.py": ENGINE,
    "engine/result_recorder.py": ENGINE,
    "engine/start_gate.py": (*ENGINE, "tests/agents/test_at_once.py"),
    "engine/lease_keeper.py": ENGINE,
    "stores/sqlite/commit.py": CONTRACT,
    "stores/sqlite/admission.py": CONTRACT,
    "stores/sqlite/work.py": CONTRACT,
    "stores/sqlite/worker_lease.py": CONTRACT,
    "core/breaker.py": BREAKER,
    "engine/provider_breaker.py": BREAKER,
    "store/clock.py": ("tests/stores/test_clock.py", "tests/engine/test_late_claims.py"),
    "core/visible.py": ("tests/unit/test_visible.py",),
    "agents/runtime/thread.py": ("tests/agents/test_thread.py",),
    "integration/remote/limit.py": ("tests/e2e/test_remote_hostile.py",),
    "net/address.py": ("tests/net/test_client.py",),
    "net/retry_after.py": ("tests/net/test_retry_after.py",),
    "server/address.py": ("tests/server/test_address.py", "tests/e2e/test_http_access.py"),
    "server/response_limit.py": (
        "tests/server/test_response_limit.py",
        "tests/e2e/test_http_slow_readers.py",
    ),
}
"""The modules that are changed, and the tests that should notice."""
LEFT_OUT = ("test_architecture", "test_vocabulary", "test_public_names", "test_sync_classes")
"""Tests of the source as a text: what they notice is not that something goes wrong."""


class Copy:
    """The source in a place of its own, where one mutant at a time lives."""

    def __init__(self, place: Path) -> None:
        self._source = place / "src"
        shutil.copytree(ROOT / "src", self._source, ignore=shutil.ignore_patterns("__pycache__"))

    def survives(self, mutant: Mutant) -> bool:
        """Run the tests on a mutant; one that hangs is noticed too."""
        module = self._source / "outlast" / mutant.path
        source = module.read_bytes()
        module.write_bytes(mutant.applied_to(source))
        try:
            return self.passes(TESTS[mutant.path])
        finally:
            module.write_bytes(source)

    def passes(self, tests: tuple[str, ...]) -> bool:
        """Run tests on the copy as it is now."""
        deselected = " and ".join(f"not {name}" for name in LEFT_OUT)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        # The first in the path: it is found before the package that is installed.
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._source),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with subprocess.Popen(
            [*command, "-k", deselected, *tests],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                return process.wait(LONGEST_RUN) == 0
            except subprocess.TimeoutExpired:
                process.kill()
                return False


def known_survivors() -> dict[str, str]:
    """Return the survivors that are known, and why each may live."""
    lines = [line for line in SURVIVORS.read_text().splitlines() if line and line[0] != "#"]
    pairs = (line.partition("  # ") for line in lines)
    return {name.strip(): reason for name, _, reason in pairs}


def chosen(only: str, seed: int) -> list[Mutant]:
    """Return mutants in the order of a seed."""
    paths = [path for path in TESTS if only in path]
    found = [each for path in paths for each in mutants_of(ROOT / "src" / "outlast", path)]
    random.Random(seed).shuffle(found)
    return found


def run(mutants: list[Mutant], minutes: float) -> tuple[int, list[Mutant], list[Mutant]]:
    """Try mutants until the time is up; return how many, and those that lived or died."""
    ends_at = time.monotonic() + minutes * 60
    lived: list[Mutant] = []
    died: list[Mutant] = []
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place))
        # Where a test fails anyway, every mutant would seem to be noticed.
        tests = dict.fromkeys(test for path in {m.path for m in mutants} for test in TESTS[path])
        if not copy.passes(tuple(tests)):
            sys.exit("the tests fail without any mutant: mend them first")
        for mutant in mutants:
            if time.monotonic() > ends_at:
                break
            (lived if copy.survives(mutant) else died).append(mutant)
            screen.print("lives" if mutant in lived else "dies ", mutant.name)
    return len(lived) + len(died), lived, died


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a module's path")
    wanted = parser.parse_args()
    mutants, known = chosen(wanted.only, wanted.seed), known_survivors()
    tried, lived, died = run(mutants, wanted.minutes)
    screen.print(f"{tried} of {len(mutants)} mutants tried, {len(lived)} live (seed {wanted.seed})")
    for mutant in died:
        if mutant.name in known:
            screen.print(f"strike off, a test notices it now: {mutant.name}")
    new = [mutant.name for mutant in lived if mutant.name not in known]
    for name in new:
        screen.print(f"no test notices: {name}")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
