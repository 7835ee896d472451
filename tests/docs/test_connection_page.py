"""The page about connections names every setting, and every way in which a sign-in can end."""

import re
from pathlib import Path
from typing import get_args

import msgspec
from msgspec.structs import FieldInfo

from outlast import Connection
from outlast.integration.connection.oauth_callback import SignInOutcome
from outlast.server.route.connection import PAGES

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "connections.md").read_text("utf-8")


def test_every_setting_is_described_with_its_default() -> None:
    described = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
    fields = [field for field in msgspec.structs.fields(Connection) if not field.required]
    assert described == {field.name: repr(default(field)) for field in fields}


def default(field: FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def test_every_ending_is_described_with_its_status() -> None:
    rows = re.findall(r"^\| (`.+) \| (\d{3}) \|$", PAGE, re.MULTILINE)
    described = {word: int(status) for text, status in rows for word in re.findall("`(.+?)`", text)}
    assert described == {ending: status for ending, (status, *_) in PAGES.items()}
    assert set(described) == set(get_args(SignInOutcome))
