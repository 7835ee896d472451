"""The pages and examples import only what the reference lists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = re.compile(r"^::: ([\w.]+)", re.M)
CODE = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.M | re.S)
# How Outlast itself is built: these pages show code that users do not write.
INTERNAL = {"docs/explanation/internals.md"}


def listed() -> set[str]:
    """The modules, and names of modules, on the reference's pages."""
    pages = [ROOT / "docs" / "reference" / name for name in ("api.md", "modules.md")]
    return {name for page in pages for name in PUBLIC.findall(page.read_text("utf-8"))}


def imported(code: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of what a piece of code imports from Outlast."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "outlast":
            for alias in node.names:
                yield str(node.module), alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "outlast":
                    yield alias.name, ""


def pieces() -> Iterator[tuple[str, str]]:
    """Yield all code that users are shown, with the file where it stands."""
    for example in sorted((ROOT / "examples").glob("*.py")):
        yield example.name, example.read_text("utf-8")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = str(page.relative_to(ROOT))
        if name not in INTERNAL:
            for indent, code in CODE.findall(page.read_text("utf-8")):
                yield name, re.sub(f"^{indent}", "", code, flags=re.M)


def is_public(module: str, name: str, public: set[str]) -> bool:
    if f"{module}.{name}" in public or (module, name) == ("outlast", ""):
        return True
    if module not in public:
        return False
    names = getattr(import_module(module), "__all__", None)
    return not name or (not name.startswith("_") and (names is None or name in names))


def test_pages_and_examples_import_only_what_the_reference_lists() -> None:
    public = listed()
    hidden = {
        (file, f"{module}.{name}")
        for file, code in pieces()
        for module, name in imported(code)
        if not is_public(module, name, public)
    }

    assert {"outlast.Agent", "outlast.sync"} <= public
    assert hidden == set()


@pytest.mark.parametrize("name", sorted(listed()))
def test_what_the_reference_lists_exists(name: str) -> None:
    found: object = None
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        break
    assert found is not None
    if isinstance(found, ModuleType):
        missing = [each for each in getattr(found, "__all__", ()) if not hasattr(found, each)]
        assert missing == []
