"""Budgets: what commits reserve and spend of them, and what they refuse."""

from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.amount import (
    DAILY,
    NO_LIMITS,
    NOTHING,
    Amounts,
    BudgetKey,
    BudgetState,
    BudgetTerms,
)
from outlast.core.usage import day_of
from outlast.store import BudgetUse, Claim, Committed, Refused, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    TENANT,
    commit,
    delta,
    park,
    places,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

OF_TENANT = BudgetKey("tenant")
OF_ADA = BudgetKey("principal", "ada")
PER_DAY = BudgetKey("tenant", day=DAILY)


def terms(**limits: int) -> BudgetTerms:
    return BudgetTerms(replace(NO_LIMITS, **limits))


def reserve(tokens: int = 60, *keys: BudgetKey) -> r.BudgetCharged:
    """A model call that reserves so many tokens, by default of the tenant's budget."""
    return r.BudgetCharged(
        call_id="t1.s1", budgets=keys or (OF_TENANT,), reserved=Amounts(tokens=tokens)
    )


def settle(reserved: int = 60, spent: int = 40, *keys: BudgetKey) -> r.BudgetCharged:
    return r.BudgetCharged(
        call_id="t1.s1",
        budgets=keys or (OF_TENANT,),
        reserved=Amounts(tokens=-reserved),
        spent=Amounts(tokens=spent),
    )


async def add(store: Store, claim: Claim, *records: Any, **changes: Any) -> Claim:
    """Commit what may be refused for want of a budget, and was not."""
    await write(store, commit(claim, *records, **{"asks_budgets": True, **changes}))
    return replace(claim, number=claim.number + 1)


async def stands(store: Store, key: BudgetKey = OF_TENANT) -> BudgetState:
    (state,) = await store.budget.find_budgets(TENANT, [key])
    return state


