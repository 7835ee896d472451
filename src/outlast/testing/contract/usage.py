"""Usage: what commits add to it, and how it is added up."""

from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.record import NO_USAGE, UsageSum
from outlast.core.usage import DAY, TreeUsage, date_of_day
from outlast.store import Claim, Store, UsageFilter, UsageKey, UsageLine
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    commit,
    delta,
    effect,
    park,
    put,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

ALL = UsageFilter()


def used(tokens: int = 10, model: str = "gpt", **changes: Any) -> r.UsageRecorded:
    """A model call, by default of Ada's, that took some tokens and a tenth of a cent."""
    return r.UsageRecorded(
        **{
            "call_id": "t1.s1",
            "attempt": 1,
            "input_tokens": tokens,
            "output_tokens": 1,
            "model": model,
            "principal": "ada",
            "nano_usd": 1_000_000,
            "prices": "a list",
            **changes,
        }
    )


def calls(number: int, tokens: int = 10) -> UsageSum:
    """Return the sum of so many such calls."""
    return UsageSum(number * tokens, number, model_calls=number, nano_usd=number * 1_000_000)


async def use(store: Store, claim: Claim, *records: r.UsageRecorded, **changes: Any) -> Claim:
    await write(store, commit(claim, *records, **changes))
    return replace(claim, number=claim.number + 1)


async def by(store: Store, key: UsageKey | None, **wanted: Any) -> dict[str, UsageSum]:
    return {line.key: line.total for line in await store.usage.by(key, UsageFilter(**wanted))}


