"""Warns of bodies that touch clock, chance or the network where their context does not see it.

A body runs again from its first line, so what it reads past its context may differ each time. It is
looked at once, when it is defined: its source, and that of functions that it hands its context to.
What is called there is looked up, not guessed from its name. Functions that are given to `ctx.step`
or `ctx.on_undo` may do anything. What cannot be seen so is seen as it waits (`body_watch.py`).
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

NOW, CHANCE, ID = "ctx.now()", "ctx.random()", "ctx.uuid()"
SLEEP, STEP = "await ctx.sleep(…)", "a step: await ctx.step(…)"
MISSING = object()
OF_STEPS = ("step", "on_undo")

WAYS: dict[str, str] = {
    **dict.fromkeys(
        (
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns"),
            *("time.perf_counter", "time.perf_counter_ns", "time.localtime", "time.gmtime"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today"),
        ),
        NOW,
    ),
    **dict.fromkeys(("time.sleep", "asyncio.tasks.sleep"), SLEEP),
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4"), ID),
    **dict.fromkeys(("posix.urandom", "nt.urandom", "random.SystemRandom"), CHANCE),
}
"""The ways through the context, by the full names of what is called instead."""
NETWORK = frozenset(
    {
        *("socket", "_socket", "ssl", "urllib", "http", "ftplib", "smtplib", "imaplib", "poplib"),
        *("secrets", "subprocess", "httpx", "requests", "aiohttp", "urllib3", "websockets"),
        *("boto3", "botocore", "psycopg", "asyncpg", "redis", "openai", "anthropic"),
    }
)
"""The packages whose calls reach out of the process, or are meant to be unknown to everybody."""
HARMLESS = ("urllib.parse", "http.cookies", "http.HTTPStatus")


class WorkflowWarning(UserWarning):
    """The body of a workflow does something that may come to something else when it runs again."""


class UnseenCall(NamedTuple):
    """A call in a body, and the way through the context."""

    file: str
    line: int
    call: str
    way: str


def warn_of(function: Callable[..., Any], name: str) -> None:
    """Warn of each call in a workflow's body that its context should have been asked for."""
    for found in BodyReader().read(function):
        warnings.warn_explicit(
            f"the body of the workflow {name} calls {found.call}, and runs again from its first"
            f" line after each wait: use {found.way} instead",
            WorkflowWarning,
            found.file,
            found.line,
        )


class BodyReader:
    """Reads the source of a body, and of what it hands its context to."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()

    def read(self, function: Any) -> Iterator[UnseenCall]:
        function = inspect.unwrap(function)
        # Functions may hand the context to one another in a circle.
        if not isinstance(function, FunctionType) or function.__code__ in self._seen:
            return
        self._seen.add(function.__code__)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError, ValueError):
            return  # there is no source to read
        if tree.body and isinstance(body := tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
            yield from CallReader(self, function, body).read()


class CallReader:
    """Reads the calls of one function."""

    def __init__(
        self,
        reader: BodyReader,
        function: FunctionType,
        body: ast.FunctionDef | ast.AsyncFunctionDef,
    ) -> None:
        self._reader = reader
        self._function = function
        self._body = body
        self._file = function.__code__.co_filename
        self._first = function.__code__.co_firstlineno - 1
        arguments = [*body.args.posonlyargs, *body.args.args]
        self._context = arguments[0].arg if arguments else ""
        self._names = names_of(function)
        self._steps = {
            given.id
            for call in ast.walk(body)
            if isinstance(call, ast.Call) and self._is_step(call)
            for given in call.args[:1]
            if isinstance(given, ast.Name)
        }

    def read(self) -> Iterator[UnseenCall]:
        for statement in self._body.body:
            yield from self._look(statement)

    def _look(self, node: ast.AST) -> Iterator[UnseenCall]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in self._steps:
            return  # it is done in a step
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            yield from self._look_at_call(node)
            if self._is_step(node):
                children = [each for each in children if not isinstance(each, ast.Lambda)]
        for child in children:
            yield from self._look(child)

    def _is_step(self, call: ast.Call) -> bool:
        """Whether this is `ctx.step(…)`, whose function may do anything."""
        to = call.func
        return (
            isinstance(to, ast.Attribute)
            and to.attr in OF_STEPS
            and isinstance(to.value, ast.Name)
            and to.value.id == self._context
        )

    def _look_at_call(self, call: ast.Call) -> Iterator[UnseenCall]:
        found = self._meaning(call.func)
        if way := way_of(found, call):
            line = self._first + call.lineno
            yield UnseenCall(self._file, line, f"{ast.unparse(call.func)}()", way)
        elif any(isinstance(each, ast.Name) and each.id == self._context for each in call.args):
            yield from self._reader.read(found)

    def _meaning(self, node: ast.AST) -> Any:
        """Return what a dotted name stands for, where it is no local one."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, MISSING)
        if isinstance(node, ast.Attribute):
            owner = self._meaning(node.value)
            if inspect.ismodule(owner) or inspect.isclass(owner) or is_chance(owner):
                return getattr(owner, node.attr, MISSING)
            if owner is not MISSING:  # a client perhaps, of which no property is asked
                return inspect.getattr_static(type(owner), node.attr, MISSING)
        return MISSING


def names_of(function: FunctionType) -> dict[str, Any]:
    """Return what the names mean that a function finds outside itself."""
    code, local = (
        function.__code__,
        {*function.__code__.co_varnames, *function.__code__.co_cellvars},
    )
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    around = {name: cell.cell_contents for name, cell in cells if is_filled(cell)}
    known = {**vars(builtins), **function.__globals__, **around}
    return {name: meaning for name, meaning in known.items() if name not in local}


def is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not MISSING
    except ValueError:  # what is defined later
        return False


def way_of(called: Any, call: ast.Call) -> str:
    """Return how a body does this through its context; empty if it may do it by itself."""
    if called is MISSING:
        return ""
    name = full_name(called)
    if way := WAYS.get(name):
        return "" if way == SLEEP and is_zero(call) else way
    if is_chance(getattr(called, "__self__", None)) or (name == "random.Random" and not call.args):
        return CHANCE
    package = name.partition(".")[0]
    reaches_out = package in NETWORK and not name.startswith(HARMLESS)
    return STEP if reaches_out and not is_exception(called) else ""


def full_name(called: Any) -> str:
    """Return the name of a function, class or method with its module; empty if it has none."""
    owner = getattr(called, "__self__", None)
    module = getattr(called, "__module__", None) or getattr(owner, "__module__", None)
    name = getattr(called, "__qualname__", None)
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""


def is_chance(value: Any) -> bool:
    return type(value).__module__ == "random"


def is_exception(called: Any) -> bool:
    return inspect.isclass(called) and issubclass(called, BaseException)


def is_zero(call: ast.Call) -> bool:
    """Whether this only lets others go on: `asyncio.sleep(0)`."""
    given = call.args[:1]
    return bool(given) and isinstance(given[0], ast.Constant) and given[0].value == 0
