"""The loop that all background services share."""

from __future__ import annotations

import asyncio
import logging

import pytest

from outlast.clock import Clock
from outlast.engine.service import ServiceLoop
from outlast.errors import StoreUnavailable

LONG = 3600.0


class Looked:
    """A service that fails as it is told to, and says when it has looked."""

    def __init__(self, *failures: Exception | None, interval: float = 0.0) -> None:
        self.interval = interval
        self.looks = 0
        self.has_looked = asyncio.Event()
        self._failures = iter(failures)

    async def run_once(self) -> int:
        self.looks += 1
        self.has_looked.set()
        if failure := next(self._failures, None):
            raise failure
        return 0

    async def until(self, looks: int) -> None:
        async with asyncio.timeout(10):
            while self.looks < looks:
                self.has_looked.clear()
                await self.has_looked.wait()


async def test_a_look_that_fails_is_logged_under_its_service_and_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "outlast.engine")
    service = Looked(StoreUnavailable("away"), RuntimeError("a bug"))
    loop = ServiceLoop("lamp", service, Clock())
    loop.start()
    await service.until(3)
    await loop.stop()

    lines = [line for line in caplog.records if line.getMessage() == "a service failed"]
    assert [line.service for line in lines] == ["lamp", "lamp"]  # type: ignore[attr-defined]
    assert lines[0].code == "STORE_UNAVAILABLE"  # type: ignore[attr-defined]
    assert [line.levelname for line in lines] == ["WARNING", "ERROR"]


async def test_a_hint_ends_the_pause() -> None:
    service = Looked(interval=LONG)
    loop = ServiceLoop("lamp", service, Clock())
    loop.start()
    await service.until(1)
    loop.hint()
    await service.until(2)
    await loop.stop()


async def test_a_hint_during_a_look_asks_for_another() -> None:
    class Hinting(Looked):
        async def run_once(self) -> int:
            if self.looks == 0:
                loop.hint()
            return await super().run_once()

    service = Hinting(interval=LONG)
    loop = ServiceLoop("lamp", service, Clock())
    loop.start()
    await service.until(2)
    await loop.stop()


async def test_hints_do_not_make_a_service_look_more_often_than_its_pace() -> None:
    service = Looked(interval=LONG)
    loop = ServiceLoop("lamp", service, Clock(), pace=LONG)
    loop.start()
    await service.until(1)
    loop.hint()
    for _ in range(10):
        await asyncio.sleep(0)
    assert service.looks == 1
    await loop.stop()


async def test_a_stopped_service_leaves_no_task() -> None:
    service = Looked(interval=LONG)
    loop = ServiceLoop("lamp", service, Clock())
    loop.start()
    await service.until(1)
    assert "outlast lamp" in {task.get_name() for task in asyncio.all_tasks()}
    await loop.stop()
    assert "outlast lamp" not in {task.get_name() for task in asyncio.all_tasks()}
