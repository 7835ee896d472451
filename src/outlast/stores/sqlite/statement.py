"""The SQL of this store: files beside this one, each a page of named statements."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import itemgetter
from typing import Any, NamedTuple

Params = Mapping[str, Any]

PARAMETER = re.compile(r":(\w+)")
HERE = files("outlast.stores.sqlite")
NAME = "-- name: "


def named(page: str) -> Iterator[tuple[str, str]]:
    """Yield each statement of a page with its name, without the remarks above it."""
    for block in page.split(NAME)[1:]:
        name, _, text = block.partition("\n")
        lines = text.strip().splitlines()
        yield name.strip(), "\n".join(line for line in lines if not line.startswith("--"))


class Query(NamedTuple):
    """A statement with its parameters by place: SQLite's driver binds those in half the time."""

    text: str
    names: tuple[str, ...]
    pick: Callable[[Params], tuple[Any, ...]]

    @classmethod
    def parse(cls, text: str) -> Query:
        names = tuple(PARAMETER.findall(text))
        return cls(PARAMETER.sub("?", text), names, picker(names))


def picker(names: tuple[str, ...]) -> Callable[[Params], tuple[Any, ...]]:
    """Return what takes the named values from a mapping, in their order."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda params: tuple(params[name] for name in names)


def load_queries() -> dict[str, Query]:
    pages = sorted((HERE / "queries").iterdir(), key=lambda page: page.name)
    found = [pair for page in pages for pair in named(page.read_text("utf-8"))]
    queries = {name: Query.parse(text) for name, text in found}
    assert len(queries) == len(found), "two statements have the same name"
    return queries


QUERIES = load_queries()


SCHEMA = HERE / "schema.sql"


def load_migrations() -> list[Traversable]:
    """Return the migrations in their order; the first of them makes version 2."""
    pages = [page for page in (HERE / "migrations").iterdir() if page.name.endswith(".sql")]
    return sorted(pages, key=lambda page: page.name)


def split(script: str) -> Iterator[str]:
    """Yield a script's statements one by one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
