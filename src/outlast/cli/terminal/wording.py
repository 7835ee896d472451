"""Options and arguments that are one of a few words."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import typer

Word = TypeVar("Word", bound=StrEnum)


def one_of(kind: type[Word]) -> Callable[[str], Word]:
    """Return what reads a word, and says which there are if it is none of them."""

    def read(text: str) -> Word:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is none of: {', '.join(kind)}") from None

    return read
