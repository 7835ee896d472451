"""Tries that failed: what each one means, and how long they are borne.

Knows no route. The caller says whether a request may be tried again.
"""

import asyncio
import ssl
from collections.abc import Iterator

import httpx

from outlast.clock import Clock
from outlast.errors import OutlastError, ServerUnavailable
from outlast.net.client import sentence

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

NOTHING_WAS_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
OUR_OWN_FAULT = (httpx.LocalProtocolError, httpx.UnsupportedProtocol)


class FailedTry(Exception):
    """A try that failed. `error` is what to raise if it is not tried again.

    `is_passing`: another try may succeed, after `wait` seconds. `is_undone`: nothing can have
    been done by this one.
    """

    def __init__(
        self,
        error: OutlastError,
        *,
        is_passing: bool = False,
        is_undone: bool = True,
        wait: float = 0.0,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.is_passing = is_passing
        self.is_undone = is_undone
        self.wait = wait


class RetryBudget:
    """A time in which tries fail, one after the other. After `timeout` seconds it is enough."""

    def __init__(
        self, clock: Clock, timeout: float | None, *, longest: float = LONGEST_PAUSE
    ) -> None:
        self._clock = clock
        self._timeout = timeout
        self._longest = longest
        self._pause = FIRST_PAUSE
        self._since: float | None = clock.monotonic()

    def over(self) -> None:
        """Note that a try has succeeded: the next trouble is another one."""
        self._since = None
        self._pause = FIRST_PAUSE

    async def bear(self, missed: FailedTry) -> None:
        """Wait before the next try, longer each time; raise what went wrong when it is enough."""
        now = self._clock.monotonic()
        since = self._since = now if self._since is None else self._since
        # The server's wish and a pause of our own on top: thousands may have been given the same
        # wish.
        pause = missed.wait + self._clock.jitter(self._pause)
        self._pause = min(2 * self._pause, self._longest)
        # Not waited for in vain: a pause that ends too late is not begun.
        if self._timeout is not None and now + pause - since > self._timeout:
            raise missed.error
        await asyncio.sleep(pause)


def missed_connection(error: httpx.RequestError, url: str) -> FailedTry:
    """Return what it means that no whole answer came."""
    reason = sentence(error)
    is_passing = isinstance(error, httpx.TransportError) and not isinstance(error, OUR_OWN_FAULT)
    return FailedTry(
        ServerUnavailable(f"the server at {url} cannot be reached: {reason}", url=url),
        is_passing=is_passing and not is_distrusted(error),
        is_undone=isinstance(error, (*NOTHING_WAS_SENT, *OUR_OWN_FAULT)),
    )


def is_distrusted(error: BaseException) -> bool:
    """Whether the server's certificate was refused, which another try will not change."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
