"""Every page does what it says: its Python runs, its output is what is printed, its links lead."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
LEFT_OUT = "…"


def blocks(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """Give a page's fenced blocks: their language, first line number and lines."""
    language, start, lines = "", 0, []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if not inside and (fence := FENCE.match(line)):
            inside, language, start, lines = True, fence[1], number + 1, []
        elif inside and line == "```":
            inside = False
            yield language, start, lines
        elif inside:
            lines.append(line)


def program(text: str) -> str:
    """Return the page's Python as one program, each line where it stands in the page."""
    lines = [""] * len(text.splitlines())
    for language, start, block in blocks(text):
        if language == "python":
            lines[start - 1 : start - 1 + len(block)] = block
    return "\n".join(lines).rstrip() + "\n"


def anchors(text: str) -> set[str]:
    """Return the names under which a page's headings can be linked to."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def run(page: Path, directory: Path) -> str:
    script = directory / f"{page.stem}_page.py"
    script.write_text(program(page.read_text("utf-8")), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", str(script)],
        cwd=directory,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WITH_PYTHON = [page for page in PAGES if program(page.read_text("utf-8")).strip()]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=[page.stem for page in WITH_PYTHON])
def test_the_python_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path
) -> None:
    text = page.read_text("utf-8")
    printed = iter(line.rstrip() for line in run(page, tmp_path).splitlines())
    for language, start, block in blocks(text):
        if language == "text":
            for number, line in enumerate(block, start):
                assert line == LEFT_OUT or line.rstrip() in printed, f"line {number}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(page.read_text("utf-8")):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            lost.append(link)
    assert lost == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    pages = set((ROOT / "docs").rglob("*.md")) - {index}
    assert pages - linked == set()
