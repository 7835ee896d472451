"""Text as people read it: nothing in it that cannot be seen, and JSON stays JSON."""

from __future__ import annotations

import json
import sys
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.name import check_id
from outlast.core.visible import (
    LINES,
    escaped,
    unambiguous,
    unambiguous_name,
    visible,
    visible_line,
)
from outlast.errors import InvalidName

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
UNASSIGNED = ("Cn", "Co")
# Three of four code points are unassigned or for private use: nobody knows what they look like.
EVERYTHING = "".join(
    char for char in map(chr, range(sys.maxunicode + 1)) if category(char) not in UNASSIGNED
)
UNSEEN = [char for char in EVERYTHING if category(char) in HIDDEN]
# "Default ignorable" in Unicode's tables and of other categories, and the blank of Braille.
IGNORABLE = [
    *"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u3164\uffa0\u2800\ufe00\ufe0f",
    *"\U000e0100\U000e01ef\U000e0041",
]


def test_every_character_of_all_of_unicode_that_cannot_be_seen_is_escaped() -> None:
    for text in (visible_line(EVERYTHING), unambiguous(EVERYTHING), escaped(EVERYTHING)):
        assert [char for char in text if category(char) in HIDDEN] == []
        assert [char for char in IGNORABLE if char in text] == []
    assert {char for char in visible(EVERYTHING) if category(char) in HIDDEN} == set(LINES)


def test_what_can_be_seen_stays_as_it_is() -> None:
    letters = "".join(
        char
        for char in EVERYTHING
        if category(char)[0] in "LNPS" and char not in IGNORABLE and char not in "\\"
    )
    assert visible_line(letters) == letters


@pytest.mark.parametrize("char", [*UNSEEN[:80], *IGNORABLE, "\u202e", "\u2028", "\U000e0041"])
def test_an_escape_in_json_is_the_same_value(char: str) -> None:
    text = json.dumps({char: f"a{char}b"}, ensure_ascii=False)
    assert json.loads(escaped(text)) == json.loads(visible_line(text)) == json.loads(text)


@given(st.text())
def test_any_value_is_the_same_in_visible_and_unambiguous_json(value: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(visible_line(text)) == json.loads(escaped(text)) == value


@given(st.text(st.characters(exclude_characters='"')))
def test_unambiguous_words_can_be_read_back(value: str) -> None:
    assert json.loads(f'"{unambiguous(value)}"') == value


@given(st.text())
def test_to_make_visible_twice_changes_nothing_more(value: str) -> None:
    assert visible(visible(value)) == visible(value)
    assert visible_line(unambiguous(value)) == unambiguous(value)


def test_the_selector_of_an_emoji_stays_in_prose_but_not_where_people_approve() -> None:
    assert visible("\u26a0\ufe0f, 1\ufe0f") == "\u26a0\ufe0f, 1\ufe0f"
    assert visible("a\ufe0f, \u26a0\ufe0f\ufe0f") == "a\\ufe0f, \u26a0\ufe0f\\ufe0f"
    assert unambiguous("\u26a0\ufe0f") == "\u26a0\\ufe0f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("payp\u0430l.com", "payp\\u0430l.com"),  # a Cyrillic letter in a word
        ("\u0430\u0440\u0440\u04cf\u0435.com", "\\u0430\\u0440\\u0440\\u04cf\\u0435.com"),
        ("ann@b\u03bfx.example", "ann@b\\u03bfx.example"),
        ("\U0001d42dm -rf", "\\ud835\\udc2dm -rf"),  # a bold t of mathematics
        ("example\uff0ecom", "example\\uff0ecom"),
        ("a\u2044b", "a\\u2044b"),
        ("a\u2003b\u00a0c", "a\\u2003b\\u00a0c"),
        ("rm\u0338", "rm\\u0338"),
        ("o\u0301\u0301\u0301", "o\u0301\\u0301\\u0301"),
        ("\u044f\u0301\u0301\u0301", "\u044f\u0301\u0301\\u0301"),  # a heap of marks
        ("\u202egnp", "\\u202egnp"),
        ("a\\u202e\nb", "a\\\\u202e\\nb"),  # what was written as an escape is none of ours
        ("a  b", "a  b"),
    ],
)
def test_what_passes_for_something_else_is_escaped_where_people_approve(
    text: str, shown: str
) -> None:
    assert unambiguous(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Привет, мир: отчёт.pdf и PDF-файл",
        "Καλημέρα",
        "naïve café, Straße, Łódź, kap\u0131, e\u0301té.pdf",
        "iPhone手机を買う。请访问example.com\uff0c然后",
        "5µm, 3 m², №7 “quoted” …",
        "שלום עולם",
        "🙂👍🏽",
    ],
)
def test_words_of_other_languages_stay_readable(text: str) -> None:
    assert unambiguous(text) == visible(text) == text


def test_a_name_that_only_looks_like_ascii_is_escaped_whole() -> None:
    copy = "\u0441\u043e\u0440\u0443"
    assert unambiguous_name(copy) == "\\u0441\\u043e\\u0440\\u0443"
    assert unambiguous(copy) == copy  # in a sentence it may be a word
    assert unambiguous_name("größe_заказа") == "größe_заказа"


@pytest.mark.parametrize("char", ["\n", "\x1b", "\x9b", "\x7f", "\u202e", "\u200b", "\u2028"])
def test_a_name_with_a_character_that_cannot_be_seen_is_refused(char: str) -> None:
    with pytest.raises(InvalidName, match="lane has a character in it that cannot be seen"):
        check_id("lane", f"a{char}b")
    with pytest.raises(InvalidName) as refused:
        check_id("lane", f"a{char}b")
    assert char not in refused.value.message
    assert check_id("lane", "a b é 手 \u26a0\ufe0f")
