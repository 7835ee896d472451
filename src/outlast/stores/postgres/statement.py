"""The SQL of this store: files beside this one, each a page of named statements.

In the files the schema is called `outlast`; here it gets the name that the URL gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

Params = Mapping[str, Any]
Value = bytes | None

HERE = files("outlast.stores.postgres")
SCHEMA_FILE = HERE / "schema.sql"
NAME = "-- name: "
PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
SCHEMA = re.compile(r"\boutlast(?=[.;])")

UNKNOWN, BYTEA = 0, 17  # the server infers what it is not told
TEXT, BINARY = 0, 1


class Query(NamedTuple):
    """A statement with numbered parameters, and which named value each of them is."""

    text: bytes
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Query:
        names = tuple(dict.fromkeys(PARAMETER.findall(text)))
        numbered = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
        return cls(numbered.encode(), names)

    def bind(self, params: Params) -> Statement:
        """Return the query with its values as they are sent: bytes as they are, others as text.

        Every commit passes here, so it is written with few calls.
        """
        values: list[Any] = [params[name] for name in self.names]
        types, formats = [UNKNOWN] * len(values), [TEXT] * len(values)
        for place, value in enumerate(values):
            kind = type(value)
            if kind is str:
                values[place] = value.encode()
            elif kind is int:
                values[place] = b"%d" % value
            elif kind is bytes:
                types[place], formats[place] = BYTEA, BINARY
            elif kind is bool:
                values[place] = b"true" if value else b"false"
            elif value is not None:
                values[place] = str(value).encode()
        return Statement(self.text, values, types, formats)


class Statement(NamedTuple):
    """A query with its values, as the driver takes it."""

    text: bytes
    values: list[Value]
    types: list[int]
    formats: list[int]


def in_schema(text: str, schema: str) -> str:
    """Give the schema its name; `place` lets no name pass that would need more than quotes."""
    return SCHEMA.sub(f'"{schema}"', text)


def named(page: str) -> Iterator[tuple[str, str]]:
    """Yield each statement of a page with its name, without the remarks above it."""
    for block in page.split(NAME)[1:]:
        name, _, text = block.partition("\n")
        lines = text.strip().splitlines()
        sql = "\n".join(line for line in lines if not line.startswith("--"))
        yield name.strip(), sql.removesuffix(";")


@lru_cache(maxsize=16)
def load_queries(schema: str) -> Mapping[str, Query]:
    pages = pages_of("queries")
    found = [pair for page in pages for pair in named(in_schema(page.read_text("utf-8"), schema))]
    queries = {name: Query.parse(text) for name, text in found}
    assert len(queries) == len(found), "two statements have the same name"
    return queries


def pages_of(folder: str) -> list[Traversable]:
    pages = [page for page in (HERE / folder).iterdir() if page.name.endswith(".sql")]
    return sorted(pages, key=lambda page: page.name)


def load_migrations() -> list[Traversable]:
    """Return the migrations in their order; the first of them makes version 2."""
    return pages_of("migrations")


def load_functions() -> list[Traversable]:
    """Return the functions that run inside the server; a change of one is a migration too."""
    return pages_of("functions")
