"""Text as people read it: a character that cannot be seen is written as its escape.

Escapes are those of JSON (`\\u202e`, and a pair beyond U+FFFF), so a text in JSON stays the same
value. Each surface says itself which line ends it keeps. `unambiguous` goes further, for what
people approve: text that passes for something else is escaped too.
"""

import re
from collections.abc import Iterator
from unicodedata import category, combining, name, normalize

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


# What people approve
#
# A small rule, not the table of Unicode: within a word, letters and digits beside ASCII letters are
# escaped unless they belong to Latin or to a script that is written without blanks, and so are
# whole parts of a name, a host or an address that read like ASCII. A word in one other script
# stays: it may be the reader's own language.

RUN = re.compile(r"""[^\s"'`(){}\[\]<>|,;:/\\?#&=!]+""")
"""A word, a host, an e-mail address or one name of a path."""
PART = re.compile(r"[^.@_%+~-]+")
"""A part of an address, between the marks that hold it together."""
NO_BLANKS = (
    *("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"),
)
"""Scripts whose letters stand beside ASCII words without a blank, and look like none of these."""
LATIN = frozenset("ßẞæÆøØœŒłŁđĐðÐþÞıĸŋŊªºµ")
"""Letters of Latin alphabets that are no ASCII letter with a mark."""
READS_LIKE_ASCII = frozenset(
    # Cyrillic, Greek, Armenian
    "асԁеһіјкӏорԛѕтухѡԝуѵгпАВЕЅІЈКМНОРСТУХѴԌҮӀԚԜανοριυκτγσωϲϳΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹͿօոսցհղւքզԼՕՍ"
)
PUNCTUATION = frozenset("\u2010\u2011\u2012\u2043\u2044\u2212\u2215\u2216\u2236\u29f8\ua789")
"""Dashes, slashes and colons that are not the ASCII ones; others become those by NFKC."""
MOST_MARKS = 2


def unambiguous(text: str) -> str:
    """Return words on one line so that they can be read in one way only.

    Backslashes are doubled, so that an escape is always one of ours.
    """
    return escaped(text.replace("\\", "\\\\"))


def unambiguous_name(text: str) -> str:
    """Return a name likewise: it is expected to be ASCII, so what only looks so is escaped."""
    return escaped(text.replace("\\", "\\\\"), is_name=True)


def escaped(text: str, *, is_name: bool = False) -> str:
    """Return a text, or one in JSON, with escapes for all that can be taken for something else."""
    if text.isascii() and text.isprintable():
        return text
    odd = {place for run in RUN.finditer(text) for place in lookalikes(run, is_name)}
    return "".join(
        escape(char) if place in odd or not is_plain(text, place) else char
        for place, char in enumerate(text)
    )


def is_plain(text: str, place: int) -> bool:
    """Whether a character can be seen for what it is: no odd blank, no heap of marks."""
    char = text[place]
    if char.isascii():
        return char.isprintable()
    if not char.isprintable() or UNSEEN.match(char):
        return False
    return not combining(char) or composes(text, place)


def composes(text: str, place: int) -> bool:
    """Whether a combining mark is one of a few on a letter, and makes another letter of ASCII."""
    base = place
    while base > 0 and combining(text[base]):
        base -= 1
    if base == place or place - base > MOST_MARKS:
        return False
    return not text[base].isascii() or len(normalize("NFC", text[base : place + 1])) == 1


def lookalikes(run: re.Match[str], is_name: bool) -> Iterator[int]:
    """Yield the places in a run of what passes for ASCII there."""
    text, start = run.group(), run.start()
    if text.isascii() or not (is_name or any(map(is_ascii_letter, text))):
        return
    for part in PART.finditer(text):
        letters = [char for char in part.group() if char.isalpha()]
        is_mixed = any(map(is_ascii_letter, letters))
        if is_mixed or (letters and READS_LIKE_ASCII.issuperset(letters)):
            first = start + part.start()
            yield from (first + n for n, c in enumerate(part.group()) if passes_for_ascii(c))
    for n in range(1, len(text) - 1):
        if is_odd_punctuation(text[n]) and text[n - 1].isascii() and text[n + 1].isascii():
            yield start + n


def is_ascii_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


def passes_for_ascii(char: str) -> bool:
    """Whether a letter or digit may be taken for one of ASCII, in a word of those."""
    if char.isascii() or category(char) not in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl"):
        return False
    if char in LATIN or is_marked_ascii(char):
        return False
    return name(char, "").split(" ")[0] not in NO_BLANKS


def is_marked_ascii(char: str) -> bool:
    """Whether a letter is one of ASCII with marks on it, as in é."""
    return is_ascii_letter(normalize("NFD", char)[0])


def is_odd_punctuation(char: str) -> bool:
    return char in PUNCTUATION or (
        not char.isascii()
        and category(char)[0] in "PS"
        and len(plain := normalize("NFKC", char)) == 1
        and plain.isascii()
    )
