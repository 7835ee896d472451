"""Every example runs by itself, in an empty directory and once more, and stays short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))
NAMES = [example.stem for example in EXAMPLES]
LONGEST = 60
KEYS = ("_API_KEY", "_TOKEN", "_PROXY")


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_an_example_runs_and_runs_again_on_what_it_left(example: Path, tmp_path: Path) -> None:
    for _ in range(2):
        check(run(example, tmp_path))


def run(example: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.upper().endswith(KEYS)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", str(example)],
        cwd=directory,
        env=plain,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_an_example_is_short_and_says_what_it_shows(example: Path) -> None:
    text = example.read_text("utf-8")
    assert len(text.splitlines()) < LONGEST
    assert text.startswith('"""')
