"""`Retry-After` from any server: seconds, a date or garbage, always bounded."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.agents.model.error import wait_of
from outlast.net.retry_after import LONGEST, retry_after

NOW = 1_700_000_000_000
ZONES = st.integers().map(lambda offset: f"Mon, 01 Jan 2024 00:00:00 {offset:+d}")
YEARS = st.integers(0, 99999).map(lambda year: f"Mon, 01 Jan {year} 00:00:00 -2359")


def test_a_time_to_wait_is_seconds_or_a_date() -> None:
    assert retry_after(" 120 ", NOW) == 120
    assert retry_after(formatdate(1_700_000_060, usegmt=True), NOW) == 60
    assert retry_after(formatdate(1_600_000_000, usegmt=True), NOW) == 0
    assert retry_after("Tue, 14 Nov 2023 22:13:50 -0000", NOW) == 30
    assert retry_after("Wed, 15 Nov 2023 00:13:50 +0200", NOW) == 30
    assert retry_after("9" * 5000, NOW) == LONGEST


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "soon",
        "-5",
        "1.5",
        "nan",
        "٣",
        "Mon, 99 Jan 2024 00:00:00 GMT",
        "0 0 0 0 0 0",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999",
        "Mon, 01 Jan 0001 00:00:00 +2359",
    ],
)
def test_what_cannot_be_read_asks_for_nothing(nonsense: str) -> None:
    assert retry_after(nonsense, NOW) == 0


@given(st.text() | ZONES | YEARS | st.from_regex(r"[A-Z][a-z]{2}, [0-9 :+-]{1,40}"))
def test_any_text_is_a_bounded_time(text: str) -> None:
    assert 0 <= retry_after(text, NOW) <= LONGEST


@pytest.mark.parametrize("seconds", [None, float("nan"), -1, -float("inf"), "7", "soon"])
def test_a_provider_that_asks_for_no_time_is_not_waited_for(seconds: object) -> None:
    error = RuntimeError("busy")
    error.retry_after = seconds  # type: ignore[attr-defined]
    assert wait_of(error) == 0


def test_a_provider_is_waited_for_an_hour_at_most() -> None:
    error = RuntimeError("busy")
    error.retry_after = float("inf")  # type: ignore[attr-defined]
    assert wait_of(error) == 3600 * 1000
