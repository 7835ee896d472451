"""Text as people read it: a character that cannot be seen is written as its escape.

Escapes are those of JSON (`\\u202e`, and a pair beyond U+FFFF), so a text in JSON stays the same
value. Each surface says itself which line ends it keeps. `lookalike.py` goes further, for what
people approve.
"""

import re

LINES = "\n\t"
"""The controls that stay in a text of several lines."""

# The categories Cc, Cf, Cs, Zl and Zp, and what else Unicode calls "default ignorable", as ranges:
# a look at each character's category would take a hundred times as long. A test compares them
# with the tables of Python. U+2800 counts as a symbol and looks like a blank.
RANGES = (
    r"\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    r"\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    r"\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
SYMBOLS = (
    r"0-9#*\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299"
    r"\U0001f000-\U0001faff"
)
UNSEEN = re.compile(f"[{RANGES}]")
# U+FE0F behind a symbol makes an emoji of it and hides nothing; anywhere else it is unseen.
UNSEEN_IN_PROSE = re.compile(f"(?<=[{SYMBOLS}])\ufe0f|([{RANGES}])")

SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def visible(text: str, keep: str = LINES) -> str:
    """Return a text in which everything can be seen; the controls in `keep` stay."""
    if text.isprintable() and text.isascii():
        return text

    def shown(found: re.Match[str]) -> str:
        unseen = found.group(1)
        return escape(unseen) if unseen and unseen not in keep else found.group()

    return UNSEEN_IN_PROSE.sub(shown, text)


def visible_line(text: str) -> str:
    """Return a text in which everything can be seen, on one line."""
    return visible(text, keep="")


def escape(char: str) -> str:
    """Return a character as JSON writes it in ASCII."""
    code = ord(char)
    if code <= 0xFFFF:
        return SHORT.get(char) or f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
