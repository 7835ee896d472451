"""Which mutants there are, and that each changes one place only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants.mutation import mutants_of

SOURCE = '''"""Ünicode before it must not move the places."""

MOST = 3


def guard(a: int, b: bool, *, c: bool = True) -> bool:
    """Not this: 1 < 2."""
    assert a > 0
    if a < MOST and not b:
        return c
    return f"{a + 1}" == "2"
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "one.py").write_text(SOURCE)
    return tmp_path


def test_guards_are_changed_and_left_out(root: Path) -> None:
    names = [mutant.name for mutant in mutants_of(root, "one.py")]
    assert names == [
        "one.py guard: a < MOST and (not b) -> a < MOST or not b",
        "one.py guard: a < MOST and (not b) -> not b",
        "one.py guard: a < MOST and (not b) -> a < MOST",
        "one.py guard: a < MOST -> a <= MOST",
        "one.py guard: not b -> b",
        "one.py guard: f'{a + 1}' == '2' -> f'{a + 1}' != '2'",
    ]


def test_each_mutant_is_the_module_with_one_expression_changed(root: Path) -> None:
    source = SOURCE.encode()
    for mutant in mutants_of(root, "one.py"):
        changed = mutant.applied_to(source)
        ast.parse(changed)
        assert changed != source
        assert changed[: mutant.start] == source[: mutant.start]
        assert changed.endswith(source[mutant.end :])
