"""What may fail of the protocol's suite is about writing: no reading test is on the list."""

import re

from conformance.listed import compare, listed, racy

READING = re.compile(
    r"^(Read Operations|Long-Poll|Offset Validation|Chunking|Caching and ETag|Read-Your-Writes"
    r"|SSE Mode|Case-Insensitivity|JSON Mode|Stream Closure > (Read|Long-poll|SSE|HEAD))"
)
"""Groups of the suite that are about reading."""


def test_no_test_of_reading_is_on_the_list_of_those_that_may_fail() -> None:
    assert [title for title in listed() if READING.match(title)] == []
    assert not listed() & racy()


def test_a_failure_that_is_not_listed_and_a_listed_test_that_passes_are_both_told() -> None:
    ended = {"a": "passed", "b": "it is 404", "c": "passed", "d": "it is 409", "e": "late"}

    assert compare(ended, {"c", "d"}, {"e"}) == [
        "failed: b: it is 404",
        "passed, and is listed: c",
    ]