class UsageContract(StoreUnderTest):
    async def test_a_session_without_model_calls_has_used_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta()))
        assert await store.usage.tree(claim.session_id) == TreeUsage()
        assert await store.usage.rows(claim.session_id) == []
        assert await store.usage.by("agent", ALL) == []
        assert await store.usage.by(None, ALL) == []

    async def test_nothing_is_known_of_the_usage_of_a_session_that_does_not_exist(
        self, store: Store, clock: ManualClock
    ) -> None:
        assert await store.usage.tree(clock.new_id("ses")) == TreeUsage()
        assert await store.usage.rows(clock.new_id("ses")) == []

    async def test_commits_add_to_the_usage_of_their_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        claim = await use(store, claim, used(), used(tokens=30))
        claim = await use(store, claim, used(model="opus", unpriced_calls=1, nano_usd=0))
        await write(store, park(claim, used()))
        assert await store.usage.tree(claim.session_id) == TreeUsage(
            *[UsageSum(60, 4, model_calls=4, unpriced_calls=1, nano_usd=3_000_000)] * 2
        )
        assert await by(store, "model") == {
            "gpt": UsageSum(50, 3, model_calls=3, nano_usd=3_000_000),
            "opus": UsageSum(10, 1, model_calls=1, unpriced_calls=1),
        }

    async def test_every_kind_of_token_is_added_up(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        one = used(tokens=2**40, cache_read_tokens=7, cache_write_tokens=9)
        await use(store, claim, one, one, used(remote="far", model_calls=5, unpriced_calls=2))
        [line] = await store.usage.by(None, ALL)
        whole = UsageSum(2**41, 2, 14, 18, 2, 0, 2_000_000)
        assert line == UsageLine(key="", own=whole, remote=UsageSum(10, 1, 0, 0, 5, 2, 1_000_000))

    async def test_a_commit_that_is_refused_or_repeated_adds_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        wanted = commit(claim, used())
        await write(store, wanted)
        await write(store, wanted)  # its acknowledgement was lost
        await write_in_vain(store, replace(commit(claim, used()), fence=claim.fence - 1))
        late = replace(claim, number=claim.number + 1)
        await write(store, commit(late, effects=(effect(claim),)))
        late = replace(late, number=late.number + 1)
        taken = effect(claim, call_id="t1.s1.c2")
        await write_in_vain(store, commit(late, used(), effects=(taken,)))
        assert (await store.usage.tree(claim.session_id)).own == calls(1)

    async def test_usage_is_added_with_all_else_that_a_commit_changes(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        other = await start_and_claim(store, clock, held=[claim])
        results = await store.log.commit(
            [
                commit(claim, put("1"), used()),
                commit(other, used(tokens=20)),
            ]
        )
        assert len(results) == 2
        assert (await store.usage.tree(claim.session_id)).own == calls(1)
        assert (await store.usage.tree(other.session_id)).own == calls(1, tokens=20)

    async def test_a_day_ends_at_midnight_in_utc(self, store: Store, clock: ManualClock) -> None:
        today = clock.now() // DAY + 1
        midnight = today * DAY
        clock.advance(midnight - clock.now())
        claim = await start_and_claim(store, clock)
        claim = await use(store, claim, used(), at=midnight)
        claim = await use(store, claim, used(), used(), at=midnight + DAY)
        await use(store, claim, used(), at=midnight)  # time never goes back within a session
        first, second = (date_of_day(day).isoformat() for day in (today, today + 1))
        assert await by(store, "day") == {first: calls(1), second: calls(3)}
        assert await by(store, "day", since=today + 1) == {second: calls(3)}
        assert await by(store, "day", until=today) == {first: calls(1)}

    async def test_usage_is_added_up_by_what_is_asked_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        two = await start_and_claim(store, clock, tenant="zoo", agent="clerk", held=[one])
        three = await start_and_claim(store, clock, tenant="zoo", agent="vet", held=[one, two])
        await use(store, one, used())
        await use(store, two, used(model="opus"), used(principal="bob"))
        await use(store, three, used(), used(), used(model="opus"))
        assert await by(store, "tenant") == {"acme": calls(1), "zoo": calls(5)}
        assert await by(store, "agent") == {"clerk": calls(3), "vet": calls(3)}
        assert await by(store, "model") == {"gpt": calls(4), "opus": calls(2)}
        assert await by(store, "principal") == {"ada": calls(5), "bob": calls(1)}
        assert await by(store, "session") == {
            one.session_id: calls(1),
            two.session_id: calls(2),
            three.session_id: calls(3),
        }
        assert await by(store, "agent", tenant="zoo") == {"clerk": calls(2), "vet": calls(3)}
        assert await by(store, "model", session_id=two.session_id) == {
            "gpt": calls(1),
            "opus": calls(1),
        }
        assert await by(store, None, agent="vet", model="opus") == {"": calls(1)}
        assert await by(store, "tenant", principal="bob") == {"zoo": calls(1)}

    async def test_usage_is_told_page_by_page(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        await use(store, claim, *(used(model=name) for name in "dbéacZ"))
        first = await store.usage.by("model", ALL, limit=4)
        rest = await store.usage.by("model", ALL, after=first[-1].key, limit=4)
        assert [line.key for line in first] == ["Z", "a", "b", "c"]
        assert [line.key for line in rest] == ["d", "é"]

    async def test_the_usage_of_a_tree_is_that_of_all_that_was_started_in_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        root = await start_and_claim(store, clock)
        child = await start_and_claim(store, clock, parent=root.session_id, held=[root])
        held = [root, child]
        leaf = await start_and_claim(store, clock, parent=child.session_id, held=held)
        await start_and_claim(store, clock, held=[*held, leaf])
        for claim, tokens in ((root, 1), (child, 20), (leaf, 300)):
            await use(store, claim, used(tokens=tokens))
        await use(store, replace(leaf, number=leaf.number + 1), used(tokens=4000, remote="far"))
        tree = await store.usage.tree(root.session_id)
        assert (tree.own.tokens, tree.total.tokens) == (2, 4321 + 4)
        below = await store.usage.tree(leaf.session_id)
        assert (below.own.tokens, below.total.tokens) == (301, 4302)

    async def test_totals_outlive_the_erasure_of_their_sessions(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        two = await start_and_claim(store, clock, tenant="acme", agent="clerk", held=[one])
        await use(store, one, used(), used(model="opus"))
        await use(store, two, used())
        assert await store.log.erase(one.session_id)
        assert await by(store, "session") == {"": calls(2), two.session_id: calls(1)}
        assert await store.log.erase(two.session_id)
        assert await by(store, "session") == {"": calls(3)}
        assert await by(store, "model", tenant="acme", agent="clerk", principal="ada") == {
            "gpt": calls(2),
            "opus": calls(1),
        }
        assert (await store.usage.tree(one.session_id)).own == NO_USAGE
        assert await store.usage.rows(one.session_id) == []

    async def test_names_of_any_length_and_any_characters_can_be_counted(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        long = "\N{SNOWMAN}" * 1000
        await use(store, claim, used(model=long, principal=long, remote="a\0b"), used(model="\0"))
        assert len(await store.usage.rows(claim.session_id)) == 2
        assert await by(store, None) == {"": calls(2)}
