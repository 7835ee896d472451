"""The page about webhooks names every setting and every default event."""

import inspect
import re
from pathlib import Path

from outlast.integration.outbox import DEFAULT_EVENTS, WebhookSettings

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "webhooks.md").read_text("utf-8")


def test_every_setting_is_described_with_its_default() -> None:
    described = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
    settings = inspect.signature(WebhookSettings).parameters.values()
    assert described == {setting.name: repr(setting.default) for setting in settings}


def test_every_default_event_is_named() -> None:
    table = PAGE.partition("these are posted:")[2].partition("`session.waiting` is not")[0]
    assert set(re.findall(r"`(\w+\.\w+)`", table)) == set(DEFAULT_EVENTS)
