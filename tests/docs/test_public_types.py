"""Everything that users meet is importable: types in public signatures have a public module.

Public is what the pages of the reference list. From each public class and function the types of its
parameters, results and attributes are followed, and what these have in turn; a type that no page
lists is a finding. A constructor counts only where users call it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import outlast
from outlast.core.record import AnyRecord

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
ENTRY = re.compile(r"^::: (outlast[\w.]*)$", re.MULTILINE)
IMPORT = re.compile(r"^ *from (outlast[\w.]*) import ([^(\n]+|\([^)]*\))$", re.MULTILINE)
OPAQUE = frozenset(get_args(AnyRecord))
"""Records: a store is given them encoded, too, and docs/reference/events.md has their fields."""


def listed() -> dict[str, list[str]]:
    """Return the public modules with their public names."""
    modules: dict[str, list[str]] = {}
    for page in ("api", "modules"):
        for name in ENTRY.findall((REFERENCE / f"{page}.md").read_text("utf-8")):
            try:
                module = importlib.import_module(name)
            except ImportError:
                home, _, last = name.rpartition(".")
                modules.setdefault(home, []).append(last)
            else:
                modules.setdefault(name, []).extend(names_in(module))
    return modules


def names_in(module: Any) -> list[str]:
    own = [
        n for n, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__
    ]
    return list(getattr(module, "__all__", own))


def public_objects() -> dict[int, Any]:
    found = [
        getattr(importlib.import_module(module), name)
        for module, names in listed().items()
        for name in names
        if not name.startswith("_")
    ]
    return {id(each): each for each in found}


def is_handed_out(kind: type) -> bool:
    """Whether users are only given it: its constructor takes what none of them has."""
    about = inspect.getdoc(kind) or ""
    return kind.__name__ in HANDED_OUT or "outlast.sync" in kind.__module__ or not about


HANDED_OUT = set(
    "BudgetControl BulkControl Callback Callbacks ChannelReceiver ConnectionControl Context"
    " DeploymentControl InstructionContext Observation PolicyCall ProgressSection"
    " PromptContext ProviderControl QueueControl Receipt RemoteBudgets RemoteBulk RemoteChannels"
    " RemoteDeployments RemoteProviders RemoteQueues RemoteReceipt RemoteRun RemoteSession"
    " RemoteUsage RemoteWorkers Run ScheduleControl Session StartedChild WorkflowContext"
    " SessionChanges SessionContext SessionMutation Slice SliceChanges SliceMutation SliceQuery"
    " Subagent TurnContext Worker WorkerControl".split()
)


def types_in(hint: Any) -> Iterator[type]:
    """Return the classes that a type is made of."""
    if isinstance(hint, list):
        for each in hint:
            yield from types_in(each)
    elif (origin := get_origin(hint)) is not None:
        yield from types_in(origin)
        for each in get_args(hint):
            yield from types_in(each)
    elif isinstance(hint, type) and hint.__module__.startswith("outlast"):
        yield hint


def hints_of(each: Any) -> dict[str, Any]:
    try:
        return get_type_hints(each)
    except NameError:  # a name that is imported for the type checker alone
        return {}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Return what a class shows to its users, with its types."""
    for name, hint in hints_of(kind).items():
        if not name.startswith("_"):
            yield name, hint
    for name, hint in attributes(kind):
        yield name, hint
    for name, member in inspect.getmembers(kind):
        if name == "__init__" and not is_handed_out(kind):
            pass
        elif name.startswith("_"):
            continue
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) or inspect.ismethod(function):
            for at, hint in hints_of(function).items():
                yield f"{name}.{at}", hint


def attributes(kind: type) -> Iterator[tuple[str, Any]]:
    """Return the attributes that a constructor annotates."""
    init = vars(kind).get("__init__")
    if not inspect.isfunction(init) or init.__code__.co_filename.startswith("<"):
        return  # that of a dataclass
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(init)))):
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                if not name.startswith("_"):
                    yield from named_in(annotation, name, init.__globals__)


def named_in(annotation: ast.expr, name: str, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the classes that the source of an annotation names."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and isinstance(kind := known.get(node.id), type):
            yield name, kind


def test_every_type_that_users_meet_is_public() -> None:
    public = public_objects()
    missing: dict[str, set[str]] = {}
    for each in public.values():
        if isinstance(each, type):
            shown = [(f"{each.__name__}.{name}", hint) for name, hint in members(each)]
        elif inspect.isfunction(each):
            shown = [(f"{each.__name__}({name})", hint) for name, hint in hints_of(each).items()]
        else:
            continue
        for where, hint in shown:
            for kind in types_in(hint):
                if id(kind) not in public and kind not in OPAQUE:
                    missing.setdefault(f"{kind.__module__}.{kind.__name__}", set()).add(where)

    assert {name: sorted(where)[:3] for name, where in missing.items()} == {}


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "examples").rglob("*.py"))


def test_pages_and_examples_import_public_names_only() -> None:
    public = listed()
    found = [
        f"{page.relative_to(ROOT)}: {module}.{name}"
        for page in pages()
        for module, names in IMPORT.findall(page.read_text("utf-8"))
        for name in re.findall(r"(\w+)(?: as \w+)?", names)
        if name not in public.get(module, ()) and f"{module}.{name}" not in public
    ]
    assert found == []


def test_public_names_are_what_modules_say() -> None:
    for module, names in listed().items():
        assert not [name for name in names if not hasattr(importlib.import_module(module), name)]
    assert set(outlast.__all__) <= set(listed()["outlast"])
