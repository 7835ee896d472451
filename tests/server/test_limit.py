from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlast.server import limit
from outlast.server.limit import RateLimiter, StreamLimiter


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_taken_at_once_and_then_so_many_a_second() -> None:
    time = Time()
    rate = RateLimiter(2.0, 3, time)

    taken = [rate.take("a") for _ in range(4)]
    time.now += 0.5
    later = [rate.take("a"), rate.take("a")]

    assert taken == [0, 0, 0, 0.5]
    assert later == [0, 0.5]


def test_who_has_waited_for_long_has_no_more_than_a_burst() -> None:
    time = Time()
    rate = RateLimiter(10.0, 2, time)
    time.now += 1000

    assert [bool(rate.take("a")) for _ in range(4)] == [False, False, True, True]


def test_a_refusal_costs_nothing() -> None:
    time = Time()
    rate = RateLimiter(1.0, 1, time)
    rate.take("a")
    for _ in range(100):
        assert rate.take("a") == 1.0
    time.now += 1.0

    assert rate.take("a") == 0


def test_callers_do_not_hold_each_other_back_and_no_rate_holds_nobody() -> None:
    time = Time()
    rate = RateLimiter(1.0, 1, time)
    rate.take("a")

    assert rate.take("b") == 0
    assert [RateLimiter(0.0, 1, time).take("a") for _ in range(9)] == [0] * 9


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=60))
def test_no_caller_ever_gets_more_than_rate_and_burst_allow(steps: list[tuple[str, float]]) -> None:
    time = Time()
    rate = RateLimiter(2.0, 3, time)
    taken: list[float] = []
    for caller, pause in steps:
        time.now += pause
        if rate.take(caller) == 0 and caller == "a":
            taken.append(time.now)

    for place, start in enumerate(taken):
        for count, end in enumerate(taken[place:], 1):
            assert count <= 3 + 2.0 * (end - start) + 1e-6


def test_so_many_callers_are_remembered_and_no_more() -> None:
    rate = RateLimiter(1.0, 1, Time())
    for number in range(limit.MOST_KNOWN + 10):
        rate.take(str(number))

    assert len(rate._buckets) == limit.MOST_KNOWN


def test_streams_are_counted_per_caller_and_forgotten_when_they_end() -> None:
    streams = StreamLimiter(2)

    assert [streams.enter("a"), streams.enter("a"), streams.enter("a")] == [True, True, False]
    assert streams.enter("b")
    assert streams.total == 3
    streams.leave("a")
    assert streams.enter("a")
    for caller in ("a", "a", "b"):
        streams.leave(caller)
    assert streams.total == 0
    assert all(StreamLimiter(0).enter("a") for _ in range(9))
