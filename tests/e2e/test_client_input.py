"""What a client refuses to do: with a wrong address, an unusable token, or for a stranger."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
from client_scene import Hasty, far_away
from webhook_receiver import Post, Receiver, Reply

from outlast.client import Client
from outlast.errors import (
    InvalidAnswer,
    InvalidInput,
    InvalidUrl,
    OutlastError,
    ServerUnavailable,
)
from outlast.server import ServerSettings
from outlast.server.key import add_key, mint

SECRET = "outlast_abc_a-secret-that-nobody-repeats"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "127.0.0.1:8000",
        "agents.example.com",
        "ftp://agents.example.com",
        "http://",
        "http://user:secret@agents.example.com",
        "http://agents.example.com/?token=secret",
        "http://agents.example.com/#secret",
        "http://agents example.com",
        "http://agents.example.com:99999",
        "http://[::1",
        "",
        None,
    ],
)
def test_an_address_that_cannot_be_a_servers_is_refused_and_not_repeated(url: Any) -> None:
    with pytest.raises(InvalidUrl) as caught:
        Client(url)
    assert "secret" not in caught.value.message
    assert caught.value.message


def test_an_address_without_a_scheme_is_told_to_have_one() -> None:
    with pytest.raises(InvalidUrl, match="https:// or http://"):
        Client("localhost:8000")


def test_a_token_that_is_empty_is_told_as_that() -> None:
    with pytest.raises(InvalidInput, match="the token is empty"):
        Client("http://localhost:8000", "")


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"{SECRET}\r\nX-Evil: 1", f" {SECRET}", "ü", 7])
def test_a_token_that_cannot_stand_in_a_header_is_refused_and_not_repeated(token: Any) -> None:
    with pytest.raises(InvalidInput, match="line breaks") as caught:
        Client("http://localhost:8000", token)
    assert "secret" not in caught.value.message


async def test_an_answer_says_something() -> None:
    async with Client("http://localhost:1") as client:
        with pytest.raises(InvalidAnswer, match="an option or a text"):
            await client.session("ses_1").answer("req_1")


async def test_a_client_is_open_while_it_is_used_and_once_at_a_time() -> None:
    async with far_away() as far:
        client = Client(far.url)
        with pytest.raises(InvalidInput, match="not open"):
            await client.sessions()
        for _ in range(2):
            await client.open()
            with pytest.raises(InvalidInput, match="already open"):
                await client.open()
            assert len(await client.sessions()) == 0
            await client.close()
            await client.close()
        with pytest.raises(InvalidInput, match="not open"):
            await anext(client.session("ses_1").events())


async def test_a_key_opens_what_its_scopes_say() -> None:
    async with far_away(ServerSettings(port=0, require_key=True)) as far:
        text, info = mint(far.app.clock, tenant="acme", name="test", scopes=("read", "send"))
        await add_key(far.app.store, info)
        async with Client(far.url, text) as client:
            session = await client.start("teller", "hi")
            assert (await session.wait()).output == "You said: hi"
            assert (await far.app.sessions(tenant="acme"))[0].session_id == session.id
            with pytest.raises(OutlastError) as caught:
                await client.erase(session.id)
        assert (caught.value.code, caught.value.details) == ("MISSING_SCOPE", {"scope": "admin"})
        assert text not in "".join(traceback.format_exception(caught.value))


async def test_no_redirect_is_followed_and_the_token_goes_nowhere_else() -> None:
    async with Receiver() as elsewhere:
        to = ("Location", elsewhere.url)
        async with (
            Receiver(lambda post: Reply(307, (to,))) as server,
            Client(f"http://127.0.0.1:{server.port}", SECRET, clock=Hasty()) as client,
        ):
            with pytest.raises(ServerUnavailable, match="redirect, which is not followed"):
                await client.start("teller", "hi")
            with pytest.raises(ServerUnavailable, match="redirect, which is not followed"):
                await anext(client.session("ses_1").events())
        assert elsewhere.posts == []


async def test_no_error_and_no_description_holds_the_token() -> None:
    def repeat(post: Post) -> Reply:
        said = post.headers["authorization"]
        error: dict[str, Any] = {"code": "UNAUTHENTICATED", "message": f"not {said}", "hint": said}
        error["details"] = {"given": [said, {"a": said}]}
        return Reply(401, (), json.dumps({"error": error}).encode())

    async with (
        Receiver(repeat) as server,
        Client(f"http://127.0.0.1:{server.port}", SECRET, retry_timeout=1.0) as client,
    ):
        with pytest.raises(OutlastError) as caught:
            await client.start("teller", "hi")

        assert server.posts[0].headers["authorization"] == f"Bearer {SECRET}"
        assert caught.value.code == "UNAUTHENTICATED"
        assert caught.value.message == "not Bearer …. Bearer …"
        assert SECRET not in repr(caught.value.details) + repr(client) + str(client)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


async def test_a_proxy_that_the_environment_names_is_used_only_if_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Receiver() as proxy, far_away() as far:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with Client(far.url, clock=Hasty()) as client:
            assert len(await client.sessions()) == 0
        assert proxy.posts == []
        async with Client(far.url, clock=Hasty(), trust_env=True) as client:
            with pytest.raises(ServerUnavailable):
                await client.sessions()
        assert len(proxy.posts) == 1


async def test_a_server_that_cannot_prove_who_it_is_is_not_tried_again() -> None:
    async with (
        Receiver(secure=True) as server,
        Client(f"https://127.0.0.1:{server.port}", SECRET) as client,
    ):
        with pytest.raises(ServerUnavailable, match="no secure connection"):
            await client.start("teller", "hi")
        assert server.posts == []


async def test_an_id_cannot_lead_to_another_route() -> None:
    async with (
        Receiver(lambda post: Reply(404, (), b"no")) as server,
        Client(f"http://127.0.0.1:{server.port}/below/", clock=Hasty()) as client,
    ):
        for name in ("..", "../workers", "a/b?c=d#e", "a%2Fb", "ü"):
            for act in (client.session(name).info, client.session(name).end):
                with pytest.raises(ServerUnavailable):
                    await act()
            with pytest.raises(ServerUnavailable):
                await client.erase(name)

        for post in server.posts:
            assert post.path.startswith("/below/v1/sessions/")
            assert post.path.count("/") <= 5
            assert not set(post.path) & set("?#")
        refuse: Any
        for refuse in (client.session, client.erase):
            with pytest.raises(InvalidInput):
                await refuse("")
