from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.instant import EARLIEST, EPOCH, LATEST, date_of, milliseconds, milliseconds_at
from outlast.errors import InvalidInput


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_stored_number_is_a_date(instant: int) -> None:
    assert datetime.min.replace(tzinfo=UTC) <= date_of(instant) <= datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("instant", [EARLIEST, 0, 1, LATEST])
def test_an_instant_is_the_same_after_it_was_a_date(instant: int) -> None:
    assert milliseconds_at(date_of(instant)) == instant


@pytest.mark.parametrize("span", [int("9" * 400), 1e300, math.inf, math.nan], ids=range(4))
def test_a_span_that_is_too_long_is_refused_however_large_its_number_is(span: float) -> None:
    with pytest.raises(InvalidInput, match="longer than a thousand years"):
        milliseconds(span)


def test_instants_count_from_the_epoch() -> None:
    assert date_of(0) == EPOCH
