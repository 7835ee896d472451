"""Databases of every release are opened, brought up to date, found sound, and gone on with.

`make golden` makes those of this version; see `make_golden.py`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

sys.path.insert(0, str(Path(__file__).parent))

from golden_shop import LONG, faults, go_on, golden_app, look
from make_golden import GOLDEN, SCHEMA, schema_digest
from postgres_server import packaged_programs

from outlast import Token, __version__
from outlast.stores.postgres.url import read_url

RELEASES = sorted(path.stem.removeprefix("store_") for path in GOLDEN.glob("store_*.json"))


def unpacked(release: str, kind: str) -> bytes:
    return zstandard.decompress((GOLDEN / f"store_{release}.{kind}.zst").read_bytes())


def expected(release: str) -> Any:
    return json.loads((GOLDEN / f"store_{release}.json").read_text())


def test_the_golden_databases_of_this_version_are_of_its_schema() -> None:
    known = expected(__version__)["schema"]
    assert known == schema_digest(), (
        f"the schema has changed: run `make golden`, as long as {__version__} is not released"
    )


@pytest.mark.parametrize("release", RELEASES)
async def test_a_sqlite_file_of_any_release_is_gone_on_with(release: str, path: Path) -> None:
    await asyncio.to_thread(path.write_bytes, unpacked(release, "db"))

    await live_on(f"sqlite:///{path}", expected(release)["sqlite"])


@pytest.mark.parametrize("release", RELEASES)
async def test_a_postgres_schema_of_any_release_is_gone_on_with(release: str, new_url: str) -> None:
    await asyncio.to_thread(restore, unpacked(release, "sql").decode(), new_url)

    await live_on(new_url, expected(release)["postgres"])


def restore(dump: str, url: str) -> None:
    schema, psql = read_url(url).schema, packaged_programs() / "psql"
    subprocess.run(
        [psql, "-q", "-v", "ON_ERROR_STOP=1", url.partition("?")[0]],
        input=f"DROP SCHEMA IF EXISTS {schema} CASCADE;\n{dump.replace(SCHEMA, schema)}",
        stdout=subprocess.DEVNULL,
        check=True,
        encoding="utf-8",
    )


async def live_on(store: str, left: list[dict[str, Any]]) -> None:
    """Open what a release has left, read it all, then end all that is open."""
    async with golden_app(store, works=False) as app:
        assert await look(app) == left
        assert await faults(app) == []
        assert (await app.queues.get("reports")).settings.concurrency == 2
    async with golden_app(store) as app:
        outputs = await go_on(app, [session["id"] for session in left])
        assert outputs == [
            "12 orders in May: yes",
            *("gave 500 back", "on Monday", "the clerk says: on Monday", "on Monday"),
            *("heard 5 characters", f"heard {len(LONG)} characters", "failed"),
        ]
        again = Token("golden token 5 of a shop", "shop")  # of the one that has failed for good
        assert (await (await app.send(again, "hello")).result()).output == "heard 5 characters"
        assert await faults(app) == []
