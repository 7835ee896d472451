"""The HTTP server: routes, streams, authentication. `asgi.create` makes it of an app.

Names imported here need nothing of the extra `server`; the other modules do. `refusal_of` and
`ErrorResponse` are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

from outlast.server.principal import Principal
from outlast.server.settings import ServerSettings

if TYPE_CHECKING:
    from outlast.server.error import ErrorResponse, refusal_of

__all__ = ["ErrorResponse", "Principal", "ServerSettings", "refusal_of"]


def __getattr__(name: str) -> Any:
    if name in ("ErrorResponse", "refusal_of"):
        from outlast.server import error

        return getattr(error, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
