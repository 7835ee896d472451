"""One word per thing: class names, words that are not used, and the glossary.

Reads the syntax of src/outlast and docs/glossary.md; nothing is imported. A word is a part of a
name: `LaneRunner` and `lane_runner` have the words `lane` and `runner`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outlast"
GLOSSARY = ROOT / "docs" / "glossary.md"
DIALECTS = ("stores/sqlite", "stores/postgres")

WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")

# Trades, furniture, people and theatre say nothing about a mechanism. The plural counts as well.
BANNED = frozenset(
    "actor beside book bureau butler carrier chore clerk courier crew custodian desk director "
    "doorman drawer duty ear envoy errand fate gravedigger guest hub janitor judge kin "
    "librarian lobby lookout messenger narrator office performer portrait porter roster scene seal "
    "shelf speaker staff stage surrounding switchboard tally timekeeper trickle undertaker upkeep "
    "usher vault visit weather wish workshop".split()
)

# Terms of the field that contain a banned word.
FIELD_TERMS = ("dead_letter", "DeadLetter", "dead_letters")

# Words in the names of modules and in the types of records that anybody of the field knows. A new
# one belongs here, if it means what it means everywhere, or into the glossary.
ORDINARY = frozenset(
    """
    access address admission after agents ai amount answer app arming asgi auth authorization
    backend backlog blocking body budgets builder bulk callback cancel cancellation change
    channel charge chat check child cli client clock coalesce code codec command compact
    connections consumer contact content context contract control conversation core counters
    crash cron database dead decision decode demo dependency deployments dev directory
    dispatcher display document done draft durability durable encode encoding encryption end
    engine environment erase erasure error errors events everywhere explain failure fault feed
    file fleet flight flow folder folds follow fork format grant handle health history hook
    host http in inbound inbox index info init instrument integration json keeper keyboard
    keys kill lanes launch layout ledger line link list listener listing liveness loading lock
    log logs loop main maintenance memory merged metric migration milestones model mutation
    name net notify oauth observation obstacle openapi option options outbox outgoing output
    owned owner ownership parts path peer pipeline planning pool port postgres principal
    private probe process progress promise prompt prompts protocol provider providers pydantic
    queues random reader reading reasoning receiver reconnect recorder recording refresh
    refusal registry remote render report requested requests response rest result retry return
    rewind route router row rules runner runs runtime scheduler schedules schema screen
    scripted send sender serve server sessions set setting settings shape show sign signature
    signed simulation single skills slices sqlite start state statement status stored stores
    stream subagent subscription supervisor sync tasks telemetry template terminal test
    testing text thread timeline timer token tool trace traced transaction transcript
    translation type under unstable up url usage user validation value verify visible waiting
    wake watch webhooks window wire work workers workflows world wrapped writer
    """.split()
)


def words(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(name)]


@cache
def modules() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text()))
        for path in sorted(SOURCE.rglob("*.py"))
    ]


@pytest.fixture(scope="module", autouse=True)
def forget_modules() -> Iterator[None]:
    """Syntax trees are large: they end with the tests that read them."""
    yield
    modules.cache_clear()


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module gives, not those that it uses."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def path_words(path: str) -> set[str]:
    return {word for part in path.removesuffix(".py").split("/") for word in words(part)}


# Class names


def repeated_classes(found: Iterable[tuple[str, ast.Module]]) -> list[str]:
    """Return the classes whose name stands in several modules, the dialects' twins aside."""
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in found:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(path)
    return [
        f"{name}: {', '.join(paths)}"
        for name, paths in where.items()
        if len(paths) > 1 and not are_twins(paths)
    ]


def dialect_of(path: str) -> str:
    return next((dialect for dialect in DIALECTS if path.startswith(f"{dialect}/")), "")


def are_twins(paths: list[str]) -> bool:
    dialects = [dialect_of(path) for path in paths]
    return all(dialects) and len(set(dialects)) == len(dialects)


def test_no_class_name_stands_twice() -> None:
    assert repeated_classes(modules()) == []


@pytest.mark.parametrize(
    ("paths", "is_repeated"),
    [
        (("core/a.py", "engine/b.py"), True),
        (("stores/sqlite/a.py", "stores/postgres/b.py"), False),
        (("stores/sqlite/a.py", "core/b.py"), True),
        (("stores/sqlite/a.py", "stores/sqlite/b.py"), True),
    ],
)
def test_only_the_store_dialects_may_have_twins(paths: tuple[str, str], is_repeated: bool) -> None:
    found = repeated_classes((path, ast.parse("class A: ...")) for path in paths)
    assert bool(found) is is_repeated


# Words that are not used


def banned_words(name: str) -> set[str]:
    for term in FIELD_TERMS:
        name = name.replace(term, "")
    return {FORMS[word] for word in words(name) if word in FORMS}


def forms(word: str) -> Iterator[str]:
    """Yield a noun and its plural."""
    yield word
    yield f"{word}es" if word.endswith(("s", "sh")) else f"{word}s"
    if word.endswith("y"):
        yield f"{word[:-1]}ies"


FORMS = {form: word for word in BANNED for form in forms(word)}


def test_no_mechanism_is_named_after_a_trade_a_piece_of_furniture_or_a_person() -> None:
    found = {
        f"{path}: {name} ({', '.join(sorted(left))})"
        for path, tree in modules()
        for name in (*defined(tree), Path(path).stem)
        if (left := banned_words(name))
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("DeskClerk", {"desk", "clerk"}),
        ("_send_wishes_later", {"wish"}),
        ("tallies", {"tally"}),
        ("open_desks", {"desk"}),
        ("dead_letters", set()),
        ("staffed", set()),
    ],
)
def test_banned_words_are_found_in_any_spelling_of_a_name(name: str, found: set[str]) -> None:
    assert banned_words(name) == found


# The glossary


def glossary() -> dict[str, str]:
    """Return the glossary's words, each as it stands there, with its meaning."""
    rows = [line.split("|") for line in GLOSSARY.read_text().splitlines() if line.startswith("|")]
    return {row[1].strip(): row[2].strip() for row in rows[2:]}


def glossary_words() -> set[str]:
    return {word for entry in glossary() for word in words(entry)}


def test_every_word_of_the_glossary_is_in_use() -> None:
    used: set[str] = set()
    for path, tree in modules():
        used |= path_words(path) | {word for name in defined(tree) for word in words(name)}
        used |= {word for tag in tags(tree) for word in words(tag)}
    assert sorted(glossary_words() - used - {f"{word}s" for word in used}) == []


def tags(tree: ast.Module) -> Iterator[str]:
    """Yield the types of the records that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for keyword in node.keywords:
                if keyword.arg == "tag" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value)


def test_every_coined_word_in_the_name_of_a_module_or_a_record_is_in_the_glossary() -> None:
    known = ORDINARY | glossary_words()
    found = {
        f"{path}: {word}" for path, _ in modules() for word in path_words(path) if word not in known
    }
    record = ast.parse((SOURCE / "core" / "record.py").read_text())
    found |= {f"{tag}: {words(tag)[0]}" for tag in tags(record) if words(tag)[0] not in known}
    assert sorted(found) == [], "explain it in docs/glossary.md, or add it to ORDINARY"


def test_no_word_is_both_ordinary_and_in_the_glossary() -> None:
    assert sorted(ORDINARY & {entry for entry in glossary() if " " not in entry}) == []


def test_the_glossary_is_sorted_and_explains_each_word_once() -> None:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("|")][2:]
    entries = [line.split("|")[1].strip() for line in lines]
    assert entries == sorted(set(entries))
