"""Which tests of the suite fail on runs, and why: `not_reading.toml` says it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

LISTED = Path(__file__).with_name("not_reading.toml")


def listed() -> set[str]:
    """Return the titles of the tests that are about something that runs do not have."""
    groups = tomllib.loads(LISTED.read_text())["group"]
    return {title for group in groups for title in group["tests"]}


def racy() -> set[str]:
    """Return the titles of reading tests that may fail though the protocol is kept."""
    return {each["test"] for each in tomllib.loads(LISTED.read_text())["racy"]}


def compare(ended: Mapping[str, str], known: set[str], may_fail: set[str]) -> list[str]:
    """Say which tests failed that should not have, and which passed that are listed."""
    found = []
    for title, how in sorted(ended.items()):
        if how != "passed" and title not in known | may_fail:
            found.append(f"failed: {title}: {how}")
        if how == "passed" and title in known:
            found.append(f"passed, and is listed: {title}")
    return found
