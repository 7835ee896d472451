"""The HTTP server: routes, streams, authentication. `asgi.create` makes it of an app.

What is imported here needs nothing of the extra `server`; the rest does.
"""

from outlast.server.principal import Principal
from outlast.server.settings import ServerSettings

__all__ = ["Principal", "ServerSettings"]
