"""The HTTP server: routes, streams, authentication. `asgi.create` makes it of an app.

Names imported here need nothing of the extra `server`; the other modules do.
"""

from outlast.server.principal import Principal
from outlast.server.settings import ServerSettings

__all__ = ["Principal", "ServerSettings"]
