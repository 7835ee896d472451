"""An agent with several models: which one is asked, and when, as the core decides it."""

from __future__ import annotations

from msgspec.structs import replace
from unit.history import (
    OOPS,
    Log,
    crash,
    message,
    parks,
    returns,
    said,
    settles,
    starts,
    step_begins,
    turn_begins,
    turn_fails,
    wants,
)

from outlast.core import record as r
from outlast.core.action import AnyAction, CallModel, FailTurn, Park, Sleep
from outlast.core.decide import decide
from outlast.core.limit import freed_by
from outlast.core.message import ModelAnswer, Text, UserMessage
from outlast.core.outcome import opening, outcome
from outlast.core.policy import HOUR, MINUTE, SECOND, Policy
from outlast.core.record import AnyRecord, Failure
from outlast.core.result import Answered, ModelFailed, TurnStopped, Usage
from outlast.core.view import View

NOW = 1000
TWO = Policy(models=("a", "b"), max_attempts=2)
THREE = replace(TWO, models=("a", "b", "c"))
BUSY = Failure("BUSY", "come back")
TRANSIENT = ModelFailed(OOPS, "transient", backoff=10)
BLOCKED = ModelFailed(Failure("REJECTED", "wrong key"), "blocked", backoff=MINUTE)


def later(seconds: int) -> ModelFailed:
    return ModelFailed(BUSY, "transient", retry_after=seconds * SECOND, backoff=10)


def asked(log: Log, policy: Policy = TWO, now: int = NOW) -> CallModel:
    """Begin the model call that comes next."""
    action = decide(log.lane, policy, now)
    assert isinstance(action, CallModel)
    assert not action.running
    log.add(*opening(log.lane, action, now))
    return action


def fails(log: Log, how: ModelFailed, policy: Policy = TWO, now: int = NOW) -> AnyRecord:
    """Have the model call that is under way fail; return what is written down of it last."""
    action = decide(log.lane, policy, now)
    records = outcome(log.lane, action, how, policy, now)
    log.add(*records)
    return records[-1]


def next_of(log: Log, policy: Policy = TWO, now: int = NOW) -> AnyAction:
    return decide(log.lane, policy, now)


def begun(policy: Policy = TWO) -> Log:
    log = Log(message())
    asked(log, policy)
    return log


# From one to the next


def test_a_turn_begins_with_the_first_model_and_says_so() -> None:
    log = Log(message())

    action = asked(log)

    assert action.model == "a"
    assert log.entries[-1].record == r.ModelStarted(call_id="t1.s1", attempt=1, model="a")


def test_a_model_is_left_for_the_next_when_its_tries_are_used_up() -> None:
    log = begun()
    assert isinstance(fails(log, TRANSIENT), r.ModelRetrying)
    assert isinstance(next_of(log), Sleep)
    asked(log, now=NOW + 10)

    left = fails(log, TRANSIENT, now=NOW + 20)

    assert left == r.ModelSwitched(
        call_id="t1.s1", attempt=2, left="a", model="b", error=OOPS, since=NOW
    )
    assert (action := asked(log, now=NOW + 20)).model == "b"
    assert action.attempt == 3


def test_each_model_has_all_its_tries() -> None:
    log = begun()
    fails(log, BLOCKED)
    asked(log)

    assert isinstance(fails(log, TRANSIENT), r.ModelRetrying)
    assert asked(log, now=NOW + 10).model == "b"


def test_what_does_not_pass_by_itself_or_soon_is_left_at_once() -> None:
    for how in (BLOCKED, later(6)):
        log = begun()

        left = fails(log, how)

        assert isinstance(left, r.ModelSwitched)
        assert (left.error, left.blocked) == (how.error, how.kind == "blocked")
        assert left.retry_at == (NOW + 6 * SECOND if how.retry_after else 0)


def test_a_failure_that_is_the_conversations_own_is_no_reason_for_another_model() -> None:
    for kind in ("recoverable", "structural"):
        log = begun()

        assert isinstance(fails(log, ModelFailed(OOPS, kind)), r.StepFailed)
        assert isinstance(next_of(log), FailTurn)


def test_a_turn_stays_with_its_model_and_the_next_one_begins_with_the_first() -> None:
    log = begun()
    fails(log, BLOCKED)
    asked(log)
    log.add(*wants("find"), starts(), returns())

    assert asked(log).model == "b"
    log.add(r.MessageCompleted(call_id="t1.s2", attempt=1, parts=(Text("done"),)))
    log.add(r.TurnCompleted(turn="t1", call_id="t1.s2"), settles(), message("d2"))
    assert asked(log).model == "a"


