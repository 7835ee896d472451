"""Wake-ups: a process learns by instants and by hints that there is something to do."""

import asyncio
from collections.abc import Callable

from outlast.store import Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    message,
    new_session,
    park,
    start_and_claim,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

TIMEOUT = 10.0


class ContractListener:
    """Remembers what it heard, and lets a test wait until it has heard it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []
        self._news = asyncio.Event()

    def __call__(self, session_id: str, arrived: bool) -> None:
        asyncio.get_running_loop()  # raises in any other thread
        self.heard.append((session_id, arrived))
        self._news.set()

    async def wait_for(self, is_it: Callable[[str, bool], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not any(is_it(*hint) for hint in self.heard):
                self._news.clear()
                await self._news.wait()


def fail(session_id: str, arrived: bool) -> None:
    raise ZeroDivisionError


class WakeUpContract(StoreUnderTest):
    async def test_nothing_becomes_ready_where_everything_waits(
        self, store: Store, clock: ManualClock
    ) -> None:
        assert await store.work.next_ready_at(0) is None
        claim = await start_and_claim(store, clock)
        await write(store, park(claim))
        assert await store.work.next_ready_at(0) is None

    async def test_the_first_instant_at_which_a_lane_gets_ready_is_known(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one])
        await write(store, park(one, ready_at=clock.now() + 900))
        await write(store, park(two, ready_at=clock.now() + 700))
        assert await store.work.next_ready_at(clock.now()) == clock.now() + 700
        assert await store.work.next_ready_at(clock.now() + 700) == clock.now() + 900
        assert await store.work.next_ready_at(clock.now() + 900) is None

    async def test_who_owns_lanes_can_ask_for_which_of_them_something_arrived(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one])
        heads = [(one.session_id, "main", 2), (two.session_id, "main", 2)]
        assert list(await store.work.find_arrivals(heads)) == []
        await admit(store, message(clock, two.session_id))
        await admit(store, message(clock, one.session_id, lane="side"))
        assert list(await store.work.find_arrivals(heads)) == [(two.session_id, "main")]
        heads = [(one.session_id, "side", 2), (two.session_id, "main", 3), ("ses_none", "main", 0)]
        assert list(await store.work.find_arrivals(heads)) == [(one.session_id, "side")]
        assert list(await store.work.find_arrivals([])) == []

    async def test_an_arrival_is_ready_when_it_arrives(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, ready_at=clock.now() + 900))
        await admit(store, message(clock, claim.session_id))
        assert await store.work.next_ready_at(clock.now() - 1) == clock.now()
        assert await store.work.next_ready_at(clock.now()) is None

    async def test_a_lane_whose_owner_lives_is_not_waited_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta(), ready_at=clock.now() + 500))
        assert await store.work.next_ready_at(clock.now()) is None

    async def test_a_listener_hears_of_arrivals(self, store: Store, clock: ManualClock) -> None:
        listener = ContractListener()
        stop = store.work.listen(listener)
        session = (await admit(store, new_session(clock))).session_id
        await listener.wait_for(lambda heard, arrived: heard in (session, "") and arrived)
        stop()

    async def test_a_listener_hears_of_commits(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        listener = ContractListener()
        stop = store.work.listen(listener)
        await write(store, commit(claim, delta()))
        await listener.wait_for(lambda heard, _: heard in (claim.session_id, ""))
        stop()

    async def test_a_listener_hears_of_lanes_that_were_given_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        listener = ContractListener()
        stop = store.work.listen(listener)
        await write(store, park(claim, ready_at=clock.now()))
        await listener.wait_for(lambda heard, arrived: heard in (claim.session_id, "") and arrived)
        stop()

    async def test_a_listener_to_one_session_hears_of_no_other(
        self, store: Store, clock: ManualClock
    ) -> None:
        mine = (await admit(store, new_session(clock))).session_id
        other = (await admit(store, new_session(clock))).session_id
        listener = ContractListener()
        stop = store.work.listen(listener, mine)
        await admit(store, message(clock, other))
        await admit(store, message(clock, mine))
        await listener.wait_for(lambda heard, arrived: heard in (mine, "") and arrived)
        assert other not in {session_id for session_id, _ in listener.heard}
        stop()

    async def test_a_listener_that_fails_is_in_nobodys_way(
        self, store: Store, clock: ManualClock
    ) -> None:
        """Neither of who writes nor of who listens as well; its event loop is told of it."""
        claim = await start_and_claim(store, clock)
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
        listener = ContractListener()
        stops = [store.work.listen(fail), store.work.listen(listener)]
        for number in range(2):
            await write(store, commit(claim, delta(), number=number))
        await listener.wait_for(lambda heard, _: heard in (claim.session_id, ""))
        assert failures
        for stop in stops:
            stop()

    async def test_a_listener_that_stopped_hears_no_more(
        self, store: Store, clock: ManualClock
    ) -> None:
        deaf, listener = ContractListener(), ContractListener()
        store.work.listen(deaf)()
        stop = store.work.listen(listener)
        await admit(store, new_session(clock))
        await listener.wait_for(lambda _, arrived: arrived)
        stop()
        stop()
        assert deaf.heard == []
