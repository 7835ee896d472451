import pytest

from outlast.core.json_text import MAX_DEPTH, JsonRefused, outline, parse_json, value_or_text


def test_as_many_values_as_may_be_are_measured_and_one_more_is_refused() -> None:
    assert outline(b"[1,2]", 3).values == 3
    with pytest.raises(JsonRefused, match="more than 2 values"):
        outline(b"[1,2]", 2)


@pytest.mark.parametrize("text", ["NaN", "[1e999]", "-Infinity", "{", "\ud800"])
def test_what_is_no_json_with_finite_numbers_is_refused(text: str) -> None:
    with pytest.raises(JsonRefused, match="no JSON with finite numbers"):
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
