"""The guarded client: posts to a URL that a user configured, and to no other place.

A name is resolved once; all its addresses must be allowed (`address.py`), and the connection goes
to one of them, with the name kept for the Host header and for TLS. No redirect is followed, and the
environment is not read: no proxy, no netrc. Knows nothing of sessions or of what it posts.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import httpx
from msgspec import Struct

from outlast.errors import InvalidUrl, Unreachable
from outlast.net.address import check_address, check_url, is_address

MOST_ADDRESSES = 4
"""How many of a host's addresses are tried, one after the other."""
MOST_READ = 4096
READS_FOR = 1.0
"""How much of an answer's body is read, and for how long: only then is a connection reusable."""

PORTS = {"http": 80, "https": 443}
GONE = 410

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class HttpAnswer(Struct, frozen=True):
    """An answer: its status, its headers by their names in lower case, its body if it was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def check(self) -> None:
        """Raise Unreachable unless the status is 2xx, with what it says about trying again."""
        if 200 <= self.status < 300:
            return
        if 300 <= self.status < 400:
            raise Unreachable(f"{self.status}: redirects are not followed")
        raise Unreachable(
            f"answered {self.status}",
            retry_after=self.headers.get("retry-after", ""),
            gone=self.status == GONE,
        )


async def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, the preferred one first; none if it is not known.

    The thread is a daemon of its own: a resolver that hangs for minutes takes no place in the
    loop's pool, and does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def settle(addresses: Sequence[str]) -> None:
        if not found.done():
            found.set_result(addresses)

    def work() -> None:
        addresses = addresses_of(host, port)
        with suppress(RuntimeError):  # the loop was closed: no caller waits any more
            loop.call_soon_threadsafe(settle, addresses)

    threading.Thread(target=work, name="outlast resolver", daemon=True).start()
    return await found


def addresses_of(host: str, port: int) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedClient:
    """Opens connections to receivers. A look-up and every post have `timeout` seconds each."""

    def __init__(
        self,
        *,
        allow_private: bool = False,
        timeout: float = 10.0,
        resolve: Resolve = look_up,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._timeout = timeout
        self._resolve = resolve
        # Made once: it reads the system's certificates.
        self._tls = tls or httpx.create_ssl_context(trust_env=False)

    @asynccontextmanager
    async def open(self, url: str) -> AsyncIterator[ReceiverConnection]:
        """Resolve and check a URL; connections are kept as long as this is open."""
        target = self._parse(url)
        addresses = await self._addresses(target)
        # One client per name: a pool knows connections by their address, and one that was
        # verified for another name must not be used for this one.
        timeouts = httpx.Timeout(self._timeout, connect=self._timeout / (len(addresses) + 1))
        client = httpx.AsyncClient(
            verify=self._tls, trust_env=False, follow_redirects=False, timeout=timeouts
        )
        async with client:
            yield ReceiverConnection(client, target, addresses, self._timeout)

    def _parse(self, url: str) -> httpx.URL:
        check_url(url, allow_private=self._allow_private)
        try:
            target = httpx.URL(url)
        except httpx.InvalidURL:
            raise InvalidUrl("this is not a valid URL: write https://host/path") from None
        if target.scheme not in PORTS or target.userinfo or not target.host:
            raise InvalidUrl("this is not a valid URL: write https://host/path")
        return target

    async def _addresses(self, target: httpx.URL) -> Sequence[str]:
        """Return the host's addresses, once it is known that all of them are allowed."""
        host = target.raw_host.decode("ascii")
        try:
            async with asyncio.timeout(self._timeout):
                found = [host] if is_address(host) else await self._resolve(host, port_of(target))
        except TimeoutError:
            raise Unreachable("the host's name was not resolved in time", host=host) from None
        if not found:
            raise Unreachable("the host's name could not be resolved", host=host)
        # All of them are checked, also those that are not tried: a name that leads to a private
        # address too is an attempt.
        for address in found:
            check_address(address, allow_private=self._allow_private)
        return found[:MOST_ADDRESSES]


class ReceiverConnection:
    """Connections to one receiver, as long as `GuardedClient.open` is entered."""

    def __init__(
        self, client: httpx.AsyncClient, target: httpx.URL, addresses: Sequence[str], timeout: float
    ) -> None:
        self._client = client
        self._target = target
        self._addresses = list(addresses)
        self._timeout = timeout

    async def post(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Post once and return the answer, of any status; raise Unreachable if there is none."""
        async with self._in_time():
            response = await self._send(body, headers)
        self._client.cookies.clear()
        await finish(response)
        return HttpAnswer(response.status_code, dict(response.headers))

    async def exchange(self, body: bytes, headers: Mapping[str, str], most: int) -> HttpAnswer:
        """Post once and return the answer with its whole body, of `most` bytes at most."""
        async with self._in_time():
            response = await self._send(body, headers)
            try:
                text = await read_whole(response, most)
            finally:
                await response.aclose()
        self._client.cookies.clear()
        return HttpAnswer(response.status_code, dict(response.headers), text)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError:
            raise Unreachable(f"no answer within {self._timeout:g} s") from None
        except httpx.HTTPError as error:
            raise Unreachable(sentence(error)) from None

    async def _send(self, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Send to the first address that accepts a connection."""
        while True:
            try:
                return await self._send_to(self._addresses[0], body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if len(self._addresses) == 1:
                    raise
                self._addresses.pop(0)

    async def _send_to(
        self, address: str, body: bytes, headers: Mapping[str, str]
    ) -> httpx.Response:
        request = self._client.build_request(
            "POST",
            self._target.copy_with(host=address),
            content=body,
            headers={"accept-encoding": "identity", **headers, "host": self._host},
            extensions={"sni_hostname": self._target.raw_host.decode("ascii")},
        )
        return await self._client.send(request, stream=True)

    @property
    def _host(self) -> str:
        return self._target.netloc.decode("ascii")


async def read_whole(response: httpx.Response, most: int) -> bytes:
    text = bytearray()
    async for chunk in response.aiter_raw():
        text += chunk
        # While it comes in: what it says of its own length is not believed.
        if len(text) > most:
            raise Unreachable(f"the answer is larger than {most:,} bytes")
    return bytes(text)


async def finish(response: httpx.Response) -> None:
    """Read the answer's body to its end if that is near; the status counts without it."""
    size = 0
    try:
        async with asyncio.timeout(READS_FOR):
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > MOST_READ:
                    break
    except (TimeoutError, httpx.HTTPError):
        return
    finally:
        await response.aclose()


def port_of(target: httpx.URL) -> int:
    return target.port or PORTS[target.scheme]


def sentence(error: httpx.HTTPError) -> str:
    """Return what went wrong, without any text from the other side."""
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ssl.SSLError):
            return "no secure connection: " + (cause.reason or type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    match error:
        case httpx.ConnectTimeout():
            return "no connection in time"
        case httpx.ConnectError():
            return "no connection"
        case httpx.TimeoutException():
            return "no answer in time"
        case httpx.ProtocolError():
            return "the answer was no valid HTTP"
    return "the connection broke"
