import asyncio

import pytest

from outlast.testing.simulation.loop import NothingWillHappen, ProcessLife, VirtualLoop


async def count(ticks: list[float], pause: float = 1.0) -> None:
    while True:
        ticks.append(asyncio.get_running_loop().time())
        await asyncio.sleep(pause)


@pytest.fixture
def loop():  # type: ignore[no-untyped-def]
    loop = VirtualLoop()
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_week_passes_at_once(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.sleep(7 * 86_400))

    assert loop.time() == pytest.approx(7 * 86_400)


def test_a_life_that_is_stopped_stands_still_and_goes_on_where_it_was(loop: VirtualLoop) -> None:
    life, ticks = ProcessLife("one"), list[float]()
    loop.create_task(count(ticks), context=life.context())
    loop.run_until_complete(asyncio.sleep(2.5))
    life.stop()
    loop.run_until_complete(asyncio.sleep(10))

    assert ticks == pytest.approx([0, 1, 2])

    life.go_on(loop)
    loop.run_until_complete(asyncio.sleep(1.1))

    assert ticks == pytest.approx([0, 1, 2, 12.5, 13.5])


def test_what_a_life_starts_belongs_to_it(loop: VirtualLoop) -> None:
    life, ticks = ProcessLife("one"), list[float]()

    async def parent() -> None:
        child = asyncio.create_task(count(ticks))
        await child

    loop.create_task(parent(), context=life.context())
    loop.run_until_complete(asyncio.sleep(0.5))
    life.stop()
    loop.run_until_complete(asyncio.sleep(5))

    assert ticks == [0]
    life.go_on(loop)


def test_a_timeout_that_was_called_off_while_its_life_stood_still_does_not_strike(
    loop: VirtualLoop,
) -> None:
    life, told = ProcessLife("one"), list[str]()
    arrived = asyncio.Event()

    async def wait() -> None:
        try:
            async with asyncio.timeout(1.0):
                await arrived.wait()
            told.append("arrived")
        except TimeoutError:
            told.append("too late")

    loop.create_task(wait(), context=life.context())
    loop.run_until_complete(asyncio.sleep(0.5))
    life.stop()
    arrived.set()
    loop.run_until_complete(asyncio.sleep(5))
    life.go_on(loop)
    loop.run_until_complete(asyncio.sleep(0.1))

    assert told == ["arrived"]


def test_nobody_waits_for_what_can_never_come(loop: VirtualLoop) -> None:
    with pytest.raises(NothingWillHappen):
        loop.run_until_complete(asyncio.Event().wait())
