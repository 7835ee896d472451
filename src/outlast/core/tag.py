"""Tags: short texts by name, which a session is given at its start to be found by.

Owns what a tag may be, and its one notation as a text: `NAME=VALUE`. Knows no session.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from outlast.core.event import shown
from outlast.core.name import MAX_ID, check_id
from outlast.errors import InvalidInput

MOST_TAGS = 16
LONGEST_TAG = 64 + len("=") + MAX_ID
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")

TAGS_RULE = (
    f"tags are at most {MOST_TAGS} texts by name:"
    ' {"customer": "42"}; a name has letters, digits, _, ., :, / and -, at most 64'
)


def check_tags(tags: Any) -> dict[str, str]:
    """Return the tags that somebody chose, in the order of their names."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise InvalidInput(f"{TAGS_RULE}; not {shown(tags)}")
    if len(tags) > MOST_TAGS:
        raise InvalidInput(f"{TAGS_RULE}; these are {len(tags):,}")
    return dict(sorted(_checked(name, value) for name, value in tags.items()))


def _checked(name: Any, value: Any) -> tuple[str, str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{TAGS_RULE}; {shown(name)} is no such name")
    if not isinstance(value, str):
        raise InvalidInput(f"the tag {name} is a text, not {shown(value)}: give it as str(…)")
    return str.__str__(name), check_id(f"tag {name}", value)


def tags_of(texts: Iterable[str] | None) -> dict[str, str]:
    """Return tags that came as texts, each `NAME=VALUE`."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise InvalidInput(f"a tag is NAME=VALUE, such as customer=42; not {shown(text)}")
        if found.setdefault(name, value) != value:
            raise InvalidInput(f"the tag {shown(name)} is given twice, with different values")
    return check_tags(found)


def tag_text(name: str, value: str) -> str:
    """Return a tag as a text, which `tags_of` reads."""
    return f"{name}={value}"
