"""Services that tools act at in somebody's name: signing in, and keeping what that gave.

Only what is written in users' code is imported here; the rest needs the extra `connections`.
"""

from outlast.integration.connection.connection import Connection

__all__ = ["Connection"]
