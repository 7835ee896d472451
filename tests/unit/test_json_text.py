import pytest

from outlast.core.json_text import (
    MAX_DEPTH,
    JsonRefused,
    outline,
    parse_json,
    read_json,
    read_object,
    value_or_text,
)


def test_as_many_values_as_may_be_are_measured_and_one_more_is_refused() -> None:
    assert outline(b"[1,2]", 3).values == 3
    with pytest.raises(JsonRefused, match="more than 2 values"):
        outline(b"[1,2]", 2)


@pytest.mark.parametrize("text", ["NaN", "[1e999]", "-Infinity", "{", "\ud800"])
def test_what_is_no_json_with_finite_numbers_is_refused(text: str) -> None:
    with pytest.raises(JsonRefused, match="not JSON with finite numbers"):
        parse_json(text)
    assert value_or_text(text) == text


def test_depth_is_refused_from_the_first_bracket_too_many_on() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert str(parse_json(deepest)) == deepest
    with pytest.raises(JsonRefused, match="more than 100 deep"):
        parse_json(f"[{deepest}]")


def test_brackets_in_a_text_are_not_deep() -> None:
    assert parse_json('"' + "[" * 500 + '\\""') == "[" * 500 + '"'


def test_what_is_too_deep_to_be_read_is_shown_as_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert value_or_text(deep) == deep


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 1e300, 0.1])
def test_a_number_that_every_reader_has_is_read(number: float) -> None:
    assert read_json(f"[{number!r}]".encode()) == [number]


@pytest.mark.parametrize("digits", [str(2**64), str(-(2**63) - 1), "-1" + "0" * 400, "9" * 5000])
def test_an_integer_that_readers_disagree_on_is_refused_wherever_it_is(digits: str) -> None:
    for text in ("%s", '{"a": %s}', '[{"a": [1, %s]}, 2]'):
        with pytest.raises(JsonRefused, match=r"64 bits|out of range"):
            read_json((text % digits).encode())


def test_digits_in_a_text_or_behind_a_point_are_no_integer() -> None:
    digits = "9" * 400
    assert read_json(f'["{digits}"]'.encode()) == [digits]
    assert read_json(f"[0.{digits}]".encode()) == [1.0]


@pytest.mark.parametrize("text", [b"[]", b"1", b'"a"', b"null", b"true"])
def test_what_is_no_object_is_told_by_its_name(text: bytes) -> None:
    with pytest.raises(JsonRefused, match=r"^it is .*, and it has to be an object$"):
        read_object(text)
