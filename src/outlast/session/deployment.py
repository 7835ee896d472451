"""Deployments, for operators: `app.deployments`.

Owns what may be asked of them. What a deployment's workers are given is decided by the store's
`claim`, and what they pin lanes to by `engine/pin.py`.
"""

from collections.abc import Sequence

from outlast.core.setting import deployment_of
from outlast.errors import InvalidDefinition, InvalidInput, UnknownDeployment
from outlast.store import DeploymentInfo, Store


class DeploymentControl:
    """The named versions of the users' code: `app.deployments`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> Sequence[DeploymentInfo]:
        """List the deployments that workers have named, the current one first."""
        return tuple(await self._store.work.deployments())

    async def promote(self, name: str) -> None:
        """Make a deployment the current one of its agents: new turns begin there."""
        if not await self._store.work.promote(checked(name)):
            raise await self._unknown(name)

    async def retire(self, name: str, *, to: str) -> int:
        """Move all that is pinned to a deployment to another; return how many lanes that were.

        A turn that is open goes on with the other code. Where the deployment was the current one,
        the other one is from then on. Its workers are not stopped: drain them.
        """
        if name == to:
            raise InvalidInput(f"{name} cannot be retired to itself: name another deployment")
        moved = await self._store.work.retire(checked(name), checked(to))
        if moved is None:
            raise await self._unknown(name, to)
        return moved

    async def _unknown(self, *names: str) -> UnknownDeployment:
        known = [each.name for each in await self.list()]
        name = next(each for each in (*names, "") if each not in known)
        listed = ", ".join(known) or "none"
        return UnknownDeployment(
            f"no worker has named a deployment {name!r}; there is: {listed}", deployment=name
        )


def checked(name: str) -> str:
    """Return a name that a deployment can have, known or not."""
    try:
        return deployment_of("a deployment", name)
    except InvalidDefinition as error:  # in a setting it is that; here a caller has said it
        raise InvalidInput(error.message) from None
