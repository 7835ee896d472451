"""Lines of a stream, put together from the pieces in which it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from outlast.client.retry import FailedTry
from outlast.errors import ServerUnavailable


async def lines_of(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Give each line once it is whole. Only a line feed ends one: JSON may hold any other.

    A stream that ends within a line was cut, whatever its connection says.
    """
    begun: list[bytes] = []
    async for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for end in whole:
            yield b"".join((*begun, end))
            begun = []
        if rest:
            begun.append(rest)
    if begun:
        raise FailedTry(ServerUnavailable("a stream ended within a line"), is_passing=True)
