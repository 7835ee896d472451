"""The HTTP client: sessions of a server somewhere else, held as if they were here.

async with Client("https://agents.example.com", token) as client:
    session = await client.start("support", "Refund order 17")
    async for event in session.events():
        print(event.offset, event.type)
"""

from outlast.client.budget import RemoteBudgets
from outlast.client.bulk import RemoteBulk
from outlast.client.client import Client
from outlast.client.fleet import (
    RemoteChannels,
    RemoteDeployments,
    RemoteProviders,
    RemoteQueues,
    RemoteWorkers,
)
from outlast.client.info import RemoteInfo, RemoteWait
from outlast.client.listing import ListPage
from outlast.client.run import RemoteRun
from outlast.client.session import Bookmark, RemoteReceipt, RemoteSession
from outlast.client.usage import RemoteUsage

__all__ = [
    "Bookmark",
    "Client",
    "ListPage",
    "RemoteBudgets",
    "RemoteBulk",
    "RemoteChannels",
    "RemoteDeployments",
    "RemoteInfo",
    "RemoteProviders",
    "RemoteQueues",
    "RemoteReceipt",
    "RemoteRun",
    "RemoteSession",
    "RemoteUsage",
    "RemoteWait",
    "RemoteWorkers",
]
