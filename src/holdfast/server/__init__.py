"""The HTTP server: routes, streams, authentication. `asgi.create` makes it of an app.

What is imported here needs nothing of the extra `server`; the rest does.
"""

from holdfast.server.principal import Principal
from holdfast.server.settings import ServerSettings

__all__ = ["Principal", "ServerSettings"]
