from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from outlast.agents.runtime.json_value import to_json
from outlast.errors import NotEncodable


class Point(BaseModel):
    x: float | None


@dataclass
class Place:
    x: float


class Spot(msgspec.Struct):
    x: float


@pytest.mark.parametrize("key", [(1, 2), None, True, frozenset({1})], ids=repr)
def test_a_dict_whose_keys_json_has_no_word_for_is_refused_in_a_sentence(key: Any) -> None:
    with pytest.raises(NotEncodable, match="is a key of a dict"):
        to_json({"rows": [{key: 3}]})


def test_numbers_are_keys_as_texts() -> None:
    assert to_json({1: "a", 2.5: "b"}) == '{"1":"a","2.5":"b"}'


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")], ids=repr)
@pytest.mark.parametrize("within", [list, tuple, Point, Place, Spot], ids=lambda w: w.__name__)
def test_a_number_that_json_has_no_word_for_is_refused_wherever_it_is(
    within: Any, number: float
) -> None:
    value = within([None, number]) if within in (list, tuple) else within(x=number)
    with pytest.raises(NotEncodable, match=f"JSON has no word for {number}"):
        to_json({"here": value})


@pytest.mark.parametrize("value", [None, [None], {"x": None}, "null", Point(x=None)], ids=repr)
def test_nothing_is_a_value_like_any_other(value: Any) -> None:
    assert "null" in to_json(value)
