"""Every page does what it says: its Python runs, its output is what is printed, its links lead."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.testing.provider_server import WireServer, call, reply, words

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
LEFT_OUT = "…"

# What the provider says on the pages that ask a real one: it is answered for on loopback.
WIRE_REPLIES = {
    **{
        page: [reply(call("refund", '{"order": "17", "cents": 1900}')), reply(words("Done."))]
        for page in ("README.md", "docs/index.md")
    },
    "docs/tutorial/openai.md": [
        reply(call("find_order", '{"number": 17}')),
        reply(call("refund", '{"number": 17, "cents": 1900}', id="call_2")),
        reply(words("I refunded 19.00 ", "for order 17.")),
        reply(words("You are welcome.")),
    ],
    "docs/how-to/from-pydantic-ai.md": [
        reply(call("refund", '{"number": 17}')),
        reply(words("Done.")),
        reply(call("give_back", '{"number": 17}')),
        reply(words("Done.")),
    ],
}


def blocks(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """Give a page's fenced blocks: their language, first line number and lines."""
    language, start, inside = "", 0, False
    lines: list[str] = []
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


def texts() -> dict[str, str]:
    """Return the text of every page with Python on it, by the page's path."""
    pages = {name: page.read_text("utf-8") for name, page in zip(NAMES, PAGES, strict=True)}
    return {name: text for name, text in pages.items() if program(text).strip()}


async def run(name: str, text: str, directory: Path) -> str:
    """Run a page's Python as a program of its own, and return what it printed."""
    script = directory / f"{Path(name).stem}_page.py"
    script.write_text(program(text), "utf-8")
    async with WireServer(*WIRE_REPLIES.get(name, ())) as provider:
        done = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-X", "utf8", str(script)),
            cwd=directory,
            env=os.environ | {"OPENAI_API_KEY": "sk-page", "OPENAI_BASE_URL": f"{provider.url}/v1"},
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await asyncio.wait_for(done.communicate(), 100)
    assert done.returncode == 0, err.decode()
    assert "the script is over" not in err.decode()
    return out.decode()


@pytest.mark.parametrize(("name", "text"), texts().items(), ids=texts())
async def test_the_python_of_a_page_runs_and_prints_what_the_page_says(
    name: str, text: str, tmp_path: Path
) -> None:
    printed = iter(line.rstrip() for line in (await run(name, text, tmp_path)).splitlines())
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


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|sql))`", page.read_text("utf-8"))
    homes = (ROOT, ROOT / "src" / "outlast")
    assert [path for path in named if not any((home / path).exists() for home in homes)] == []
