"""The parts of a server beside its sessions: workers, queues, providers, channels, deployments.

Owns their routes. Each class has the methods of the same part of an app (`app.workers`, …). The
pages that they return are read in `listing.py`.
"""

from collections.abc import Sequence
from typing import Any

from outlast.client.connection import ServerConnection, segment
from outlast.client.decode import decode
from outlast.client.encode import some
from outlast.client.listing import (
    ListPage,
    WireDeployments,
    WireLanes,
    WireProviders,
    WireQueue,
    WireQueues,
    WireRetired,
    WireTried,
    WireWorkers,
)
from outlast.client.session import RemoteReceipt, RemoteSession
from outlast.core.instant import Span
from outlast.core.lane import Status
from outlast.core.queue import check_queue
from outlast.session.provider import ProviderOutage
from outlast.session.queue import QueueInfo, checked_changes
from outlast.store import DeploymentInfo, LaneInfo, WorkerInfo


class RemoteWorkers:
    """The workers of a server: `client.workers`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> ListPage[LaneInfo]:
        """List lanes, those of the newest session first."""
        query = some(session_id=session_id, agent=agent, status=status, cursor=after, limit=limit)
        raw = await self._connection.call("GET", "/lanes", query=query)
        found = decode(raw, WireLanes)
        return ListPage((each.value() for each in found.lanes), found.next_cursor)

    async def list(self) -> Sequence[WorkerInfo]:
        """List the living workers, oldest first."""
        found = decode(await self._connection.call("GET", "/workers"), WireWorkers)
        return tuple(each.value() for each in found.workers)


class RemoteQueues:
    """The queues of a server: `client.queues`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def list(self) -> Sequence[QueueInfo]:
        """List all queues by name."""
        found = decode(await self._connection.call("GET", "/queues"), WireQueues)
        return tuple(each.value() for each in found.queues)

    async def get(self, name: str) -> QueueInfo:
        """Return one queue."""
        raw = await self._connection.call("GET", f"/queues/{check_queue(name)}")
        return decode(raw, WireQueue).value()

    async def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        per_worker: int | None = None,
        per_key: int | None = None,
        rate: int | None = None,
        per: Span | None = None,
        priority: int | None = None,
        delay: Span | None = None,
        singleton: bool | None = None,
    ) -> QueueInfo:
        """Change settings of a queue, or make it; what is left out stays as it is."""
        given = {
            "concurrency": concurrency,
            "per_worker": per_worker,
            "per_key": per_key,
            "rate": rate,
            "per": per,
            "priority": priority,
            "delay": delay,
            "singleton": singleton,
        }
        path, body = f"/queues/{check_queue(name)}", checked_changes(given)
        return decode(await self._connection.call("POST", path, body=body), WireQueue).value()

    async def remove(self, name: str) -> None:
        """Forget the settings of a queue: nothing bounds its turns any more."""
        await self._connection.call("DELETE", f"/queues/{check_queue(name)}")


class RemoteProviders:
    """The providers that do not answer the agents of a server: `client.providers`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def list(self, *, agent: str | None = None) -> Sequence[ProviderOutage]:
        """List the providers that do not answer, those that are away for longest first."""
        raw = await self._connection.call("GET", "/providers", query=some(agent=agent))
        return tuple(each.value() for each in decode(raw, WireProviders).providers)

    async def try_now(self, *, agent: str | None = None) -> int:
        """Have the first in each line ask its provider now; return how many lines there are."""
        raw = await self._connection.call("POST", "/providers/try", body=some(agent=agent))
        return decode(raw, WireTried).tried


class RemoteChannels:
    """The channels of the app behind a server: `client.channels`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def anchor(
        self, session_id: str, channel: str, thread: str, *, dispatch_id: str | None = None
    ) -> RemoteReceipt[Any]:
        """Have a session told in a thread of a channel from now on, wherever it began."""
        session: RemoteSession[Any] = RemoteSession(self._connection, session_id)
        return await session._anchor(channel, thread, dispatch_id)


class RemoteDeployments:
    """The named versions of the code behind a server: `client.deployments`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def list(self) -> Sequence[DeploymentInfo]:
        """List the deployments that workers have named, the current one first."""
        found = decode(await self._connection.call("GET", "/deployments"), WireDeployments)
        return tuple(each.value() for each in found.deployments)

    async def promote(self, name: str) -> None:
        """Make a deployment the current one of its agents: what is pinned to none goes on there."""
        await self._connection.call("POST", f"/deployments/{segment(name)}/promote", body={})

    async def retire(self, name: str, *, to: str) -> int:
        """Move all that is pinned to a deployment to another one; return how many lanes."""
        path = f"/deployments/{segment(name)}/retire"
        return decode(await self._connection.call("POST", path, body={"to": to}), WireRetired).moved
