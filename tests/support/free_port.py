"""A port for a server that is started later, or stopped and started again."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that nobody else is given as long as this process lives.

    It stays bound, unheard: whoever binds it by its number may, and nobody gets it by chance.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = int(held.getsockname()[1])
    held.detach()
    return port
