"""Makes the golden databases of this version: `make golden`, once before each release.

`golden/store_VERSION.db.zst` is a SQLite file, `.sql.zst` a dump of a PostgreSQL schema, each with
the sessions of `golden_shop.py`; the `.json` beside them says what is to be read from them, and of
which schema they are. Until a version is released its files may be made again; then never.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import zstandard
from golden_shop import faults, golden_app, leave, look
from postgres_server import Server, packaged_programs

import outlast.stores.postgres
import outlast.stores.sqlite
from outlast import __version__

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = "golden_schema"
"""The name of the schema in the dump, which stands nowhere else in it."""
UNKNOWN_TO_OLDER = re.compile(r"^(\\(un)?restrict .*|SET transaction_timeout = 0;)\n", re.M)


def schema_digest() -> str:
    """Return what the schemas of both databases are known by."""
    modules = (outlast.stores.sqlite, outlast.stores.postgres)
    pages = [Path(str(m.__file__)).with_name("schema.sql").read_bytes() for m in modules]
    return sha256(b"".join(pages)).hexdigest()


async def make(store: str) -> list[dict[str, Any]]:
    await leave(store)
    async with golden_app(store, works=False) as app:
        found = await faults(app)
        assert not found, found
        found_there: list[dict[str, Any]] = await look(app)
        return found_there


def make_sqlite(directory: Path) -> tuple[bytes, list[dict[str, Any]]]:
    path = directory / "store.db"
    seen = asyncio.run(make(f"sqlite:///{path}"))
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("VACUUM INTO ?", [str(path.with_suffix(".copy"))])
    return path.with_suffix(".copy").read_bytes(), seen


def make_postgres() -> tuple[bytes, list[dict[str, Any]]]:
    server = Server.in_new_directory("outlast-golden-")
    try:
        server.create()
        server.start()
        seen = asyncio.run(make(f"{server.url}?schema={SCHEMA}"))
        program = str(packaged_programs() / "pg_dump")
        dump = [program, "--schema", SCHEMA, "--no-owner", server.url]
        done = subprocess.run(dump, capture_output=True, check=True, encoding="utf-8")
        server.stop()
    finally:
        server.remove()
    return UNKNOWN_TO_OLDER.sub("", done.stdout).encode(), seen


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        database, of_sqlite = make_sqlite(Path(name))
    dump, of_postgres = make_postgres()
    base = GOLDEN / f"store_{__version__}"
    compress = zstandard.ZstdCompressor(level=19).compress
    base.with_name(f"{base.name}.db.zst").write_bytes(compress(database))
    base.with_name(f"{base.name}.sql.zst").write_bytes(compress(dump))
    told = {"schema": schema_digest(), "sqlite": of_sqlite, "postgres": of_postgres}
    base.with_name(f"{base.name}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
