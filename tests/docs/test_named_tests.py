"""The pages that say what is defended and bounded name the tests that hold it: these exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "docs/reference/limits.md",
    "docs/explanation/security.md",
    "docs/explanation/not-promised.md",
)
CODE = re.compile(r"`((?:tests/[\w/]+\.py)|(?:test_\w+))`")


def known_tests() -> set[str]:
    places = (ROOT / "tests", ROOT / "src/outlast/testing")
    texts = (file.read_text("utf-8") for place in places for file in place.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    named = CODE.findall((ROOT / page).read_text("utf-8"))
    known = known_tests()

    missing = [n for n in named if n not in known and not (ROOT / n).is_file()]

    assert named
    assert missing == []


def test_every_bound_has_a_test() -> None:
    text = (ROOT / "docs/reference/limits.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.startswith(("| what | bound", "| --- "))]
    assert len(rows) > 40
    assert [row for row in rows if not CODE.search(row.rsplit("|", 2)[1])] == []
