"""`outlast serve`, `outlast dev` and `outlast keys`, as processes of their own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_scene import on_a_socket
from msgspec.structs import replace
from terminal import EXECUTABLE, TIMEOUT, Place, environment
from typer.testing import CliRunner, Result

from outlast import Outlast
from outlast.cli import make_app
from outlast.cli.terminal.service import server_settings
from outlast.errors import InvalidInput
from outlast.server import ServerSettings
from outlast.server.key import add_key, mint, revoke_key
from outlast.server.serve import check_closed, open_socket

BODY = {"agent": "support", "message": "hello"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class Server:
    """A server's process, and how to call it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def until(self, text: str) -> str:
        """Wait for a line with this text on stdout."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if text in line:
                return self.said[-1]
        raise AssertionError(f"it ended without {text!r}: {self.said}")

    @property
    def url(self) -> str:
        found = re.search(r"http://[\w.:\[\]]*:\d+", "\n".join(self.said))
        assert found, self.said
        return found.group()

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        return httpx.request(method, f"{self.url}/v1{path}", timeout=60, **given)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT)


@contextmanager
def started(place: Place, *args: str, until: str) -> Iterator[Server]:
    with subprocess.Popen(
        [EXECUTABLE, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=place.path,
        env=environment(None),
    ) as process:
        server = Server(process)
        try:
            server.until(until)
            yield server
        finally:
            if process.poll() is None:
                server.stop()


# What is loaded

COUNTING = """
import gc, os, signal
from shop import app

def count(*_):  # may come while a line is written, which `print` does not bear
    os.write(1, f"\\ntracked {len(gc.get_objects())} of {gc.get_freeze_count()}\\n".encode())

signal.signal(signal.SIGUSR1, count)
"""


@pytest.mark.parametrize("service", [("serve",), ("dev", "--no-reload"), ("worker",)])
def test_no_garbage_collection_of_a_service_looks_through_what_it_has_loaded(
    place: Place, service: tuple[str, ...]
) -> None:
    (place.path / "counting.py").write_text(COUNTING)
    command, *options = service
    port = [] if command == "worker" else ["--port", "0"]
    with started(place, command, "counting:app", *options, *port, until="agents") as server:
        server.process.send_signal(signal.SIGUSR1)
        counts = re.fullmatch(r"tracked (\d+) of (\d+)", server.until("tracked"))

    assert counts
    tracked, kept = map(int, counts.groups())
    assert tracked < kept / 10  # without it, a server tracks more than what was there before


# Keys


class Keys:
    """`outlast keys` on a store that is there, in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = f"sqlite:///{path}/outlast.db"
        asyncio.run(make(self.store))

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(make_app(), ["keys", *args, "--store", self.store])

    def json(self, *args: str) -> Any:
        return json.loads(self.run(*args, "--json").stdout)


async def make(store: str) -> None:
    async with Outlast(store=store, worker=None):
        pass


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def test_a_key_is_shown_once_and_kept_as_a_digest(keys: Keys) -> None:
    made = keys.run("create", "--tenant", "acme", "--scopes", "send,read", "--name", "till")
    text = made.stdout.strip()
    [listed] = keys.json("list")

    assert re.fullmatch(r"outlast_\w+_[\w-]{32}", text)
    assert (listed["tenant"], listed["name"], listed["scopes"]) == (
        "acme",
        "till",
        ["read", "send"],
    )
    assert "digest" not in listed
    secret = text.partition("_")[2].partition("_")[2]
    assert secret not in keys.run("list").stdout
    kept = b"".join(file.read_bytes() for file in keys.path.glob("outlast.db*") if file.is_file())
    assert listed["key_id"].encode() in kept
    assert secret.encode() not in kept


def test_keys_are_listed_by_tenant_and_revoked_by_id_or_by_text(keys: Keys) -> None:
    first, second = (keys.json("create", "--tenant", t, "--scopes", "read") for t in ("a", "b"))

    by_id = keys.run("revoke", first["key_id"])
    by_text = keys.json("revoke", second["key"])

    assert by_id.stdout == f"revoked {first['key_id']}\n"
    assert by_text["key_id"] == second["key_id"]
    [listed] = keys.json("list", "--tenant", "a")
    assert listed["key_id"] == first["key_id"]
    assert listed["revoked_at"]
    unknown = keys.run("revoke", "key_unknown")
    assert unknown.exit_code == 1
    assert "UNKNOWN_KEY" in unknown.stderr


def test_no_key_is_put_where_there_is_no_store(place: Place) -> None:
    refused = place.run("keys", "create", "--scopes", "read", "--store", "sqlite:///mistyped.db")

    assert refused.returncode == 1
    assert "there is no database at" in refused.stderr
    assert [file.name for file in place.path.iterdir()] == ["shop.py"]


@pytest.mark.parametrize("scopes", ["", "everything", "read,write"])
def test_a_key_needs_scopes_that_there_are(keys: Keys, scopes: str) -> None:
    refused = keys.run("create", "--scopes", scopes)

    assert refused.exit_code == 1
    assert "read, send, approve, internals, admin" in refused.stderr


# Where to listen


EVERYWHERE = "0.0.0.0"  # noqa: S104 - that it is refused


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.168.0.5", "shop.example", ""])
async def test_where_others_reach_it_a_server_does_not_start_without_a_key(host: str) -> None:
    settings = ServerSettings(host=host)
    async with Outlast(store="memory://", worker=None) as app:
        with pytest.raises(InvalidInput, match="there is no key yet"):
            await check_closed(app, settings)

        _, key = mint(app.clock, tenant="a", name="", scopes=["read"])
        await add_key(app.store, key)
        await check_closed(app, settings)

        await revoke_key(app.store, key.key_id, 1)
        with pytest.raises(InvalidInput, match="there is no key yet"):
            await check_closed(app, settings)
        await check_closed(app, replace(settings, require_key=True))
        await check_closed(app, replace(settings, authenticate=lambda _: None))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