def test_a_fallback_that_fails_in_a_later_step_is_left_for_the_first() -> None:
    log = begun()
    fails(log, BLOCKED)
    asked(log)
    log.add(*wants("find"), starts(), returns())
    asked(log)

    fails(log, BLOCKED)

    assert asked(log).model == "a"
    assert isinstance(fails(log, BLOCKED), r.ProviderUnavailable)


def test_a_worker_that_dies_after_the_switch_leaves_the_fallback_to_the_next() -> None:
    log = begun()
    fails(log, BLOCKED)
    log.add(crash())
    assert asked(log).model == "b"

    log.add(crash())

    assert asked(log).model == "b"


def test_a_model_that_the_code_has_no_longer_is_the_first() -> None:
    log = begun(THREE)
    fails(log, BLOCKED, THREE)
    fails_again = asked(log, THREE)
    assert fails_again.model == "b"
    log.add(crash())

    for models, first in ((("a",), "a"), (("x", "y"), "x"), ((), "")):
        older = replace(TWO, models=models)
        action = decide(log.lane, older, NOW)
        assert isinstance(action, CallModel)
        assert action.model == first
        died = Log()
        died.entries = [*log.entries]
        asked(died, older)
        assert isinstance(fails(died, BLOCKED, older), r.ProviderUnavailable | r.ModelSwitched)


def test_a_model_that_is_left_frees_its_permit() -> None:
    left = r.ModelSwitched(call_id="t1.s1", attempt=1, left="a", model="b", error=OOPS, since=1)

    assert freed_by(left, ["t1.s1", "t1.s9"]) == ["t1.s1"]


# What had been said


def test_no_model_goes_on_with_what_another_said() -> None:
    log = begun()
    log.add(said("Once "))
    fails(log, TRANSIENT)
    assert asked(log, now=NOW + 10).keeps  # the same model does
    log.add(said("upon", attempt=2))
    fails(log, TRANSIENT, now=NOW + 20)
    before = len(log.entries)

    action = asked(log, now=NOW + 20)

    assert (action.aborts, action.keeps, action.drops) == (2, False, (1,))
    assert [entry.record for entry in log.entries[before:]] == [
        r.MessageAborted(call_id="t1.s1", attempt=1),
        r.MessageAborted(call_id="t1.s1", attempt=2),
        r.ModelStarted(call_id="t1.s1", attempt=3, model="b"),
    ]
    view = View()
    view.see_all(log.entries, "main")
    assert view.messages == [UserMessage((Text("hello"),))]


def test_new_code_with_another_model_begins_an_answer_anew_too() -> None:
    log = begun()
    log.add(said("Once "), crash())

    same, other = asked_by(log, TWO), asked_by(log, Policy(models=("x",)))

    assert (same.aborts, same.keeps) == (1, True)
    assert (other.aborts, other.keeps) == (1, False)


def asked_by(log: Log, policy: Policy) -> CallModel:
    action = decide(log.lane, policy, NOW)
    assert isinstance(action, CallModel)
    return action


def test_a_turn_that_fails_drops_all_that_was_kept_of_its_answer() -> None:
    log = begun()
    log.add(said("Once "))
    fails(log, TRANSIENT)
    asked(log, now=NOW + 10)
    failed = FailTurn(turn="t1", error=OOPS)

    log.add(*outcome(log.lane, failed, TurnStopped(), TWO, NOW + 20))

    view = View()
    view.see_all(log.entries, "main")
    assert not any(isinstance(each, ModelAnswer) for each in view.messages)


# All of them away


def test_a_lane_parks_when_all_models_have_failed_and_asks_them_in_turn() -> None:
    log, at = begun(THREE), NOW
    for model in ("b", "c"):
        fails(log, BLOCKED, THREE)
        assert asked(log, THREE).model == model

    parked = fails(log, BLOCKED, THREE)

    assert isinstance(parked, r.ProviderUnavailable)
    assert (parked.model, parked.next_model, parked.since) == ("c", "a", NOW)
    assert next_of(log, THREE) == Park(wait=("provider",), until=NOW + MINUTE)
    log.add(parks("provider"))
    for model, following in (("a", "b"), ("b", "c"), ("c", "a")):
        at += MINUTE
        assert asked(log, THREE, at).model == model
        still = fails(log, BLOCKED, THREE, at)
        assert isinstance(still, r.ProviderStillUnavailable)
        assert (still.model, still.next_model) == (model, following)
    assert log.lane.outage is not None
    assert (log.lane.outage.since, log.lane.outage.attempts) == (NOW, 4)


