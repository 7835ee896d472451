"""The loop on which tests run: it forgives a machine that stands still, and nothing else."""

import asyncio
import time

import pytest
from patient_loop import PatientLoop


async def test_tests_run_on_it() -> None:
    assert isinstance(asyncio.get_running_loop(), PatientLoop)


async def test_who_had_to_stand_still_is_not_late() -> None:
    async with asyncio.timeout(0.05):
        time.sleep(0.1)  # noqa: ASYNC251 - so it looks when the machine is given to others
        await asyncio.sleep(0.01)


async def test_who_waits_too_long_is_late() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def be_busy() -> None:
    while True:  # noqa: ASYNC110 - a loop that is never idle
        await asyncio.sleep(0)


async def test_who_is_busy_for_too_long_is_late() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(be_busy(), 0.01)


async def test_a_second_lasts_a_second_at_least() -> None:
    began = time.monotonic()
    await asyncio.sleep(0.05)

    assert time.monotonic() - began >= 0.05
