"""The guarded client: where it goes, and where nothing makes it go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from webhook_receiver import CERTIFICATE, Post, Receiver, Reply, always, hang

from outlast.errors import AddressRefused, InvalidUrl, OutlastError, Unreachable
from outlast.net.address import check_address, check_url
from outlast.net.client import GuardedClient, HttpAnswer, look_up

PUBLIC = (
    "8.8.8.8 1.1.1.1 93.184.216.34 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::8.8.8.8".split()
)
OWN = (
    "127.0.0.1 127.9.9.9 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 100.127.0.1"
    " 198.18.0.1 192.0.2.1 192.0.0.8 ::1 fd12::1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 2002:a00:1::"
    " 64:ff9b::10.0.0.1 64:ff9b::127.0.0.1 ::10.0.0.1"
).split()
NEVER = (
    "0.0.0.0 0.1.2.3 169.254.169.254 169.254.0.1 168.63.129.16 100.100.100.200 192.0.0.192"
    " 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 :: fe80::1 fe80::1%eth0 ff02::1 fec0::1"
    " fd00:ec2::254 fd20:ce::254 ::ffff:169.254.169.254 64:ff9b::169.254.169.254"
    " 2002:a9fe:a9fe:: 64:ff9b:1::8.8.8.8 2001:db8::1 2001::1 3fff::1 100::1 4000::1"
    " 2606:4700::5efe:a00:1 fd00:ec2::23 fd00:ec2::254%1 fd00:c1::a9fe:a9fe fd00:42::42"
    " fd00:a9fe:a9fe::1 fd00:100::100:200 fd12::1%eth0 2606:4700:4700::1111%0 ::1%lo"
    " ::ffff:100.100.100.200 ::ffff:0:169.254.169.254 64:ff9b::100.100.100.200 2002:6464:64c8::"
    " ::ffff:168.63.129.16"
).split()


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_reached(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("address", OWN)
def test_addresses_of_ones_own_networks_are_refused_unless_allowed(address: str) -> None:
    with pytest.raises(AddressRefused, match="allow_private"):
        check_address(address)
    check_address(address, allow_private=True)


@pytest.mark.parametrize("address", NEVER)
def test_addresses_that_nobody_should_call_are_refused_in_any_case(address: str) -> None:
    for allow_private in (False, True):
        with pytest.raises(AddressRefused) as found:
            check_address(address, allow_private=allow_private)
        assert "allow_private" not in found.value.message


@pytest.mark.parametrize(
    "url",
    [
        "ftp://shop.example/x",
        "file:///etc/passwd",
        "gopher://shop.example",
        "shop.example/hook",
        "//shop.example/hook",
        "",
        "https://",
        "https:///hook",
        "https://\u2603.example/hook",
        "https://a\u200bb.example/hook",
        "http://[fd00:ec2::254%251]/",
        "http://[fe80::1%25eth0]/",
        "http://a%2eexample/",
        "https://user@shop.example/",
        "https://user:s3cret@shop.example/",
        "https://:s3cret@shop.example/",
        "https://@shop.example/",
        "https://shop.example:0/",
        "https://shop.example:99999/",
        "https://shop.example:x/",
        "https://shop.example/#part",
        "https://shop.example/a b",
        "https://shop.example/\r\nx: y",
        "https://shop.example/\x7f",
        "https://shop.example\\@127.0.0.1/",
        "https://[::1",
        "https://shop.example/" + "x" * 2048,
    ],
)
def test_a_url_that_cannot_be_called_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidUrl) as found:
        check_url(url, allow_private=True)
    assert "s3cret" not in f"{found.value.message} {found.value.details}"


@pytest.mark.parametrize("host", ["b\u00fccher.example", "\u0928\u0940.example", "a-1.example"])
def test_a_name_in_any_script_can_be_called(host: str) -> None:
    check_url(f"https://{host}/hook")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "10.1.1.1", "localhost", "a.LOCALHOST."])
def test_a_url_that_names_a_private_place_is_refused_at_once(host: str) -> None:
    with pytest.raises(AddressRefused):
        check_url(f"http://{host}:8000/hook")
    check_url(f"http://{host}:8000/hook", allow_private=True)


def names(**known: Sequence[str]) -> Any:
    """A resolver that knows some names, and whom it was asked for."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return known.get(host.partition(".")[0], ())

    asked: list[tuple[str, int]] = []
    resolve.asked = asked  # type: ignore[attr-defined]
    return resolve


async def post(outbound: GuardedClient, url: str, times: int = 1) -> HttpAnswer:
    async with outbound.open(url) as line:
        answers = [
            await line.post(b'{"a":1}', {"content-type": "application/json", "x-y": "z"})
            for _ in range(times)
        ]
    return answers[-1]


async def test_a_post_carries_its_body_headers_and_the_name_of_the_host() -> None:
    async with Receiver() as hook:
        outbound = GuardedClient(allow_private=True, resolve=names(hook=["127.0.0.1"]))
        answer = await post(outbound, f"http://hook.example:{hook.port}/a/b?c=d")

    (got,) = hook.posts
    assert answer.status == 200
    assert (got.method, got.path, got.body) == ("POST", "/a/b?c=d", b'{"a":1}')
    assert got.headers["host"] == f"hook.example:{hook.port}"
    assert (got.headers["content-type"], got.headers["x-y"]) == ("application/json", "z")


async def test_a_name_with_one_private_address_among_its_own_is_not_called_at_all() -> None:
    async with Receiver() as hook:
        outbound = GuardedClient(resolve=names(hook=["8.8.8.8", "127.0.0.1"]))
        with pytest.raises(AddressRefused):
            await post(outbound, f"http://hook.example:{hook.port}/")
    assert hook.connections == 0


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1"])
async def test_other_ways_to_write_a_private_address_are_seen_through(host: str) -> None:
    async with Receiver() as hook:
        with pytest.raises((AddressRefused, InvalidUrl)):
            await post(GuardedClient(), f"http://{host}:{hook.port}/")
    assert hook.connections == 0


