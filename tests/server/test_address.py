from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.server.address import host_of, is_allowed, is_local, is_loopback, path_of

Headers = list[tuple[bytes, bytes]]


def scope(
    *hosts: str, client: str = "127.0.0.1", server: str = "127.0.0.1", **more: object
) -> dict:  # type: ignore[type-arg]
    headers: Headers = [(b"host", host.encode("latin-1")) for host in hosts]
    return {"headers": headers, "client": (client, 1), "server": (server, 2), **more}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.com:8000", "example.com"),
        ("example.com.", "example.com"),
        ("[::1]:8000", "[::1]"),
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
        ("a b", ""),
        ("localhost@evil.example", ""),
        ("evil.example#localhost", ""),
        ("evil.example/localhost", ""),
        ("localhost:", ""),
        ("localhost:80:80", ""),
        ("localhost:99999999", ""),
        ("localh\xf6st", ""),
        ("[::1", ""),
    ],
)
def test_the_host_is_the_name_that_was_asked_for_or_nothing(given: str, name: str) -> None:
    assert host_of(scope(given)) == name


def test_no_host_and_two_hosts_are_none() -> None:
    assert host_of(scope()) == ""
    assert host_of(scope("localhost", "localhost")) == ""


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.255.0.9", "::1", "[::1]"])
def test_these_mean_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",  # noqa: S104 - that it is none of them
        "::",
        "10.0.0.1",
        "127.1",
        "0177.0.0.1",
        "2130706433",
        "localhost.evil.example",
    ],
)
def test_these_do_not(host: str) -> None:
    assert not is_loopback(host)


def test_local_is_who_comes_from_here_to_here_by_no_other() -> None:
    assert is_local(scope("localhost"))
    assert is_local(scope("localhost", client="::1", server="::1"))
    assert not is_local(scope("localhost", client="10.0.0.9"))
    assert not is_local(scope("localhost", server="10.0.0.9"))
    assert not is_local({**scope("localhost"), "client": None})
    assert not is_local({**scope("localhost"), "server": None})
    assert not is_local({**scope("localhost"), "server": ("/run/socket", None)})
    for name in (b"x-forwarded-for", b"X-Forwarded-For", b"forwarded", b"via", b"x-real-ip"):
        passed_on = scope("localhost")
        passed_on["headers"].append((name, b"127.0.0.1"))
        assert not is_local(passed_on)


def test_patterns_allow_a_name_or_all_below_it() -> None:
    assert is_allowed("a.example", ["b.example", "A.example"])
    assert is_allowed("x.a.example", ["*.a.example"])
    assert is_allowed("anything", ["*"])
    assert not is_allowed("a.example", ["*.a.example"])
    assert not is_allowed("xa.example", ["*.a.example"])
    assert not is_allowed("a.example", [])


@given(st.text(max_size=40), st.sampled_from(["", "/", "/x", "/x/", "/x/y"]))
def test_a_path_is_seen_from_where_the_server_is_mounted(path: str, root: str) -> None:
    below = "/" + path

    assert path_of({"path": root.rstrip("/") + below, "root_path": root}) == below


def test_a_prefix_that_is_not_in_the_path_was_taken_away_before() -> None:
    assert path_of({"path": "/v1/sessions", "root_path": "/api"}) == "/v1/sessions"
    assert path_of({"path": "/apiary", "root_path": "/api"}) == "/apiary"
