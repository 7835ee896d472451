"""Mutants of a module: its source with one small thing changed in one place.

Comparisons, `and` and `or`, `not`, numbers and truth values: the places where guards live. A
mutant is named by its function and by what was changed, so that its name outlives other edits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

OTHER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from `start` to `end` of a module become `text`."""

    path: str
    function: str
    before: str
    text: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.path} {self.function}: {self.before} -> {self.text}"

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + f"({self.text})".encode() + source[self.end :]


def mutants_of(root: Path, path: str) -> Iterator[Mutant]:
    """Give all mutants of a module below a root."""
    source = (root / path).read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for function, node in nodes_of(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for changed in changes_of(node):
            yield Mutant(path, function, ast.unparse(node), ast.unparse(changed), start, end)


def nodes_of(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Give the expressions inside of functions, with the name of the function."""

    def walk(node: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for statement in child.body:  # neither decorators nor annotations
                    yield from walk_one(statement, (*path, child.name))
            else:
                yield from walk_one(child, path)

    def walk_one(node: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from walk(ast.Module([node], []), path)
            return
        if isinstance(node, ast.Assert | ast.JoinedStr | ast.match_case):
            return  # no behaviour, not an expression of its own, and a pattern
        if path and isinstance(node, ast.expr):
            yield ".".join(path), node
        yield from walk(node, path)

    return walk(tree, ())


def changes_of(node: ast.expr) -> Iterator[ast.expr]:
    """Give other expressions for one."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OTHER:
            changed = deepcopy(node)
            changed.ops = [OTHER[type(op)]()]
            yield changed
        case ast.BoolOp(op=op, values=values):
            flipped = deepcopy(node)
            flipped.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield flipped
            if len(values) > 1:
                for left_out in range(len(values)):
                    rest = [each for place, each in enumerate(values) if place != left_out]
                    yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as number):
            yield ast.Constant(number + 1)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            changed_sum = deepcopy(node)
            changed_sum.op = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield changed_sum
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