class BudgetContract(StoreUnderTest):
    async def test_a_budget_that_was_never_set_is_none(self, store: Store) -> None:
        assert await store.budget.newest_budget() == 0
        assert await store.budget.find_budgets(TENANT, [OF_TENANT, PER_DAY, OF_ADA]) == []
        assert await store.budget.list_budgets() == []

    async def test_a_budget_is_set_and_listed_with_a_revision_of_its_own(
        self, store: Store
    ) -> None:
        one = await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=0)
        other = await store.budget.set_budget("acme", OF_ADA, terms(steps=3), expected=None)
        assert one
        assert other
        assert 0 < one.revision < other.revision == await store.budget.newest_budget()
        assert await store.budget.list_budgets() == [other, one]
        assert await store.budget.list_budgets(after=other) == [one]
        assert await store.budget.list_budgets("acme") == [other]
        assert await store.budget.find_budgets("acme", [OF_TENANT, OF_ADA]) == [
            BudgetState(OF_ADA, terms(steps=3))
        ]

    async def test_a_budget_is_only_changed_by_who_knows_its_revision(self, store: Store) -> None:
        first = await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=1), expected=0)
        assert first
        assert await store.budget.set_budget(TENANT, OF_TENANT, None, expected=0) is None
        assert (await stands(store)).terms == terms(tokens=1)
        changed = await store.budget.set_budget(
            TENANT, OF_TENANT, terms(tokens=2), expected=first.revision
        )
        assert changed
        assert (await stands(store)).terms == terms(tokens=2)

    async def test_a_budget_that_is_taken_away_keeps_what_was_spent(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=None)
        claim = await add(store, await start_and_claim(store, clock), reserve())
        assert await store.budget.set_budget(TENANT, OF_TENANT, None, expected=None)
        assert await store.budget.find_budgets(TENANT, [OF_TENANT]) == []
        assert await store.budget.list_budgets() == []
        claim = await add(store, claim, settle())
        await add(store, claim, reserve(1000))
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=50), expected=None)
        state = await stands(store)
        assert (state.reserved.tokens, state.spent.tokens) == (1000, 40)

    async def test_what_is_reserved_is_given_back_and_spent_in_commits(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=None)
        claim = await add(store, await start_and_claim(store, clock), reserve())
        assert (await stands(store)).reserved == Amounts(tokens=60)
        await write(store, commit(claim, settle()))
        state = await stands(store)
        assert (state.reserved, state.spent) == (NOTHING, Amounts(tokens=40))
        assert await store.budget.budget_uses(claim.session_id) == [
            BudgetUse(OF_TENANT, NOTHING, Amounts(tokens=40))
        ]

    async def test_two_sessions_cannot_reserve_the_same(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=None)
        claims = [await start_and_claim(store, clock)]
        for _ in range(3):
            claims.append(await start_and_claim(store, clock, held=claims))
        results = await store.log.commit(
            [commit(claim, reserve(), asks_budgets=True) for claim in claims]
        )
        assert sum(isinstance(result, Committed) for result in results) == 1
        refused = [result for result in results if isinstance(result, Refused)]
        assert {result.reason for result in refused} == {"budget"}
        assert (await stands(store)).reserved == Amounts(tokens=60)

    async def test_a_refused_commit_changes_no_other_budget(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_ADA, terms(tokens=100), expected=None)
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=10), expected=None)
        claim = await start_and_claim(store, clock)
        wanted = commit(claim, delta(), reserve(60, OF_ADA, OF_TENANT), asks_budgets=True)
        assert (await write_in_vain(store, wanted)).reason == "budget"
        assert not (await stands(store, OF_ADA)).reserved
        assert await store.budget.budget_uses(claim.session_id) == []
        await write(store, commit(claim, delta()))  # its number still counts

    async def test_what_is_settled_is_never_refused(self, store: Store, clock: ManualClock) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=None)
        claim = await add(store, await start_and_claim(store, clock), reserve())
        await add(store, claim, settle(60, 400))
        assert (await stands(store)).left.tokens == -300

    async def test_of_a_budget_only_what_is_limited_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tool_calls=1), expected=None)
        claim = await add(store, await start_and_claim(store, clock), reserve(10**12))
        call = r.BudgetCharged(call_id="", budgets=(OF_TENANT,), spent=Amounts(tool_calls=1))
        claim = await add(store, claim, call)
        wanted = commit(claim, call, asks_budgets=True)
        assert (await write_in_vain(store, wanted)).reason == "budget"

    async def test_a_daily_budget_begins_anew_each_day(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, PER_DAY, terms(tokens=100), expected=None)
        today = replace(PER_DAY, day=day_of(clock.now()))
        tomorrow = replace(PER_DAY, day=today.day + 1)
        assert await stands(store, today) == BudgetState(today, terms(tokens=100))
        claim = await add(store, await start_and_claim(store, clock), reserve(60, today))
        claim = await add(store, claim, reserve(60, tomorrow))
        assert (await stands(store, today)).free.tokens == 40
        assert (await stands(store, tomorrow)).free.tokens == 40
        wanted = commit(claim, reserve(60, today), asks_budgets=True)
        assert (await write_in_vain(store, wanted)).reason == "budget"
        assert [each.reserved.tokens for each in await store.budget.list_budgets()] == [60]
        await store.budget.set_budget(TENANT, PER_DAY, terms(tokens=200), expected=None)
        assert (await stands(store, today)).free.tokens == 140

    async def test_a_session_has_the_budget_that_its_log_says(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        own = BudgetKey("session", claim.session_id)

        def asking(tokens: int) -> Any:
            wanted = commit(claim, reserve(tokens, own), asks_budgets=True)
            (change,) = wanted.budgets
            return replace(wanted, budgets=(replace(change, terms=terms(tokens=100)),))

        assert (await write_in_vain(store, asking(101))).reason == "budget"
        await write(store, asking(60))
        claim = replace(claim, number=claim.number + 1)
        assert (await write_in_vain(store, asking(60))).reason == "budget"
        more = r.BudgetExtended(budget=own, by=Amounts(tokens=100))
        await write(store, commit(claim, more))
        assert (await stands(store, own)).terms == terms(tokens=200)
        assert (await stands(store, own)).free.tokens == 140

    async def test_a_budget_that_was_taken_from_a_session_is_not_brought_back_by_its_log(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        own = BudgetKey("session", claim.session_id)
        for tokens in (60, 1000):
            wanted = commit(claim, reserve(tokens, own), asks_budgets=True)
            (change,) = wanted.budgets
            await write(store, replace(wanted, budgets=(replace(change, terms=terms(tokens=100)),)))
            claim = replace(claim, number=claim.number + 1)
            await store.budget.set_budget(TENANT, own, None, expected=None)
        assert (await stands(store, own)).terms.limits == NO_LIMITS
        assert await store.budget.list_budgets() == []

    async def test_a_budget_is_the_sum_of_what_its_sessions_use(
        self, store: Store, clock: ManualClock
    ) -> None:
        daily = BudgetKey("tenant", day=day_of(clock.now()))
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=1000), expected=None)
        claim = await add(store, await start_and_claim(store, clock), reserve(30, OF_TENANT, daily))
        other = await add(store, await start_and_claim(store, clock, held=[claim]), reserve(20))
        await add(store, other, settle(20, 7))
        assert await store.budget.budget_mismatches() == []
        assert await store.budget.balance_budgets() == 0
        assert await store.log.erase(claim.session_id)
        assert await store.budget.budget_mismatches() == []

    async def test_a_lane_that_waits_for_a_budget_is_ready_when_something_comes_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=None)
        holder = await add(store, await start_and_claim(store, clock), reserve())
        waiter = await start_and_claim(store, clock, held=[holder])
        seen = ((OF_TENANT, (await stands(store)).returns),)
        await write(store, park(waiter, delta(), awaits_budgets=seen))
        assert await store.work.claim("w1", 10, held=places([holder])) == []
        await write(store, commit(holder, settle()))
        (again,) = await store.work.claim("w1", 10, held=places([holder]))
        assert again.session_id == waiter.session_id

    async def test_a_lane_does_not_wait_for_what_has_come_back_already(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=None)
        holder = await add(store, await start_and_claim(store, clock), reserve())
        waiter = await start_and_claim(store, clock, held=[holder])
        seen = ((OF_TENANT, (await stands(store)).returns),)
        await write(store, commit(holder, settle()))
        assert (await write_in_vain(store, park(waiter, awaits_budgets=seen))).reason == "arrivals"

    async def test_a_lane_that_waits_for_a_budget_is_ready_when_it_is_raised(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, PER_DAY, terms(tokens=10), expected=None)
        claim = await start_and_claim(store, clock)
        seen = ((replace(PER_DAY, day=day_of(clock.now())), 0),)
        await write(store, park(claim, awaits_budgets=seen))
        assert await store.work.claim("w1", 10) == []
        await store.budget.set_budget(TENANT, PER_DAY, terms(tokens=20), expected=None)
        assert len(await store.work.claim("w1", 10)) == 1

    async def test_an_erased_session_leaves_nothing_reserved_and_what_it_spent(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.budget.set_budget(TENANT, OF_TENANT, terms(tokens=100), expected=None)
        claim = await start_and_claim(store, clock)
        waiter = await start_and_claim(store, clock, held=[claim])
        claim = await add(store, claim, reserve(30), settle(0, 7))
        seen = ((OF_TENANT, (await stands(store)).returns),)
        await write(store, park(waiter, awaits_budgets=seen))
        assert await store.log.erase(claim.session_id)
        state = await stands(store)
        assert (state.reserved, state.spent) == (NOTHING, Amounts(tokens=7))
        assert await store.budget.budget_uses(claim.session_id) == []
        assert len(await store.work.claim("w1", 10)) == 1
