"""The page about the command line: its commands, run in order, print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "cli.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\b(?:ses|dlv|req|run)_\w+")
TIME = re.compile(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d+)?")


def blocks(language: str) -> Iterator[str]:
    return (text for kind, text in BLOCK.findall(GUIDE.read_text("utf-8")) if kind == language)


def steps() -> Iterator[tuple[str, str]]:
    """Give the page's commands, each with what is printed below it."""
    for block in blocks("console"):
        for step in block.removeprefix("$ ").split("\n$ "):
            command, _, printed = step.partition("\n")
            yield command, printed.rstrip("\n")


def masked(text: str) -> str:
    return TIME.sub("(time)", NAME.sub("(name)", text))


def run(command: str, directory: Path) -> str:
    path = f"PATH={Path(sys.executable).parent}:$PATH"
    ended = subprocess.run(
        ["/bin/bash", "-c", f"{path}; {command}"],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=60,
        check=False,
    )
    return (ended.stdout or ended.stderr).rstrip("\n")


def test_the_commands_of_the_guide_print_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("\n".join(blocks("python")), "utf-8")
    names: dict[str, str] = {}  # those of the page, and what they are called here
    for command, expected in steps():
        here = NAME.sub(lambda found: names.get(found.group(), found.group()), command)

        printed = run(here, tmp_path)

        assert masked(printed) == masked(expected), command
        names.update(zip(NAME.findall(expected), NAME.findall(printed), strict=True))
    assert names
