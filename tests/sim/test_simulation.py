"""Some seeds; what a seed is worth; and proof that the checker can fail."""

import os
import subprocess
import sys
from collections.abc import Callable

import broken
import pytest
from msgspec.structs import replace

from outlast import Agent, Context, tool
from outlast.core import record as r
from outlast.core.breaker import Breaker
from outlast.core.fold import LANE_FACTS, Step
from outlast.engine import lane_folds
from outlast.integration.channel.sender import ChannelSenders
from outlast.store import Store
from outlast.testing import ScriptedModel, Simulation, call, say
from outlast.testing.simulation import PROMISES
from outlast.testing.simulation import worker as workers
from outlast.testing.simulation.fleet import run_twice
from outlast.testing.simulation.model import (
    CallFacts,
    DeliveryFacts,
    may_end,
    may_settle,
    may_start,
)

SEEDS = 20
CHUNK = 5


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_in_any_weather(first: int) -> None:
    check_each(first)


@pytest.mark.parametrize("first", range(SEEDS, SEEDS + 10, CHUNK))
def test_every_promise_is_kept_where_lanes_go_on_from_snapshots(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_folds, "SNAPSHOT_OVER", 300)  # that of a session, not of a long one
    monkeypatch.setattr(workers, "SETTINGS", replace(workers.SETTINGS, lane_cache=0))
    check_each(first)


def check_each(first: int) -> None:
    """Simulate some seeds, the first of them twice; `make sim` does so with every seed."""
    run_twice(first).check()
    for seed in range(first + 1, first + CHUNK):
        Simulation(seed).run().check()


def test_all_ten_promises_are_checked() -> None:
    numbered = [number for name in PROMISES if (number := name.partition(" ")[0]).isdigit()]
    assert numbered == [str(n) for n in range(1, 11)]


def test_a_seed_is_the_same_in_every_process() -> None:
    program = "from outlast.testing import Simulation; print(Simulation(3).run().digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(digests) == 1


def test_another_seed_is_another_story() -> None:
    assert Simulation(1).run().digest != Simulation(2).run().digest


def test_the_command_sums_up_many_seeds_and_shows_one() -> None:
    def simulate(*options: str) -> str:
        command = [sys.executable, "-m", "outlast.testing.simulation", *options]
        return subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout

    assert "every promise was kept" in simulate("--seeds", "2", "--jobs", "1")
    assert "seed 1: " in simulate("--seed", "1").splitlines()[-1]


# The checker can fail


# With the seed to begin with, at which it is soon found out.
BROKEN: list[tuple[Callable[[Store], Store], str, int]] = [
    (broken.TearsCommits, "1 ", 0),
    (broken.CommitsTwice, "2 ", 1),
    (broken.MissesArrivals, "3 ", 20),
    (broken.ForgetsOutcomes, "4 ", 22),
    (broken.ForgetsStarts, "5 ", 31),
    (broken.IgnoresFences, "6 ", 34),
    (broken.LosesAdmissions, "7 ", 4),
    (broken.SkipsEvents, "8 ", 0),
    (broken.KeepsLanes, "9 ", 6),
    (broken.KeepsFatBooks, "10 ", 0),
    (broken.Mishears, "models ", 0),
    (broken.BooksAtOnce, "transactions ", 2),
    (broken.GrantsEverything, "limits ", 2),
    (broken.IgnoresModelLimits, "limits ", 2),
    (broken.IgnoresQueues, "queues ", 0),
    (broken.KeepsOldSettings, "queues ", 1),
    (broken.ForgetsPins, "deployments ", 4),
    (broken.KeepsTheRetired, "deployments ", 4),
    (broken.IgnoresAgentRates, "limits ", 2),
    (broken.IgnoresAgentLimits, "limits ", 15),
    (broken.LosesLetters, "children ", 0),
    (broken.BearsTwins, "children ", 2),
    (broken.RunsAhead, "waits ", 2),
    (broken.ForgetsDeadlines, "waits ", 0),
    (broken.OpensAnew, "waits ", 15),
    (broken.PutsWordsIntoMouths, "callers ", 1),
    (broken.TakesNoForYes, "sign-ins ", 56),
    (broken.KeepsPermits, "outages ", 1),
    (broken.ForgetsRules, "rules ", 4),
    (broken.LosesUsage, "usage ", 0),
    (broken.LosesSpending, "budgets ", 2),
    (broken.OverwritesState, "state ", 1),
    (broken.ForgetsTags, "tags ", 0),
    (broken.KeepsReservations, "budgets ", 2),
    (broken.NeverShortens, "views ", 16),
    (broken.HidesWhatChildrenUsed, "usage ", 0),
]