async def test_an_address_that_changes_after_the_look_up_does_not_matter() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return [answers.pop(0)]

    answers = ["127.0.0.1", "169.254.169.254", "169.254.169.254"]
    async with Receiver() as hook:
        outbound = GuardedClient(allow_private=True, resolve=resolve)
        await post(outbound, f"http://hook.example:{hook.port}/", times=3)
        with pytest.raises(AddressRefused):
            await post(outbound, f"http://hook.example:{hook.port}/")

    assert len(hook.posts) == 3
    assert hook.connections == 1


async def test_an_address_that_does_not_answer_is_passed_over_for_the_next() -> None:
    async with Receiver() as hook:
        outbound = GuardedClient(allow_private=True, resolve=names(hook=["127.0.0.9", "127.0.0.1"]))
        answer = await post(outbound, f"http://hook.example:{hook.port}/", times=2)
    assert (answer.status, len(hook.posts)) == (200, 2)


async def test_redirects_are_not_followed() -> None:
    async with Receiver() as inner, Receiver(always(307, ("location", inner.url))) as hook:
        answer = await post(GuardedClient(allow_private=True), hook.url)
    assert answer.status == 307
    assert inner.connections == 0


async def test_nothing_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password s3cret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with Receiver() as proxy, Receiver() as hook:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        await post(GuardedClient(allow_private=True), hook.url)
    assert (proxy.connections, len(hook.posts)) == (0, 1)
    assert "authorization" not in hook.posts[0].headers


async def test_cookies_are_not_kept() -> None:
    async with Receiver(always(200, ("set-cookie", "a=b; Path=/"))) as hook:
        await post(GuardedClient(allow_private=True), hook.url, times=2)
    assert ["cookie" in got.headers for got in hook.posts] == [False, False]


def trusting(path: Any = CERTIFICATE) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(path))


async def test_a_certificate_is_verified_for_the_name_and_not_for_the_address() -> None:
    async with Receiver(secure=True) as hook:
        resolve = names(hook=["127.0.0.1"], other=["127.0.0.1"])
        outbound = GuardedClient(allow_private=True, resolve=resolve, tls=trusting())

        answer = await post(outbound, f"https://hook.example:{hook.port}/")
        with pytest.raises(Unreachable, match="no secure connection"):
            await post(outbound, f"https://other.example:{hook.port}/")
        with pytest.raises(Unreachable, match="no secure connection"):
            await post(GuardedClient(allow_private=True, resolve=resolve), hook.url)

    assert (answer.status, len(hook.posts)) == (200, 1)


async def test_a_receiver_that_hangs_is_given_up_in_time() -> None:
    async with Receiver(hang) as hook:
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
            await post(GuardedClient(allow_private=True, timeout=0.3), hook.url)


async def test_a_resolver_that_hangs_is_given_up_in_time() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(Unreachable, match="not resolved in time"):
        await post(GuardedClient(resolve=resolve, timeout=0.01), "http://hook.example/")


async def test_a_name_that_leads_nowhere_is_said_so() -> None:
    with pytest.raises(Unreachable, match="could not be resolved"):
        await post(GuardedClient(resolve=names()), "http://hook.example/")


async def test_what_does_not_speak_http_is_not_quoted() -> None:
    async with Receiver(lambda _: Reply(raw=b"SSH-2.0-secret banner\r\n\r\n")) as hook:
        with pytest.raises(Unreachable) as found:
            await post(GuardedClient(allow_private=True), hook.url)
    assert "secret" not in str(found.value)


async def test_a_receiver_that_is_not_there_is_unreachable() -> None:
    async with Receiver() as hook:
        gone = hook.url
    with pytest.raises(Unreachable, match="no connection"):
        await post(GuardedClient(allow_private=True), gone)


async def test_of_a_long_answer_no_more_than_its_beginning_is_read() -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"{")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        writer.close()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answer = await post(GuardedClient(allow_private=True), f"http://127.0.0.1:{port}/")
    assert answer.status == 200
    assert sent < 2**24  # what lies in buffers on both sides


async def test_an_answer_stands_though_its_text_never_ends() -> None:
    async def drip(post: Post) -> Reply:
        return Reply(raw=b"HTTP/1.1 202 OK\r\ncontent-length: 10\r\n\r\nabc", hangs=True)

    async with Receiver(drip) as hook:
        answer = await post(GuardedClient(allow_private=True, timeout=0.5), hook.url)
    assert answer.status == 202


async def test_an_answer_stands_though_its_text_breaks_off() -> None:
    torn = b"HTTP/1.1 202 OK\r\ncontent-length: 10\r\n\r\nabc"
    async with Receiver(lambda _: Reply(raw=torn)) as hook:
        answer = await post(GuardedClient(allow_private=True), hook.url)
    assert answer.status == 202


async def test_the_systems_resolver_is_asked_in_a_thread() -> None:
    assert set(await look_up("localhost", 80)) & {"127.0.0.1", "::1"}
    assert await look_up("does-not-exist.invalid", 80) == []
    assert await look_up("a" * 64 + ".example", 80) == []


async def test_no_error_repeats_the_url() -> None:
    url = "http://127.0.0.1:1/s3cret?token=s3cret"
    for outbound in (GuardedClient(), GuardedClient(allow_private=True)):
        with pytest.raises(OutlastError) as found:
            await post(outbound, url)
        assert "s3cret" not in f"{found.value} {found.value.details}"
