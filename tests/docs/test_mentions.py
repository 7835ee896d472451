"""What the pages mention is there: commands with their options, paths, metrics and variables."""

from __future__ import annotations

import pkgutil
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from outlast.cli import make_app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
IN_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
HISTORY = {"CHANGELOG.md"}
"""It tells what was, too."""


def in_words(page: Path) -> list[str]:
    """Return what stands in backticks, outside of blocks."""
    return IN_CODE.findall(BLOCK.sub("", page.read_text("utf-8")))


def in_code(page: Path) -> Iterator[str]:
    """Give what stands in backticks, and the lines of its blocks."""
    yield from in_words(page)
    for block in BLOCK.findall(page.read_text("utf-8")):
        yield from block.replace("\\\n", " ").splitlines()


@cache
def known_commands() -> Any:
    return typer.main.get_command(make_app())


@cache
def source_text() -> str:
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", ".ci")]
    files = [
        each
        for folder in folders
        for each in folder.rglob("*.py")
        if "node_modules" not in each.parts
    ]
    return "".join(each.read_text("utf-8") for each in [*files, ROOT / "Makefile"])


def command_lines(page: Path) -> Iterator[list[str]]:
    """Give the words of each `outlast …` on a page, up to a pipe or the like."""
    for code in in_code(page):
        found = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*outlast ((?:[a-z-]+).*)", code)
        if found:
            plain = re.split(r" [|>&]|;| #|…", found[1])[0]
            try:
                yield shlex.split(plain)
            except ValueError:
                yield plain.split()


def is_name(name: str) -> bool:
    """Whether it is a module or something in one, a file, or a metric or logger of that name."""
    if name.endswith((".db", ".dump")) or f'"{name}"' in source_text():
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_and_options_of_a_page_are_there(page: Path) -> None:
    for words in command_lines(page):
        found = known_commands()
        while words and words[0] in getattr(found, "commands", {}):
            found = found.commands[words.pop(0)]
        has_name = found is not known_commands() or words[0].startswith("--")
        assert has_name, f"{page.name}: there is no command {words}"
        known = {option for each in found.params for option in each.opts + each.secondary_opts}
        asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        missing = asked - known - {"-h", "--help"}
        assert not missing, f"{page.name}: {found.name} has no {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_names_files_and_variables_of_a_page_are_there(page: Path) -> None:
    if page.name in HISTORY:
        return
    for code in in_words(page):
        for name in re.findall(r"(?<![\w./@:-])outlast(?:\.\w+)+(?![\w.*])", code):
            assert is_name(name), f"{page.name}: there is no {name}"
    for code in in_code(page):
        for variable in re.findall(r"\bOUTLAST_[A-Z_]+[A-Z]\b", code):
            assert variable in source_text(), f"{page.name}: nothing reads {variable}"
        path = re.fullmatch(r"(?:src/outlast|tests|examples|benchmarks|docs)/[\w/.-]+", code)
        if path:
            assert (ROOT / code).exists(), f"{page.name}: there is no {code}"


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    page = (ROOT / "docs/how-to/cli.md").read_text("utf-8")

    missing = [name for name in known_commands().commands if f"`{name}`" not in page]
    assert not missing
