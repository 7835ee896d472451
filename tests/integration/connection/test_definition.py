"""Connections as they are written down: what works, and what is refused before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from oauth_provider import PUBLIC, Remote, provider_process
from scene import results_of, running
from sign_in_scene import KEY, Hub, required, sign_in

from outlast import Connection, ConnectionSettings, Context, Outlast, OutlastError, tool
from outlast.testing.scripted import call, say

ADA: dict[str, Any] = {"principal": "ada"}


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with provider_process() as found:
        yield found


@pytest.fixture
def hub(remote: Remote) -> Hub:
    return Hub(remote)


async def test_a_tool_is_told_which_connections_there_are(hub: Hub) -> None:
    @tool
    async def wrong(ctx: Context) -> str:
        return await ctx.require_auth("gitlab")

    agent = hub.agent(call("wrong"), say("done"), tools=[wrong])
    for options in (hub.app, {}):
        async with running(agent, **options) as app:
            session = await app.start("a", "go", **ADA)
            await session.wait()
            [told] = await results_of(session)
            assert "this app has no connection 'gitlab'" in told


async def test_without_a_public_url_a_sign_in_says_what_is_missing(hub: Hub) -> None:
    async with running(hub.agent(), **{**hub.app, "public_url": ""}) as app:
        session = await app.start("a", "go", **ADA)
        await session.wait()

        [told] = await results_of(session)
        assert "public_url" in told


async def test_a_public_client_has_no_secret_and_signs_in_all_the_same(remote: Remote) -> None:
    hub = Hub(remote, client_id=PUBLIC, client_secret="")
    async with running(hub.agent(), **hub.app) as app:
        session = await app.start("a", "go", **ADA)
        assert await sign_in(app, hub, session) == "completed"
        assert (await session.wait()).output == "done"


async def test_a_client_can_say_who_it_is_in_the_body(remote: Remote) -> None:
    hub = Hub(remote, client_auth="post", authorize_params={"prompt": "consent"})
    async with running(hub.agent(), **hub.app) as app:
        session = await app.start("a", "go", **ADA)
        assert "prompt=consent" in (await required(session)).data["url"]
        assert await sign_in(app, hub, session) == "completed"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "Hub"}, "name has small letters"),
    ({"name": "a/b"}, "name has small letters"),
    ({"token_url": "http://hub.example/token"}, "begin with https"),
    ({"authorize_url": "http://hub.example/"}, "begin with https"),
    ({"token_url": "https://10.0.0.1/token"}, "not a public address"),
    ({"revoke_url": "https://localhost/revoke"}, "not a public address"),
    ({"authorize_url": "ftp://hub.example/"}, "authorize_url"),
    ({"client_id": ""}, "client_id"),
    ({"scopes": "read write"}, "list of texts"),
    ({"owner": "nobody"}, "owner"),
    ({"client_auth": "jwt"}, "client_auth"),
    ({"authorize_params": {"state": "1"}}, "cannot have state"),
    ({"timeout": 0}, "over 0"),
    ({"sign_in_timeout": timedelta(0)}, "over 0"),
    ({"timeout": "x"}, "timeout is a time over 0, as in .*, not 'x'"),
    ({"sign_in_timeout": "30"}, r"as in timedelta\(minutes=30\), not '30'"),
]


HUB = Connection("hub", "https://hub.example/authorize", "https://hub.example/token", "me")


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_connection_that_cannot_work_is_refused_when_it_is_written(
    wrong: dict[str, Any], sentence: str
) -> None:
    right = {
        "name": "hub",
        "authorize_url": "https://hub.example/authorize",
        "token_url": "https://hub.example/token",
        "client_id": "me",
    }
    Connection(**right)  # type: ignore[arg-type]
    with pytest.raises(OutlastError, match=sentence) as refused:
        Connection(**{**right, **wrong})
    assert refused.value.code == "INVALID_DEFINITION"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (ConnectionSettings([HUB], ()), "need a secret_key"),
        (ConnectionSettings([HUB], "short"), "32 characters"),
        (ConnectionSettings(["hub"], KEY), "is not a Connection"),  # type: ignore[list-item]
        ([HUB], r"connections has to be ConnectionSettings\(…\) or None"),
    ],
)
async def test_an_app_with_connections_needs_a_key(hub: Hub, wrong: Any, sentence: str) -> None:
    with pytest.raises(OutlastError, match=sentence):
        async with running(hub.agent(), **{**hub.app, "connections": wrong}):
            pass


async def test_two_connections_have_two_names(hub: Hub) -> None:
    with pytest.raises(OutlastError, match="same name"):
        async with running(hub.agent(), **hub.app_with(times=2)):
            pass


def test_without_the_extra_an_app_says_what_to_install(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "outlast.integration.connection.connections", None)

    with pytest.raises(OutlastError, match="install Outlast with its extra 'connections'"):
        Outlast([hub.agent()], store="memory://", **hub.app)
