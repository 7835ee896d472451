"""The walk through the code names what is there: at most eight files for each story."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALK = (ROOT / "docs" / "design" / "walk.md").read_text("utf-8")
STORIES = ("A message is sent", "An approval is answered", "A worker dies")
ROW = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
LONGEST = 8


def stops(story: str) -> list[tuple[str, str]]:
    """Return the files of a story in order, each with the name to look for in it."""
    return ROW.findall(WALK.partition(f"## {story}\n")[2].partition("\n## ")[0])


def defined(path: str) -> set[str]:
    """Return the functions, classes and methods of a module."""
    tree = ast.parse((ROOT / "src" / "outlast" / path).read_text("utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, methods)}
    return found


def test_every_story_names_one_to_eight_files_each_once() -> None:
    for story in STORIES:
        files = [path for path, _ in stops(story)]
        assert 0 < len(files) <= LONGEST
        assert len(set(files)) == len(files)


def test_every_file_of_the_walk_defines_the_name_to_look_for() -> None:
    lost = [
        f"{path}: {name}"
        for story in STORIES
        for path, name in stops(story)
        if name not in defined(path)
    ]
    assert lost == []
