"""The site builds without a warning, loads nothing from elsewhere, and lists all that is public."""

import importlib
import inspect
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.testing import StoreContract

ROOT = Path(__file__).parents[2]
# A source of a script, a style, a font, an image or a frame; links for people are no loads.
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link[^>]*rel=["']?(?:stylesheet|preconnect|preload|icon)[^>]*href=["']?(https?://[^"'\s>]+)"""
)
DIRECTIVE = re.compile(
    r"^::: ([\w.]+)$(?:\n    options:(?:\n      (?:members: \[(.*)\]|.*))+)?", re.MULTILINE
)
"""A module or a class that the page shows, and those of its members to which it keeps."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once, strictly: a link or an anchor that leads nowhere ends the build."""
    directory = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        # The theme announces its successor at each start; that is no warning about our pages.
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return directory


def public_names() -> dict[str, Any]:
    """Return what the reference is to list: each public module's names, by their full name."""
    text = (ROOT / "docs/reference/modules.md").read_text("utf-8")
    found = {f"outlast.{name}": getattr(outlast, name) for name in outlast.__all__}
    for path, members in DIRECTIVE.findall(text):
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:  # a class of its module, not a module
            module_path, _, name = path.rpartition(".")
            kind = getattr(importlib.import_module(module_path), name)
            shown = members.split(", ") if members else []
            found |= {f"{path}.{each}": getattr(kind, each, None) for each in shown} or {path: kind}
            continue
        for name in members.split(", ") if members else exported(module):
            found[f"{path}.{name}"] = getattr(module, name)
    return found


def exported(module: Any) -> list[str]:
    if names := getattr(module, "__all__", None):
        return list(names)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def listed(site: Path) -> set[str]:
    """Return all names for which the site has an entry, from the inventory that it publishes."""
    head, _, packed = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert head
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines}


def members(kind: Any) -> list[str]:
    """Return what can be called or read on a class, as far as it is defined there."""
    if not inspect.isclass(kind) or kind is StoreContract:  # whose methods are tests
        return []
    return [
        name
        for name, value in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
    ]


def test_every_public_name_and_method_has_its_entry_in_the_reference(site: Path) -> None:
    known = listed(site)
    missing = []
    for path, value in public_names().items():
        # A name that is imported only when it is asked for stands where it is defined.
        name = getattr(value, "__name__", "")
        paths = {path, f"{value.__module__}.{name}" if name else path}
        wanted = ["", *(f".{member}" for member in members(value))]
        missing += [path + end for end in wanted if not {p + end for p in paths} & known]
    assert missing == []


def test_every_parameter_of_a_public_function_is_shown(site: Path) -> None:
    page = (site / "reference/api/index.html").read_text("utf-8")
    missing = []
    for path, value in public_names().items():
        for member in members(value) if path.count(".") == 1 else ():
            function = inspect.unwrap(getattr(value, member))
            if not inspect.isfunction(function):
                continue
            entry = page.partition(f'id="{path}.{member}"')[2].partition("<h4")[0]
            words = set(re.findall(r"\w+", re.sub(r"<[^>]+>", "", entry)))
            missing += [
                f"{path}.{member}({name})"
                for name in inspect.signature(function).parameters
                if name not in {"self", "cls", *words}
            ]
    assert missing == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    found = {
        f"{page.relative_to(site)}: {''.join(hit)}"
        for page in site.rglob("*.html")
        for hit in LOADED.findall(page.read_text("utf-8"))
    }
    assert found == set()
    assert not any("fonts.g" in sheet.read_text("utf-8") for sheet in site.rglob("*.css"))


def test_every_page_with_a_diagram_brings_what_draws_it(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        if 'class="mermaid"' in text:
            [source] = re.findall(r'<script src="([^"]*mermaid\.js)"></script>', text)
            assert (page.parent / source).resolve().is_file()


def test_the_search_finds_pages(site: Path) -> None:
    index = (site / "search/search_index.json").read_text("utf-8")
    assert "on_interrupt" in index
