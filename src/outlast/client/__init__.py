"""The HTTP client: sessions of a server somewhere else, held as if they were here.

async with Client("https://agents.example.com", token) as client:
    session = await client.start("support", "Refund order 17")
    async for event in session.events():
        print(event.offset, event.type)
"""

from outlast.client.client import Client
from outlast.client.info import RemoteInfo, RemoteWait
from outlast.client.listing import ListPage
from outlast.client.session import RemoteSession

__all__ = ["Client", "ListPage", "RemoteInfo", "RemoteSession", "RemoteWait"]