def test_the_model_that_answers_first_ends_the_outage() -> None:
    log = begun()
    fails(log, BLOCKED)
    asked(log)
    fails(log, BLOCKED)
    asked(log, now=NOW + MINUTE)
    fails(log, BLOCKED, now=NOW + MINUTE)
    action = asked(log, now=NOW + 2 * MINUTE)

    whole = Answered((Text("hi"),), Usage())
    back, *_ = outcome(log.lane, action, whole, TWO, NOW)

    assert isinstance(back, r.ProviderAvailable)
    assert (back.model, back.since) == ("b", NOW)


def test_one_that_may_come_back_by_itself_keeps_an_outage_from_being_blocked() -> None:
    log = begun()
    fails(log, later(6))
    asked(log)

    parked = fails(log, BLOCKED)

    assert isinstance(parked, r.ProviderUnavailable)
    assert parked.blocked  # the last one itself is
    assert log.lane.outage is not None
    assert not log.lane.outage.blocked


def test_a_model_that_wants_to_be_left_alone_is_passed_over_until_then() -> None:
    log = begun()
    fails(log, later(60))
    asked(log)
    asks_soon = ModelFailed(OOPS, "blocked", backoff=4 * SECOND)

    first = fails(log, asks_soon)
    asked(log, now=NOW + 4 * SECOND)
    at = NOW + 58 * SECOND
    second = fails(log, asks_soon, now=at)

    assert isinstance(first, r.ProviderUnavailable)
    assert (first.next_model, first.not_before) == ("b", NOW + 4 * SECOND)
    assert isinstance(second, r.ProviderStillUnavailable)
    assert (second.next_model, second.not_before) == ("a", at + 4 * SECOND)


def test_where_all_want_to_be_left_alone_the_first_that_does_not_is_asked() -> None:
    log = begun()
    fails(log, later(60))
    asked(log)

    parked = fails(log, later(30))

    assert isinstance(parked, r.ProviderUnavailable)
    assert (parked.next_model, parked.not_before) == ("b", NOW + 30 * SECOND)


def test_without_patience_all_models_are_asked_before_the_turn_fails() -> None:
    policy = replace(TWO, provider_patience=0)
    log = begun(policy)
    fails(log, BLOCKED, policy)
    asked(log, policy)
    fails(log, BLOCKED, policy)

    end = next_of(log, policy)

    assert isinstance(end, FailTurn)
    assert end.error == BLOCKED.error


def test_a_turn_behind_an_outage_asks_each_model_once_before_it_parks_or_fails() -> None:
    policy = replace(TWO, provider_patience=0)
    log = begun(policy)
    fails(log, BLOCKED, policy)
    asked(log, policy)
    fails(log, BLOCKED, policy)
    log.add(turn_fails(), message("d2"), settles(outcome="failed"))
    assert asked(log, policy, HOUR).model == "a"

    assert isinstance(fails(log, TRANSIENT, policy, HOUR), r.ModelSwitched)
    assert asked(log, policy, HOUR).model == "b"
    assert isinstance(fails(log, TRANSIENT, policy, HOUR), r.ProviderStillUnavailable)
    assert isinstance(next_of(log, policy, HOUR), FailTurn)


def test_an_agent_with_one_model_parks_as_ever() -> None:
    for policy in (Policy(), Policy(models=("a",))):
        log = Log(message(), *turn_begins())

        parked = fails(log, BLOCKED, policy)

        assert isinstance(parked, r.ProviderUnavailable)
        assert (parked.next_model, parked.not_before) == ("", NOW + MINUTE)
        assert log.lane.turn is not None
        assert log.lane.turn.fallback == ""


def test_steps_of_a_log_without_names_go_on() -> None:
    log = Log(message(), *turn_begins(), *wants("find"), starts(), returns(), *step_begins(2))
    log.add(said("Once ", call_id="t1.s2"), crash())

    action = asked(log)

    assert (action.model, action.keeps) == ("a", True)
