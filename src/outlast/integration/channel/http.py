"""The guarded HTTP client for channels: raises what makes the outbox try again."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlast.core.instant import Span
from outlast.core.setting import seconds_of

if TYPE_CHECKING:
    from outlast.net.client import GuardedClient

MOST_READ = 256 * 1024


class ChannelClient:
    """Follows no redirect, and reaches no private network unless `allow_private`."""

    def __init__(
        self,
        *,
        allow_private: bool = False,
        timeout: Span = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._timeout = seconds_of("timeout", timeout)
        self._tls = tls
        self._client: GuardedClient | None = None

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post, and raise Unreachable unless the answer is 2xx."""
        async with self._opened().open(url) as connection:
            (await connection.post(body, headers)).check()

    async def ask(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Post, and return the text of an answer that is 2xx."""
        async with self._opened().open(url) as connection:
            answer = await connection.exchange(body, headers, MOST_READ)
        answer.check()
        return answer.body

    def _opened(self) -> GuardedClient:
        if self._client is None:
            from outlast.net.client import GuardedClient

            self._client = GuardedClient(
                allow_private=self._allow_private, timeout=self._timeout, tls=self._tls
            )
        return self._client