async def test_on_this_machine_a_server_starts_without_a_key(host: str) -> None:
    async with Outlast(store="memory://", worker=None) as app:
        await check_closed(app, ServerSettings(host=host))


async def test_where_others_reach_it_not_even_this_machine_gets_in_without_a_key() -> None:
    async with Outlast(store="memory://", worker=None) as app:
        text, key = mint(app.clock, tenant="a", name="", scopes=["read"])
        await add_key(app.store, key)
        header = {"Authorization": f"Bearer {text}"}
        async with (
            on_a_socket(app, ServerSettings(host=EVERYWHERE, port=0)) as (_, port),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1") as caller,
        ):
            assert (await caller.get("/sessions")).status_code == 401
            assert (await caller.get("/sessions", headers=header)).status_code == 200


def test_a_port_that_is_taken_is_said() -> None:
    with open_socket(ServerSettings(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"cannot listen on 127.0.0.1, port {port}"):
            open_socket(ServerSettings(port=port))


def test_settings_of_the_users_own_are_taken_and_options_go_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_settings.py").write_text(
        "from outlast.server import ServerSettings\n"
        "settings = ServerSettings(port=9, burst=7, cors_origins=('https://a.example',))\n"
        "other = 17\n"
    )
    monkeypatch.chdir(tmp_path)

    chosen = server_settings("own_settings:settings", host=None, port=5, allowed_hosts=["a"])

    assert (chosen.port, chosen.burst, chosen.host) == (5, 7, "127.0.0.1")
    assert (chosen.cors_origins, chosen.allowed_hosts) == (("https://a.example",), ("a",))
    for wrong in ("own_settings:other", "own_settings:nothing"):
        with pytest.raises(InvalidInput):
            server_settings(wrong, host=None, port=None)


# Serving


def test_the_command_refuses_to_open_a_server_to_everybody(place: Place) -> None:
    refused = place.run("serve", "shop:app", "--host", EVERYWHERE, "--port", "0")

    assert refused.returncode == 1
    assert "there is no key yet" in refused.stderr
    assert refused.stdout == ""


def test_a_server_that_asks_for_a_key_says_how_to_make_one_that_it_knows(place: Place) -> None:
    (place.path / "desk.py").write_text(
        "from outlast import Outlast\napp = Outlast(store='sqlite:///desk.db')\n"
    )
    refused = place.run("serve", "desk:app", "--host", EVERYWHERE, "--port", "0")

    found = re.search("`outlast (.*?)`", refused.stderr)
    assert found
    place.run(*found.group(1).split())
    known = place.json("keys", "list", "--app", "desk:app")

    assert [key["scopes"] for key in known] == [["read", "send"]]
    assert not (place.path / "outlast.db").exists()
    key_id = known[0]["key_id"]
    assert place.json("keys", "revoke", key_id, "--app", "desk:app")["revoked"]


def test_a_server_only_serves_and_stops_when_it_is_told(place: Place) -> None:
    key = Keys(place.path).json("create", "--scopes", "read,send")
    header = {"Authorization": f"Bearer {key['key']}"}
    args = ("--port", "0", "--require-key", "--json")
    with started(place, "serve", "shop:app", *args, until="ready") as server:
        first = json.loads(server.said[0])
        assert (first["state"], first["agents"]) == ("ready", ["support"])
        assert server.ask("GET", "/sessions").status_code == 401
        session = server.ask("POST", "/sessions", json=BODY, headers=header).json()["session_id"]
        shown = server.ask("GET", f"/sessions/{session}", headers=header).json()
        assert shown["status"] == "queued", "nobody works here"

        path = f"{server.url}/v1/sessions/{session}/stream"
        with httpx.stream("GET", path, timeout=60, headers=header) as stream:
            lines = stream.iter_lines()
            assert '"session.started"' in next(lines)
            Keys(place.path).run("revoke", key["key_id"])
            assert server.ask("GET", "/sessions", headers=header).status_code == 401

            code = server.stop()

            assert '"delivery.queued"' in next(lines)
            with pytest.raises(httpx.RemoteProtocolError):  # so that nobody takes it for the end
                _ = [*lines]
        assert code == 0


# Developing


def test_dev_works_and_serves_and_begins_anew_when_the_code_changes(place: Place) -> None:
    with started(place, "dev", "shop:app", "--port", "0", until="metrics") as server:
        body = {"agent": "support", "message": "refund"}
        session = server.ask("POST", "/sessions", json=body).json()["session_id"]
        path = f"/sessions/{session}"
        waiting = server.ask("GET", f"{path}/result?wait=20").json()
        assert waiting["status"] == "waiting"
        assert f"{server.url}/v1/openapi.json" in "\n".join(server.said)

        shop = place.path / "shop.py"
        code = shop.read_text()
        shop.write_text("this is no Python")
        server.until("ended with 1")
        server.said.clear()
        shop.write_text(code.replace("That is done.", "That is mended."))
        server.until("metrics")

        [request] = server.ask("GET", "/requests").json()["requests"]
        server.ask("POST", f"/requests/{request['request_id']}", json={"option": "approve"})
        assert server.ask("GET", f"{path}/result?wait=20").json()["output"] == "That is mended."
        assert server.stop() == 0
