"""What the command line shows of webhooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminal import Place
from webhook_receiver import Receiver, always
from webhook_setup import WebhookSetup

from outlast import Webhook
from outlast.stores.sqlite import SqliteStore


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_the_commands_show_what_was_told_what_fails_and_what_is_dead(place: Place) -> None:
    setup = WebhookSetup()
    setup.store = SqliteStore(place.path / "outlast.db", setup.clock)
    async with Receiver(always(410)) as gone, Receiver(always(500)) as busy:
        first = await setup.talk("one", webhook=Webhook(gone.url + "?token=s3cret"))
        second = await setup.talk("one", webhook=Webhook(busy.url), tenant="acme")
        await setup.store.migrate()
        await setup.send()
        await setup.store.close()

    listed = place.run("webhooks", "list").stdout
    failing = place.json("webhooks", "list", "--failing")
    dead = place.run("webhooks", "dead").stdout
    dead_of_acme = place.run("webhooks", "dead", "--tenant", "acme").stdout

    lines = {line.split()[0]: line for line in listed.splitlines()}
    assert f"webhook  http://127.0.0.1:{gone.port}" in lines[first]
    assert " told " in lines[first]
    assert " failing " in lines[second]
    assert lines[second].endswith("answered 500")
    assert "s3cret" not in listed
    assert "/hook" not in listed
    assert [(each["session_id"], each["tries"]) for each in failing] == [(second, 1)]
    assert first in dead
    assert dead.rstrip().endswith("turn.completed  answered 410")
    assert dead_of_acme == "no dead webhooks\n"


def test_a_store_without_webhooks_has_none_to_show(place: Place) -> None:
    place.chat("hello")
    assert place.run("webhooks", "list").stdout == "no webhooks\n"
    assert json.loads(place.run("webhooks", "dead", "--json").stdout) == []
