from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.json_text import MAX_DEPTH, MAX_VALUES, outline
from outlast.server.body import JSON, decode
from outlast.server.error import ErrorResponse

numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


def is_read_or_refused(raw: bytes) -> None:
    """Any other error would come through."""
    with suppress(ErrorResponse):
        decode(raw)


@given(values)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert decode(json.dumps(value).encode()) == value


@given(st.binary(max_size=200))
def test_anything_else_is_refused_and_nothing_worse_happens(raw: bytes) -> None:
    is_read_or_refused(raw)


@given(values, st.integers(0, 50), st.binary(min_size=1, max_size=3))
def test_nor_when_json_is_damaged(value: Any, place: int, damage: bytes) -> None:
    raw = bytearray(json.dumps(value).encode())
    raw[place % (len(raw) + 1) : place % (len(raw) + 1)] = damage
    is_read_or_refused(bytes(raw))


@pytest.mark.parametrize("depth", [100, 500, 2_000, 100_000])
def test_however_deep_it_is(depth: int) -> None:
    for raw in (b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        is_read_or_refused(raw)


def test_a_body_has_a_bounded_depth_whatever_the_stack_below_it() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        whole = opening * (MAX_DEPTH - 1) + b"[]" + closing * (MAX_DEPTH - 1)
        assert decode(whole)
        with pytest.raises(ErrorResponse, match="deep"):
            decode(opening + whole + closing)


@pytest.mark.parametrize("item", ["0", "{}", "[]", '""', '{"a":0}', '"\\""', "null"])
def test_a_body_has_a_bounded_number_of_values_whatever_they_are(item: str) -> None:
    raw = f"[{','.join([item] * (MAX_VALUES + 1))}]".encode()

    with pytest.raises(ErrorResponse, match="50,000 values"):
        decode(raw)


@given(texts.filter(lambda text: text != "a"))
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    raw = json.dumps({"a": text, text: ["\\", '\\"']}, ensure_ascii=False).encode()

    measured = outline(raw)

    assert (measured.names, measured.depth) == (2, 2)
    assert decode(raw) == json.loads(raw)


@given(values)
def test_a_text_is_measured_as_its_value_is(value: Any) -> None:
    measured = outline(json.dumps(value).encode())

    assert measured.names == sum(len(each) for each in walk(value) if isinstance(each, dict))
    assert measured.values >= sum(1 for _ in walk(value))


def walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from walk(each)


def test_a_name_stands_once_in_an_object_wherever_that_is() -> None:
    assert decode(b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}')
    for raw in (
        b'{"a": 1, "a": 1}',
        b'[{"b": {"a": 1, "b": 2, "a": 3}}]',
        b'{"a": 1, "\\u0061": 2}',
    ):
        with pytest.raises(ErrorResponse, match="stands twice"):
            decode(raw)


def test_many_names_are_looked_through_in_one_go() -> None:
    names = {f"n{number}": 1 for number in range(40_000)}
    raw = json.dumps(names).encode()[:-1] + b', "n39999": 2}'

    with pytest.raises(ErrorResponse, match="n39999"):
        decode(raw)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON;charset=utf-8", "application/vnd.a+json"]
)
def test_these_are_json(kind: str) -> None:
    assert JSON.match(kind)


@pytest.mark.parametrize(
    "kind", ["", "text/json", "application/jsonx", "application/x-json-form", "x application/json"]
)
def test_these_are_not(kind: str) -> None:
    assert not JSON.match(kind)
