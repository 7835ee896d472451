"""Schedules on every database: two fleets, one session per instant."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from timepiece import at, hourly, messages, row, timekeeper

from outlast.store import Store
from outlast.stores.url import open_store
from outlast.testing.clock import ManualClock


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_an_instant_fires_once_on_every_database(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sqlite = f"sqlite:///{tmp_path}/outlast.db"
    url = sqlite if database == "sqlite" else str(request.getfixturevalue("postgres_url"))
    clock = ManualClock(at(8.5))
    stores: list[Store] = [open_store(url, clock) for _ in range(2)]
    for store in stores:
        await store.migrate()
    schedules = [hourly(overlap="cancel", catch_up="all"), hourly(name="half", overlap="cancel")]
    keepers = [timekeeper(store, clock, *schedules) for store in stores for _ in range(2)]

    for hour in (8.5, 9, 10, 11):
        clock.set(at(hour))
        await asyncio.gather(*(keeper.run_once() for keeper in keepers))

    assert sorted(await messages(stores[0])) == sorted(["09:00", "10:00", "11:00"] * 2)
    assert (await row(stores[1])).next_at == at(12)
    for store in stores:
        await store.close()
