"""Who sits at the keyboard: the option of commands that speak for somebody.

Taken at its word: whoever can open the store could write anything into it.
"""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

By = Annotated[str | None, typer.Option("--by", help="Who you are; by default your login.")]


def person(by: str | None) -> str:
    """Return who somebody says they are, or else their login."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
