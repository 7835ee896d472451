"""Writes the classes of `outlast.sync` from the async classes that they stand for.

`make sync` writes them; `tests/unit/test_sync_classes.py` fails when they differ. Every public
method of an async class gets a twin that waits for it, with the same parameters; a session or a
receipt that it returns becomes the twin of that. Public attributes become properties: their types
are read from `__init__`, so they have to be annotated there or come from a parameter. A class
whose methods are async and that an attribute gives has to be listed in BRIDGED, too.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from outlast.app import Outlast
from outlast.client import (
    Client,
    RemoteBudgets,
    RemoteBulk,
    RemoteDeployments,
    RemoteProviders,
    RemoteQueues,
    RemoteRun,
    RemoteSession,
    RemoteUsage,
    RemoteWorkers,
)
from outlast.integration.channel.receiver import ChannelReceiver
from outlast.integration.connection.control import ConnectionControl
from outlast.integration.schedule.schedules import ScheduleControl
from outlast.session import Receipt, Session
from outlast.session.budget import BudgetControl
from outlast.session.bulk import BulkControl
from outlast.session.callback import Callbacks
from outlast.session.deployment import DeploymentControl
from outlast.session.listing import WorkerControl
from outlast.session.mutation import SessionChanges, SliceChanges
from outlast.session.provider import ProviderControl
from outlast.session.queue import QueueControl
from outlast.session.run import Run
from outlast.session.state import SliceQuery
from outlast.session.usage import UsageControl

FILE = Path(__file__).parents[2] / "src" / "outlast" / "sync.py"
BRIDGED: tuple[type, ...] = (
    Receipt,
    Session,
    SliceQuery,
    SliceChanges,
    SessionChanges,
    Callbacks,
    ChannelReceiver,
    ConnectionControl,
    ScheduleControl,
    BulkControl,
    WorkerControl,
    ProviderControl,
    QueueControl,
    DeploymentControl,
    UsageControl,
    Run,
    BudgetControl,
    Outlast,
    RemoteSession,
    RemoteRun,
    RemoteWorkers,
    RemoteQueues,
    RemoteProviders,
    RemoteDeployments,
    RemoteUsage,
    RemoteBudgets,
    RemoteBulk,
    Client,
)
TWINS = {each.__name__: f"Sync{each.__name__}" for each in BRIDGED}
# It is a receipt whose session is elsewhere, and is used in the same way.
TWINS["RemoteReceipt"] = "SyncReceipt"
LEFT_OUT = {
    # An observer is called on the event loop of the async session.
    Session: {"observe"},
    Client: {"open", "close", "url"},
    RemoteSession: {"receipt"},
    # `opened` opens and closes it; the rest needs no loop, and the async app is at hand.
    Outlast: {"open", "close", "lifespan", "asgi", "hook", "agents", "workflows", "clock", "store"}
    | {"settings", "worker", "public_url", "webhooks"},
}
MARK = "# The twins: written by `make sync`\n"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Twin:
    """The sync class for one async class."""

    def __init__(self, original: type) -> None:
        self.original = original
        self.module = importlib.import_module(original.__module__)
        self.tree = ast.parse(inspect.getsource(self.module))
        [self.node] = [
            node
            for node in self.tree.body
            if isinstance(node, ast.ClassDef) and node.name == original.__name__
        ]

    def source(self) -> str:
        parameters = [ast.unparse(base) for base in self.node.bases]
        name = self.original.__name__
        target = next((base.replace("Generic", name) for base in parameters), name)
        lines = [
            f"class {TWINS[name]}(Bridge[{target}]):",
            f'    """`{name}` for sync code."""',
            "",
        ]
        for attribute, annotation in sorted(self.attributes().items()):
            lines += self.attribute(attribute, annotation)
        for method in self.methods():
            lines += self.method(method)
        return "\n".join(lines)

    def methods(self) -> Iterator[Function]:
        for node in self.node.body:
            if isinstance(node, Function) and self.is_bridged(node.name):
                yield node

    def is_bridged(self, name: str) -> bool:
        return not name.startswith("_") and name not in LEFT_OUT.get(self.original, set())

    def attributes(self) -> dict[str, ast.expr]:
        """Return the public attributes that `__init__` sets, with their types."""
        [init] = [n for n in self.node.body if isinstance(n, Function) and n.name == "__init__"]
        arguments = (*init.args.args, *init.args.kwonlyargs)
        parameters = {each.arg: each.annotation for each in arguments}
        found: dict[str, ast.expr] = {}
        for node in ast.walk(init):
            target: ast.expr
            annotation: ast.expr | None
            if isinstance(node, ast.AnnAssign):
                target, annotation = node.target, node.annotation
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
                annotation = parameters.get(value.id) if isinstance(value, ast.Name) else None
                if isinstance(value, ast.Call) and ast.unparse(value.func) in TWINS:
                    annotation = value.func
            else:
                continue
            if isinstance(target, ast.Attribute) and self.is_bridged(target.attr):
                if annotation is None:
                    raise TypeError(f"annotate {self.original.__name__}.{target.attr}")
                self.check(annotation)
                found[target.attr] = annotation
        return found

    def check(self, annotation: ast.expr) -> None:
        """Refuse a class whose methods would have to be awaited."""
        for node in ast.walk(annotation):
            kind = getattr(self.module, node.id, None) if isinstance(node, ast.Name) else None
            if not inspect.isclass(kind) or kind.__name__ in TWINS:
                continue
            if any(map(inspect.iscoroutinefunction, vars(kind).values())):
                raise TypeError(f"add {kind.__name__} to BRIDGED")

    def attribute(self, name: str, annotation: ast.expr) -> list[str]:
        return [
            "    @property",
            f"    def {name}(self) -> {twin_type(annotation)}:",
            *(f"        {line}" for line in returned(f"self._target.{name}", annotation)),
            "",
        ]

    def method(self, node: Function) -> list[str]:
        assert node.returns is not None
        call = f"self._target.{node.name}"
        is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
        if not is_property:
            call += f"({', '.join(passed(node.args))})"
        is_iterator = ast.unparse(node.returns).startswith(("AsyncIterator", "AsyncGenerator"))
        if is_iterator:
            call = f"self._thread.iterate({call})"
        elif isinstance(node, ast.AsyncFunctionDef):
            call = f"self._thread.run({call})"
        body = [f"        {line}" for line in returned(call, node.returns)]
        if any(ast.unparse(each) == "overload" for each in node.decorator_list):
            body = ["        ..."]
        summary = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", "\n        ")
        return [
            *(f"    @{ast.unparse(each)}" for each in node.decorator_list),
            f"    def {node.name}({ast.unparse(node.args)}) -> {twin_type(node.returns)}:",
            *([f'        """{summary}"""'] if summary else []),
            *body,
            "",
        ]

    def names(self) -> set[str]:
        """Return the names that the signatures use."""
        parts: list[ast.AST] = list(self.attributes().values())
        for method in self.methods():
            assert method.returns is not None
            parts += [method.args, method.returns, *method.decorator_list]
        parts += self.node.bases
        return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def passed(arguments: ast.arguments) -> Iterator[str]:
    """Give the arguments with which a twin calls the original."""
    for each in (*arguments.posonlyargs, *arguments.args[1:]):
        yield each.arg
    if arguments.vararg:
        yield f"*{arguments.vararg.arg}"
    for each in arguments.kwonlyargs:
        yield f"{each.arg}={each.arg}"
    if arguments.kwarg:
        yield f"**{arguments.kwarg.arg}"


def twin_type(annotation: ast.expr) -> str:
    """Return a type in which async classes are replaced by their twins."""
    written = re.sub(
        r"^AsyncGenerator\[(.*), None\]$", r"AsyncIterator[\1]", ast.unparse(annotation)
    )
    changed = ast.parse(written, mode="eval")
    for node in ast.walk(changed):
        if isinstance(node, ast.Name):
            node.id = {**TWINS, "AsyncIterator": "Iterator"}.get(node.id, node.id)
    return ast.unparse(changed)


def returned(call: str, annotation: ast.expr) -> list[str]:
    """Return the statements that give what a call gives, as its twin where it has one."""
    parts = ast.unparse(annotation).split(" | ")
    kinds = [TWINS.get(part.partition("[")[0], "") for part in parts]
    if parts == ["None"]:
        return [call]
    if not any(isinstance(n, ast.Name) and n.id in TWINS for n in ast.walk(annotation)):
        return [f"return {call}"]
    if kinds[0] and len(parts) == 1:
        return [f"return {kinds[0]}({call}, self._thread)"]
    if kinds[0] and parts[1:] == ["None"]:
        return [f"found = {call}", f"return {kinds[0]}(found, self._thread) if found else None"]
    if all(kinds) and len(parts) == 2:
        is_first = f"isinstance(found, {parts[0].partition('[')[0]})"
        return [
            f"found = {call}",
            f"if {is_first}:",
            f"    return {kinds[0]}(found, self._thread)",
            f"return {kinds[1]}(found, self._thread)",
        ]
    raise TypeError(f"teach this generator to return {ast.unparse(annotation)}")


def imports(twins: list[Twin]) -> tuple[str, str]:
    """Return the imports and the definitions of type variables that the twins need."""
    lines = {twin.original.__name__: import_of(twin.module, twin.original) for twin in twins}
    variables: set[str] = set()
    for twin in twins:
        todo = sorted(twin.names() - {"AsyncGenerator", "AsyncIterator", "Generic", "property"})
        for name in todo:
            if (defined := variable(twin.tree, name)) is None:
                lines.setdefault(name, import_line(twin, name))
                continue
            variables.add(defined)
            todo += {n.id for n in ast.walk(ast.parse(defined)) if isinstance(n, ast.Name)} - {name}
    return "\n".join(sorted(set(lines.values()))), "\n".join(sorted(variables))


def import_of(module: ModuleType, kind: type) -> str:
    return f"from {module.__name__} import {kind.__name__}"


def variable(tree: ast.Module, name: str) -> str | None:
    """Return the statement that defines a type variable of this name, if there is one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            source = ast.unparse(node)
            return source if "TypeVar(" in source else None
    return None


def import_line(twin: Twin, name: str) -> str:
    """Return the line that imports a name which a module imports or defines."""
    if hasattr(builtins, name):
        return ""
    for node in ast.walk(twin.tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return f"from {node.module} import {ast.unparse(alias)}"
    return f"from {twin.module.__name__} import {name}"


def generate() -> str:
    """Return the module: its written part with the imports that it has, and the twins anew."""
    written = FILE.read_text("utf-8").partition(MARK)[0]
    twins = [Twin(each) for each in BRIDGED]
    lines, variables = imports(twins)
    first = written.index("from outlast.app")
    classes = "\n\n".join(twin.source() for twin in twins)
    source = f"{written[:first]}{lines}\n{written[first:]}{MARK}\n{variables}\n\n\n{classes}"
    name = ("--stdin-filename", str(FILE))
    # The imports of twins that are gone are dropped (F401), and the rest is put in order (I).
    for command in (("check", "--quiet", "--select=I,F401,F811", "--fix"), ("format", "--quiet")):
        source = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *name, "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return source


if __name__ == "__main__":
    FILE.write_text(generate(), "utf-8")
