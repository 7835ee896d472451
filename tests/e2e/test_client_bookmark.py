"""A bookmark is all that is needed to go on reading somewhere else."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest
from client_scene import far_away

from outlast import Token
from outlast.client import Client
from outlast.errors import InvalidInput


async def test_a_bookmark_moves_on_with_what_is_read_and_is_gone_on_from() -> None:
    async with far_away() as far:
        session = await far.client.start("teller", "hi", continuation_token="mine")
        whole = [event async for event in session.events()]
        assert session.bookmark["after"] == whole[-1].cursor

        early = await far.client.session(session.id)
        assert early.bookmark["after"] == "0"
        async with aclosing(early.events()) as events:
            seen = [await anext(events), await anext(events)]
        kept = json.dumps(early.bookmark)
        assert json.loads(kept) == {
            "session_id": session.id,
            "continuation_token": "mine",
            "after": seen[-1].cursor,
        }

        later = far.client.resume(json.loads(kept))
        assert later.bookmark == early.bookmark
        seen += [event async for event in later.events()]
        assert seen == whole
        await (await later.send("more")).result()
        more = [event async for event in later.events()]
        assert more[0].type == "delivery.queued"
        assert [event async for event in later.events(0)] == whole + more
        sent = await far.client.send(Token(early.bookmark["continuation_token"] or ""), "again")
        assert sent.session_id == session.id
        assert sent.session.bookmark["continuation_token"] == "mine"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "ses_1",
        {},
        {"session_id": "ses_1", "after": "3"},
        {"session_id": "ses_1", "continuation_token": None, "after": "3", "more": 1},
        {"session_id": "", "continuation_token": None, "after": "3"},
        {"session_id": 1, "continuation_token": None, "after": "3"},
        {"session_id": "ses_1", "continuation_token": 1, "after": "3"},
        {"session_id": "ses_1", "continuation_token": None, "after": "-1"},
        {"session_id": "ses_1", "continuation_token": None, "after": True},
        {"session_id": "ses_1", "continuation_token": None, "after": "3-"},
        {"session_id": "ses_1", "continuation_token": None, "after": "3-not hex!"},
        {"session_id": "ses_1", "continuation_token": None, "after": 3},
    ],
)
def test_what_is_no_bookmark_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="bookmark"):
        Client("http://127.0.0.1:1").resume(wrong)
