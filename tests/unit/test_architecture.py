"""The shape of src/outlast, read from its syntax; nothing of it is imported.

A rule is a function from one module to what is wrong with it. Each rule is held
against the source, and against small trees that break it or only seem to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "outlast"

# A tier may import the tiers before it; neighbours do not know each other.
TIERS = (
    {"errors", "clock", "log_context"},
    {"core"},
    {"store"},
    {"log", "net"},
    {"stores", "engine"},
    {"agents"},
    {"session", "workflows", "state", "rules", "planning", "prompts", "skills"},
    {"client", "usage", "budgets"},
    {"integration"},
    {"runtime"},
    {"app"},
    {"__init__", "server", "testing", "sync", "milestones"},
    {"cli"},
)
RANK = {unit: rank for rank, tier in enumerate(TIERS) for unit in tier}

# All that the core may import beside outlast.core and outlast.errors. A name joins
# this set only if the module does no I/O and reads neither clock nor chance.
PURE = set(
    "__future__ abc base64 binascii bisect collections copy dataclasses datetime decimal enum "
    "functools hashlib heapq hmac itertools json math msgspec operator re string struct textwrap "
    "typing unicodedata zlib zstandard".split()
)

CHANCE = {"random", "secrets", "uuid"}
READS_OF_CLOCK_OR_CHANCE = set(
    "time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter "
    "time.perf_counter_ns time.gmtime time.localtime datetime.datetime.now "
    "datetime.datetime.utcnow datetime.datetime.today datetime.date.today os.urandom os.getrandom "
    "ulid.ULID.from_datetime ulid.ULID.from_timestamp".split()
)
LOOP_TIME = re.compile(r"loop(\(\))?\.time$")

# (file or "*", what it imports): why that import waits inside a function.
LATE_IMPORTS = {
    ("cli/terminal/loading.py", "importlib.import_module"): "the app that the user names",
    ("*", "pydantic_ai"): "slow, and only a process that calls a model needs it",
    ("agents/model/price.py", "genai_prices"): "slow, and pydantic-ai has imported it by then",
    ("*", "anthropic"): "the extra `anthropic`",
    ("*", "google.genai"): "the extra `google`",
    ("*", "openai"): "the extra `openai`",
    ("integration/telemetry/instrument.py", "opentelemetry"): "only a process that works needs it",
    ("agents/skill/skill.py", "strictyaml"): "the extra `skills`",
    ("agents/skill/skill.py", "skills_ref.validator.validate_metadata"): "the extra `skills`",
    ("stores/url.py", "outlast.stores.postgres.PostgresStore"): "the extra `postgres`",
    (
        "integration/connection/__init__.py",
        "outlast.integration.connection.connections.Connections",
    ): "the extra `connections`",
    ("app.py", "outlast.server.asgi.create"): "the extra `server`",
    ("__init__.py", "importlib.import_module"): "httpx, for names that need it",
    ("server/__init__.py", "outlast.server.error"): "the extra `server`",
    ("cli/terminal/service.py", "outlast.server.serve"): "the extra `server`, and slow to import",
    (
        "integration/outbox/webhook.py",
        "outlast.net.client.GuardedClient",
    ): "httpx, for an app that posts",
    (
        "integration/channel/http.py",
        "outlast.net.client.GuardedClient",
    ): "httpx, for one that sends",
    (
        "testing/__init__.py",
        "outlast.testing.contract.StoreContract",
    ): "needs pytest, which the scripted model of a demo does not",
    (
        "testing/__init__.py",
        "outlast.testing.simulation.Simulation",
    ): "large, and a scripted model does without it",
}

# (file, what it imports): why that import goes up.
UPWARD = {
    ("app.py", "outlast.server.asgi.create"): "`app.asgi()` is where users look for the server",
    ("app.py", "outlast.server.ServerSettings"): "the type of what it is given",
    ("__init__.py", "outlast.server.Principal"): "imported when it is asked for",
    ("__init__.py", "outlast.server.ServerSettings"): "imported when it is asked for",
}

PICKLES = {"_pickle", "cloudpickle", "copyreg", "dill", "joblib", "marshal", "pickle", "shelve"}

# Statements that read or change rows or tables; BEGIN, COMMIT and PRAGMA are a connection's affair.
SQL = re.compile(
    r"\bSELECT\s|\bINSERT\s+(OR\s+\w+\s+)?INTO\b|\bUPDATE\s.+?\sSET\b|\bDELETE\s+FROM\b"
    r"|\b(CREATE|ALTER|DROP)\s+(UNIQUE\s+)?(TABLE|INDEX|VIEW|TRIGGER)\b"
    r"|^\s*(?i:select\s.+?\sfrom\b|insert\s+into\b|update\s+\S+\s+set\b|delete\s+from\b)",
    re.DOTALL,
)

DRAWERS = {"common", "helper", "helpers", "misc", "types", "util", "utils"}


@dataclass(frozen=True)
class Module:
    path: PurePosixPath
    tree: ast.Module

    @property
    def unit(self) -> str:
        """The top-level module or package that it belongs to."""
        return PurePosixPath(self.path.parts[0]).stem

    @cached_property
    def names(self) -> dict[str, str]:
        """What each imported name stands for, written out in full."""
        names = {}
        for node, alias, target in self.imports(self.tree):
            local = alias.asname or alias.name.partition(".")[0]
            binds_root = isinstance(node, ast.Import) and not alias.asname
            names[local] = local if binds_root else target
        return names

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The whole tree; every rule walks it."""
        return list(ast.walk(self.tree))

    def imports(self, within: ast.AST) -> Iterator[tuple[ast.stmt, ast.alias, str]]:
        for node in self.nodes if within is self.tree else ast.walk(within):
            if isinstance(node, ast.Import):
                yield from ((node, alias, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self.origin(node)
                yield from ((node, alias, f"{origin}.{alias.name}") for alias in node.names)

    def origin(self, node: ast.ImportFrom) -> str:
        package = ("outlast", *self.path.parent.parts)
        above = package[: len(package) - node.level + 1] if node.level else ()
        return ".".join((*above, *([node.module] if node.module else [])))

    def full_name(self, node: ast.AST, names: dict[str, str]) -> str | None:
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.full_name(node.value, names)):
            return f"{owner}.{node.attr}"
        return None


Offence = tuple[int, str]
Rule = Callable[[Module], Iterator[Offence]]


def unit_of(target: str) -> str | None:
    """Which unit of outlast an import reaches, if it reaches into outlast at all."""
    root, _, rest = target.partition(".")
    unit = rest.partition(".")[0]
    return (unit if unit in RANK else "__init__") if root == "outlast" else None


def is_within(target: str, name: str) -> bool:
    return target == name or target.startswith(f"{name}.")


def imports_downward(module: Module) -> Iterator[Offence]:
    if module.unit not in RANK:
        yield 1, f"{module.unit} has no place in TIERS"
        return
    for node, _, target in module.imports(module.tree):
        unit = unit_of(target)
        if (str(module.path), target) in UPWARD:
            continue
        if unit and unit != module.unit and RANK[unit] >= RANK[module.unit]:
            yield node.lineno, f"{module.unit} must not import {target}"


def keeps_the_core_pure(module: Module) -> Iterator[Offence]:
    if module.unit != "core":
        return
    for node, _, target in module.imports(module.tree):
        if unit_of(target) not in {"core", "errors"} and target.partition(".")[0] not in PURE:
            yield node.lineno, f"the core must not import {target}"


def asks_the_clock(module: Module) -> Iterator[Offence]:
    if module.unit in {"clock", "testing", "cli"}:
        return
    for node, _, target in module.imports(module.tree):
        if target.partition(".")[0] in CHANCE:
            yield node.lineno, f"{target} belongs to clock.py"
    names = module.names
    for found in module.nodes:
        name = module.full_name(found, names)
        if isinstance(found, ast.expr) and name in READS_OF_CLOCK_OR_CHANCE:
            yield found.lineno, f"{name} belongs to clock.py"
        elif isinstance(found, ast.Call):
            if module.full_name(found.func, names) == "ulid.ULID":
                yield found.lineno, "new ids come from clock.py"
            elif LOOP_TIME.search(ast.unparse(found.func)):
                yield found.lineno, "the loop's time belongs to clock.py"


def imports_in_the_open(module: Module) -> Iterator[Offence]:
    def may_wait(target: str) -> bool:
        files = {"*", str(module.path)}
        return any(file in files and is_within(target, late) for file, late in LATE_IMPORTS)

    names = module.names
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement, _, target in module.imports(node):
                if not may_wait(target):
                    yield statement.lineno, f"the import of {target} hides in {node.name}"
        elif isinstance(node, ast.Call):
            called = module.full_name(node.func, names) or ast.unparse(node.func)
            if called in {"__import__", "importlib.import_module"} and not may_wait(called):
                yield node.lineno, f"{called} hides what it imports"


def pickles_nothing(module: Module) -> Iterator[Offence]:
    for node, _, target in module.imports(module.tree):
        if target.partition(".")[0] in PICKLES:
            yield node.lineno, f"{target} runs what it reads"


def keeps_sql_in_files(module: Module) -> Iterator[Offence]:
    docstrings = {node.value for node in module.nodes if isinstance(node, ast.Expr)}
    for node in module.nodes:
        if node not in docstrings and (found := SQL.search(text_of(node))):
            yield getattr(node, "lineno", 0), f"SQL belongs in a file: {found.group().strip()}"


def text_of(node: ast.AST) -> str:
    """The text of a string, with a stand-in for what an f-string fills in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "x" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_no_drawer(module: Module) -> Iterator[Offence]:
    if drawers := DRAWERS & {PurePosixPath(part).stem for part in module.path.parts}:
        yield 1, f"{drawers.pop()} says nothing about what it owns"


@cache
def modules(package: Path) -> list[Module]:
    """Read a package once for all rules."""
    return [
        Module(PurePosixPath(file.relative_to(package)), ast.parse(file.read_text("utf-8")))
        for file in sorted(package.rglob("*.py"))
    ]


@pytest.fixture(scope="module", autouse=True)
def forget_modules() -> Iterator[None]:
    """Syntax trees are large: they end with the tests that read them."""
    yield
    modules.cache_clear()


def offences(rule: Rule, package: Path) -> list[str]:
    return [
        f"{module.path}:{line}: {wrong}"
        for module in modules(package)
        for line, wrong in rule(module)
    ]


def test_there_is_source_to_hold_the_rules_against() -> None:
    assert any(SOURCE.rglob("*.py"))


def test_the_tree_has_the_units_of_the_design_and_no_others() -> None:
    modules = {path.stem for path in SOURCE.glob("*.py")}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert modules == {
        "__init__",
        "app",
        "budgets",
        "clock",
        "errors",
        "log_context",
        "planning",
        "prompts",
        "rules",
        "runtime",
        "skills",
        "state",
        "sync",
        "usage",
    }
    assert packages | modules == {unit for tier in TIERS for unit in tier}
    assert len(TIERS) <= 13


def test_imports_go_one_way() -> None:
    assert offences(imports_downward, SOURCE) == []


def test_the_core_imports_only_what_is_pure() -> None:
    assert offences(keeps_the_core_pure, SOURCE) == []


def test_only_the_clock_reads_time_and_chance() -> None:
    assert offences(asks_the_clock, SOURCE) == []


def test_no_import_hides_in_a_function() -> None:
    assert offences(imports_in_the_open, SOURCE) == []


def test_nothing_is_pickled() -> None:
    assert offences(pickles_nothing, SOURCE) == []


def test_no_sql_stands_in_python_strings() -> None:
    assert offences(keeps_sql_in_files, SOURCE) == []


def test_no_module_is_a_drawer() -> None:
    assert offences(is_no_drawer, SOURCE) == []


IMPURE = "time random secrets uuid asyncio os socket sqlite3 threading pathlib pydantic".split()

BROKEN: list[tuple[Rule, str, str]] = [
    (imports_downward, "errors.py", "from outlast.core.record import Record"),
    (imports_downward, "core/fold.py", "import outlast.store"),
    (imports_downward, "core/fold.py", "from outlast import store"),
    (imports_downward, "core/fold.py", "from outlast import Agent"),
    (imports_downward, "core/fold.py", "from ..store import Store"),
    (imports_downward, "core/fold.py", "from .. import store"),
    (imports_downward, "clock.py", "from outlast.store import Store"),
    (imports_downward, "store/contract.py", "from outlast.stores.sqlite import MemoryStore"),
    (imports_downward, "engine/worker.py", "from outlast.stores.sqlite import SqliteStore"),
    (imports_downward, "engine/worker.py", "def f():\n    from outlast.agents import Agent"),
    (imports_downward, "stores/memory.py", "from outlast.engine.worker import Worker"),
    (imports_downward, "agents/agent.py", "from outlast.app import Outlast"),
    (imports_downward, "app.py", "from outlast.server import routes"),
    (imports_downward, "client.py", "from outlast.cli import main"),
    (imports_downward, "testing/model.py", "from outlast.cli import main"),
    (imports_downward, "__init__.py", "from outlast.server import routes"),
    (imports_downward, "surprise.py", ""),
    *((keeps_the_core_pure, "core/fold.py", f"import {name}") for name in IMPURE),
    (keeps_the_core_pure, "core/fold.py", "from os.path import join"),
    (keeps_the_core_pure, "core/fold.py", "from outlast.clock import Clock"),
    (asks_the_clock, "core/fold.py", "from datetime import datetime, UTC\ndatetime.now(UTC)"),
    (asks_the_clock, "engine/worker.py", "import datetime as d\nd.date.today()"),
    (asks_the_clock, "engine/worker.py", "import time\nnow = time.time()"),
    (asks_the_clock, "engine/worker.py", "from time import monotonic as now\nnow()"),
    (asks_the_clock, "engine/worker.py", "import time\ndef f(now=time.time): ..."),
    (asks_the_clock, "engine/worker.py", "import asyncio\nasyncio.get_running_loop().time()"),
    (asks_the_clock, "engine/worker.py", "self._loop.time()"),
    (asks_the_clock, "stores/memory.py", "import random"),
    (asks_the_clock, "server/auth.py", "from secrets import token_hex"),
    (asks_the_clock, "server/auth.py", "import os\nos.urandom(8)"),
    (asks_the_clock, "agents/agent.py", "from ulid import ULID\nULID()"),
    (asks_the_clock, "agents/agent.py", "import ulid\nulid.ULID.from_timestamp(1.0)"),
    (imports_in_the_open, "app.py", "def f():\n    from outlast.stores import memory"),
    (imports_in_the_open, "app.py", "async def f():\n    if x:\n        import json"),
    (imports_in_the_open, "app.py", "import importlib\nimportlib.import_module('json')"),
    (imports_in_the_open, "app.py", "json = __import__('json')"),
    (pickles_nothing, "testing/crash.py", "import pickle"),
    (pickles_nothing, "core/codec.py", "from marshal import loads"),
    (keeps_sql_in_files, "stores/memory.py", "q = 'SELECT 1'"),
    (keeps_sql_in_files, "stores/memory.py", "q = 'select *\\n from lanes'"),
    (keeps_sql_in_files, "stores/memory.py", "q = f'UPDATE {table} SET fence = 1'"),
    (keeps_sql_in_files, "stores/memory.py", "q = 'INSERT OR IGNORE INTO lanes'"),
    (keeps_sql_in_files, "stores/memory.py", "run('DELETE ' 'FROM lanes')"),
    (keeps_sql_in_files, "stores/memory.py", "q = 'CREATE TABLE lanes (id)'"),
    *((is_no_drawer, f"{name}.py", "") for name in ("utils", "common", "helpers", "types")),
    (is_no_drawer, "engine/utils/lane.py", ""),
]

SOUND: list[tuple[Rule, str, str]] = [
    (imports_downward, "core/fold.py", "from outlast import errors\nfrom .record import Record"),
    (imports_downward, "stores/sqlite/store.py", "from outlast.store import Store"),
    (imports_downward, "app.py", "import msgspec\nfrom outlast.stores import memory"),
    (imports_downward, "testing/model.py", "from outlast.app import Outlast"),
    (imports_downward, "cli/demo.py", "from outlast import Agent\nfrom outlast.server import x"),
    (keeps_the_core_pure, "core/fold.py", "from collections.abc import Mapping\nimport msgspec"),
    (keeps_the_core_pure, "core/fold.py", "from outlast.errors import OutlastError"),
    (keeps_the_core_pure, "engine/worker.py", "import asyncio"),
    (asks_the_clock, "clock.py", "import random, time\nfrom ulid import ULID\ntime.time()\nULID()"),
    (asks_the_clock, "testing/simulation.py", "import random"),
    (asks_the_clock, "engine/worker.py", "from ulid import ULID\nULID.from_str(text)"),
    (asks_the_clock, "engine/worker.py", "clock.now()\nclock.monotonic()"),
    (imports_in_the_open, "agents/provider.py", "def f():\n    from pydantic_ai import direct"),
    (imports_in_the_open, "app.py", "try:\n    import uvloop\nexcept ImportError:\n    uvloop = 0"),
    (keeps_sql_in_files, "stores/memory.py", "'''Like SELECT 1 FROM lanes.'''\nrun('BEGIN')"),
    (keeps_sql_in_files, "errors.py", "raise ValueError('To update it, select another store.')"),
    (is_no_drawer, "core/record.py", ""),
]


def plant(tree: Path, path: str, source: str) -> Path:
    package = tree / "outlast"
    (package / path).parent.mkdir(parents=True)
    (package / path).write_text(source, "utf-8")
    return package


@pytest.mark.parametrize(("rule", "path", "source"), BROKEN)
def test_a_rule_finds_what_breaks_it(rule: Rule, path: str, source: str, tmp_path: Path) -> None:
    assert offences(rule, plant(tmp_path, path, source))


@pytest.mark.parametrize(("rule", "path", "source"), SOUND)
def test_a_rule_lets_sound_code_pass(rule: Rule, path: str, source: str, tmp_path: Path) -> None:
    assert offences(rule, plant(tmp_path, path, source)) == []