LOGS_BROKEN = {"runs"}
"""That the checker of these finds what is wrong is held by broken logs, in `test_workflows.py`."""
SENDERS_BROKEN = {"anchors"}
"""And of these by a broken sender of channels, below: no store knows threads."""


def test_every_promise_has_a_store_that_breaks_it() -> None:
    broken_ones = {promise.strip() for _, promise, _ in BROKEN}
    assert {
        name.partition(" ")[0] for name in PROMISES
    } == broken_ones | LOGS_BROKEN | SENDERS_BROKEN


@pytest.mark.parametrize(("wrap", "promise", "first"), BROKEN)
def test_a_broken_store_is_found_out(
    wrap: Callable[[Store], Store], promise: str, first: int
) -> None:
    found: set[str] = set()
    for seed in range(first, first + 40):
        report = Simulation(seed, wrap=wrap).run()
        found |= {violation.promise for violation in report.violations}
        if any(name.startswith(promise) for name in found):
            return
    raise AssertionError(f"only {sorted(found)} were said to be broken")


# With the kind of record whose place in the fold it takes, what it is told, and the first seed.
BROKEN_FOLDS: list[tuple[Step, type, str, int]] = [
    (broken.forgets_with_each_message, r.TurnStarted, "which was known", 3),
    (broken.forgets_with_each_try, r.ProviderStillUnavailable, "it was away since", 21),
    (broken.loses_patience, r.ProviderUnavailable, "there was patience left", 0),
    (broken.keeps_the_news, r.ProviderAvailable, "and was not away", 0),
]


@pytest.mark.parametrize(("wrong", "kind", "told", "first"), BROKEN_FOLDS)
def test_a_broken_fold_of_outages_is_found_out(
    wrong: Step, kind: type, told: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LANE_FACTS, kind, wrong)
    look_for(told, first)


def test_a_breaker_that_does_not_pause_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Breaker, "is_paused", broken.cannot_wait)
    look_for("ms too early", 1)


def test_events_that_are_told_in_the_newest_thread_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def has_never_moved(*_: object) -> bool:
        return False

    monkeypatch.setattr(ChannelSenders, "_moved_later", has_never_moved)
    seeds = iter(range(38, 58))
    broken_by = (v for seed in seeds for v in Simulation(seed).run().violations)
    assert any("and its session was anchored in" in violation.what for violation in broken_by)


def look_for(told: str, first: int) -> None:
    """Simulate until something is said about outages."""
    for seed in range(first, first + 20):
        violations = Simulation(seed).run().violations
        if any(told in v.what for v in violations if v.promise.startswith("outages ")):
            return
    raise AssertionError(f"nobody was told: {told}")


def test_a_report_says_how_to_replay_it() -> None:
    report = Simulation(0, wrap=broken.LosesAdmissions).run()

    with pytest.raises(AssertionError, match=r"replay: .* --seed 0$"):
        report.check()


# Agents of one's own


def test_agents_of_ones_own_can_be_simulated() -> None:
    @tool(idempotent=True)
    async def charge(ctx: Context, order: int) -> str:
        return "paid"

    model = ScriptedModel(lambda request: turn(request.call_id))
    shop = Agent("shop", model, tools=[charge])

    report = Simulation(5, agents=[shop], messages=["I take order 17"]).run()

    report.check()
    assert report.sessions > 0
    assert any("charge" in line for line in report.trace())


def turn(call_id: str):  # type: ignore[no-untyped-def]
    return call("charge", order=17) if call_id.endswith(".s1") else say("Order 17 is paid.")


# The model


@pytest.mark.parametrize("kind", ["report", "ask", "fail"])
def test_an_interrupted_call_may_not_start_again_by_itself(kind: str) -> None:
    assert may_start(CallFacts(on_interrupt=kind, starts=2, cuts=1)) == 1


def test_a_call_that_says_so_may_start_again_after_each_cut() -> None:
    assert may_start(CallFacts(on_interrupt="rerun", starts=3, cuts=2)) == 3


def test_a_human_may_have_a_call_run_again() -> None:
    assert may_start(CallFacts(on_interrupt="ask", starts=2, cuts=1, allowed=1)) == 2


def test_a_call_may_only_have_returned_what_it_returned() -> None:
    facts = CallFacts(on_interrupt="report", starts=1, returned=frozenset({'"paid"'}))

    assert may_end(facts, "completed", '"paid"')
    assert not may_end(facts, "completed", '"lost"')


def test_a_message_may_be_cancelled_only_where_somebody_stopped_something() -> None:
    assert may_settle(DeliveryFacts(kind="message", stopped=False, over=False)) == {
        "completed",
        "failed",
    }
    assert "cancelled" in may_settle(DeliveryFacts(kind="message", stopped=True, over=False))
    assert "refused" in may_settle(DeliveryFacts(kind="message", stopped=False, over=True))
