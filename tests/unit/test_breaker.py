"""The rules of a provider's circuit breaker."""

from outlast.core.breaker import (
    LONGEST_PAUSE,
    OPENS_AT,
    Breaker,
    FailuresInARow,
    Provider,
    after_answers,
    after_failure,
)
from outlast.core.record import Failure
from outlast.core.result import ModelFailed

PROVIDER = Provider("support", "openai:gpt-5.2", "api.example.com")
DOWN = ModelFailed(Failure("HTTP_503", "overloaded"), "transient")
REJECTED = ModelFailed(Failure("HTTP_401", "wrong key"), "blocked")
NOW = 1_000_000


def opened(failed: ModelFailed = DOWN) -> Breaker:
    return after_failure(None, PROVIDER, failed, OPENS_AT, NOW, opens=True)


def test_failures_of_several_calls_in_a_row_open_a_breaker() -> None:
    failures = FailuresInARow()
    for number in range(OPENS_AT):
        assert not failures.open_breaker(parks=False)
        failures = failures.with_call(f"ses_{number}", "t1.s1")
    assert failures.open_breaker(parks=False)


def test_a_call_alone_opens_a_breaker_only_when_it_has_used_up_its_tries() -> None:
    failures = FailuresInARow()
    for _ in range(OPENS_AT + 2):
        failures = failures.with_call("ses_1", "t1.s1")
    assert not failures.open_breaker(parks=False)
    assert failures.open_breaker(parks=True)
    assert not FailuresInARow().with_call("ses_1", "t1.s1").open_breaker(parks=True)


def test_pauses_between_probes_grow_to_a_minute() -> None:
    breaker, pauses = opened(), [opened().next_at - NOW]
    for _ in range(6):
        now = breaker.next_at
        breaker = after_failure(breaker, PROVIDER, DOWN, 0, now, opens=False)
        pauses.append(breaker.next_at - now)
    assert pauses == [4_000, 8_000, 16_000, 32_000, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert (breaker.since, breaker.failures) == (NOW, OPENS_AT + 6)


def test_a_provider_says_itself_when_to_ask_again() -> None:
    later = ModelFailed(DOWN.error, "transient", retry_after=7_000_000)
    assert opened(later).next_at == NOW + 7_000_000


def test_what_somebody_has_to_mend_is_tried_once_a_minute() -> None:
    breaker = opened(REJECTED)
    assert (breaker.blocked, breaker.next_at) == (True, NOW + LONGEST_PAUSE)


def test_groups_that_are_answered_double() -> None:
    breaker, groups = opened(), []
    for _ in range(1 + 2 + 4):
        breaker = after_answers(breaker)
        groups.append(breaker.group)
    assert groups == [2, 2, 4, 4, 4, 4, 8]
    assert breaker.state == "recovering"
    assert after_answers(opened(), 1 + 2 + 4) == breaker


def test_a_failure_while_others_are_answered_closes_the_line_again_for_a_short_while() -> None:
    breaker = opened()
    for _ in range(9):
        breaker = after_failure(breaker, PROVIDER, DOWN, 0, breaker.next_at, opens=False)
    breaker = after_failure(after_answers(breaker), PROVIDER, DOWN, 0, NOW, opens=False)
    assert (breaker.state, breaker.group, breaker.next_at) == ("open", 1, NOW + 4_000)


def test_calls_that_fail_during_the_pause_are_no_probes() -> None:
    first = after_failure(None, PROVIDER, DOWN, 1, NOW, opens=False)
    later = after_failure(first, PROVIDER, DOWN, 3, NOW + 100, opens=True)
    assert (first.state, later.state) == ("failing", "open")
    assert (later.next_at, later.probes, later.failures) == (first.next_at, 0, 3)


def test_breakers_of_other_agents_models_and_addresses_have_other_names() -> None:
    names = {
        Provider("a", "m", "x").name,
        Provider("b", "m", "x").name,
        Provider("a", "n", "x").name,
        Provider("a", "m", "y").name,
        Provider("a", "m").name,
    }
    assert len(names) == 5


def test_a_provider_that_only_begins_to_answer_is_left_alone_for_longer_each_time() -> None:
    breaker, pauses = opened(), []
    for _ in range(3):
        begun = after_answers(breaker, proven=False)
        assert begun.state == "recovering"
        breaker = after_failure(begun, PROVIDER, DOWN, 0, NOW, opens=False)
        pauses.append(breaker.next_at - NOW)

    assert pauses == sorted(set(pauses))
