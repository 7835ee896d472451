"""Whether the source of a tool or workflow shows all that it waits for, and by which names.

Reads source as a tree and calls no code of the user's. What a name or a question is put together
from while the code runs cannot be read: then nothing certain can be said of it.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from textwrap import dedent
from types import FunctionType, ModuleType
from typing import Any

WAITS = {"ask": ("prompt", "name"), "wait_event": ("name",)}
"""What waits for something by its words: the parameters that have them; the last decides."""
SHORTEST_WORDS = 4
"""A text of fewer characters in a tool's code says nothing about what it asks."""
UNKNOWN = object()


class SourceReading:
    """What the sources of a function, and of those that it hands its context to, show.

    `texts` are the words of its waits, where they stand elsewhere in the code. Only if `is_whole`
    are they all that it can wait for.
    """

    def __init__(self, function: Any) -> None:
        self.texts: list[str] = []
        self.is_whole = True
        self._seen: set[FunctionType] = set()
        self._reading: set[str] = set()
        self._waiting = [function]
        while self._waiting:
            self._read(inspect.unwrap(plain(self._waiting.pop())))

    def _read(self, function: Any) -> None:
        if function in self._seen:
            return
        source = FunctionSource.of(function) if isinstance(function, FunctionType) else None
        if source is None:
            self.is_whole = False
            return
        self._seen.add(function)
        for wait in source.waits():
            self.is_whole &= self._reads(wait, source)
        for callee in source.handed_to():
            if callee is None:
                self.is_whole = False
            else:
                self._waiting.append(callee)

    def _reads(self, node: ast.expr, source: "FunctionSource") -> bool:
        """Read the words of a wait; say whether enough of them stands in the code."""
        match node:
            case ast.JoinedStr(values=parts):
                shown = [p.value for p in parts if isinstance(p, ast.Constant)]
                self.texts += (texts := [str(each) for each in shown if is_telling(str(each))])
                return bool(texts)
            case ast.BinOp(left=left, right=right):
                return any([self._reads(left, source), self._reads(right, source)])
            case ast.IfExp(body=body, orelse=other):
                return all([self._reads(body, source), self._reads(other, source)])
            case ast.Call(func=ast.Attribute(value=text, attr="format")):
                return self._reads(text, source)
            case ast.Name(id=name) if name in source.assigned:
                return self._reads_assigned(name, source)
        value = source.value_of(node)
        value = value.value if isinstance(value, Enum) else value
        if isinstance(value, str):
            self.texts.append(value)
        return isinstance(value, str)

    def _reads_assigned(self, name: str, source: "FunctionSource") -> bool:
        if name in self._reading:  # two names that are assigned to each other
            return False
        self._reading.add(name)
        given = source.assigned[name]
        readable = min([self._reads(each, source) for each in given])
        self._reading.discard(name)
        return readable


class FunctionSource:
    """The tree of one function, with what its names stand for outside of it."""

    def __init__(self, function: FunctionType, tree: ast.AST) -> None:
        self._function = function
        self._nodes = list(ast.walk(tree))
        self._parents = {each: n for n in self._nodes for each in ast.iter_child_nodes(n)}
        closed = inspect.getclosurevars(function)
        self._outside: Mapping[str, Any] = {**function.__globals__, **closed.nonlocals}
        code = function.__code__
        self._arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self.assigned = self._assignments()
        self._local = {*code.co_varnames, *code.co_cellvars} - {*self.assigned}

    @classmethod
    def of(cls, function: FunctionType) -> "FunctionSource | None":
        """Return the source of a function, if it can be had."""
        with suppress(OSError, TypeError, SyntaxError, ValueError):
            return cls(function, ast.parse(dedent(inspect.getsource(function))))
        return None

    def _assignments(self) -> dict[str, list[ast.expr]]:
        """Return what is assigned to names of its own that nothing else changes."""
        found: dict[str, list[ast.expr]] = {}
        stored = [n.id for n in self._nodes if isinstance(n, ast.Name) and not is_read(n)]
        for node in self._nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found.setdefault(name, []).append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    found.setdefault(name, []).append(value)
        whole = {name: each for name, each in found.items() if stored.count(name) == len(each)}
        # One that is assigned by itself would be read for ever.
        return {n: e for n, e in whole.items() if n not in self._arguments and not refers(e, n)}

    def waits(self) -> Iterator[ast.expr]:
        """Yield the words of each wait; of one whose words are hidden, something unreadable."""
        for node in self._nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr="ask" | "wait_event" as wait)):
                    yield words_of(node, WAITS[wait])

    def handed_to(self) -> Iterator[Any]:
        """Yield the functions that it hands its context to; None if that cannot be known."""
        for node in self._nodes:
            if not (isinstance(node, ast.Name) and node.id in self._contexts and is_read(node)):
                continue
            parent = self._parents.get(node)
            if isinstance(parent, ast.Attribute):
                continue
            callee = self.value_of(parent.func) if isinstance(parent, ast.Call) else UNKNOWN
            yield plain(callee) if isinstance(plain(callee), FunctionType) else None
        for node in self._nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=given):
                    if name in self._contexts:  # `ctx.map(review, …)`, say
                        yield from filter(is_function, map(plain, map(self.value_of, given)))

    @property
    def _contexts(self) -> set[str]:
        """The arguments that are a context, by what they are said to be; else the first."""
        said = self._function.__annotations__
        named = {name for name in self._arguments if "Context" in str(said.get(name, ""))}
        return named or {*self._arguments[:1]}

    def value_of(self, node: ast.AST) -> Any:
        """Return what an expression stands for, if that is settled when the module is loaded."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name not in self._local and name not in self.assigned:
                return self._outside.get(name, UNKNOWN)
            case ast.Attribute(value=value, attr=name):
                return part_of(self.value_of(value), name)
            case ast.Subscript(value=value, slice=key):
                held, at = self.value_of(value), self.value_of(key)
                with suppress(LookupError, TypeError):
                    return held[at] if type(held) in (dict, list, tuple) else UNKNOWN
        return UNKNOWN


def words_of(call: ast.Call, names: tuple[str, ...]) -> ast.expr:
    """Return the expression that a wait is known by."""
    given = {each.arg: each.value for each in call.keywords if not is_none(each.value)}
    named = [given[name] for name in reversed(names) if name in given]
    # Where there is neither, `**given` has it.
    return [*named, *call.args, ast.Tuple([], ast.Load())][0]


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def is_function(value: Any) -> bool:
    return isinstance(value, FunctionType)


def is_telling(text: str) -> bool:
    """Say whether a text is long enough to say something about what is asked."""
    return len(text.strip()) >= SHORTEST_WORDS


def plain(function: Any) -> Any:
    """Return the function of a tool or workflow, else what is given."""
    return getattr(function, "function", function)


def part_of(value: Any, name: str) -> Any:
    """Return an attribute that is simply there: no property and no other code is run."""
    if isinstance(value, Enum) and name in ("value", "name"):
        return getattr(value, f"_{name}_")
    if isinstance(value, type) and issubclass(value, Enum) and name in value.__members__:
        return value.__members__[name]
    if isinstance(value, type):
        known = next((vars(each)[name] for each in value.__mro__ if name in vars(each)), UNKNOWN)
        return known.__func__ if isinstance(known, staticmethod) else known
    if isinstance(value, ModuleType) or hasattr(type(value), "__dict__"):
        with suppress(TypeError):
            return vars(value).get(name, UNKNOWN)
    return UNKNOWN


def is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def refers(values: list[ast.expr], name: str) -> bool:
    nodes = (node for value in values for node in ast.walk(value))
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)
