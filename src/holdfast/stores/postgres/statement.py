"""The SQL of this store: files beside this one, each a page of named statements.

In the files the schema is called `holdfast`; here it gets the name that the URL gives it.
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

HERE = files("holdfast.stores.postgres")
NAME = "-- name: "
PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
SCHEMA = re.compile(r"\bholdfast(?=[.;])")

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
        values = [params[name] for name in self.names]
        return Statement(
            self.text,
            [to_wire(value) for value in values],
            [BYTEA if isinstance(value, bytes) else UNKNOWN for value in values],
            [BINARY if isinstance(value, bytes) else TEXT for value in values],
        )


class Statement(NamedTuple):
    """A query with its values, as the driver takes it."""

    text: bytes
    values: list[Value]
    types: list[int]
    formats: list[int]


def to_wire(value: Any) -> Value:
    """Return a value as it is sent: bytes as they are, all else as text."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()


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
    return sorted((HERE / folder).iterdir(), key=lambda page: page.name)


def load_migrations() -> list[Traversable]:
    """Return the migrations in their order; the first makes an empty schema version 1."""
    return pages_of("migrations")


def load_functions() -> list[Traversable]:
    """Return what runs inside the server, as of today; a change of it is a migration too."""
    return pages_of("functions")
