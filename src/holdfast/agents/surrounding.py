"""What tools may reach beyond their own session: the app's address, agents and connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.agents.decision import Decider
from holdfast.core.record import NewOutlet

if TYPE_CHECKING:
    from holdfast.connection.bureau import Bureau


class Kin(Struct, frozen=True):
    """Another agent of the app, as one that asks it needs to know it."""

    name: str
    parse: Callable[[str], Any]
    outlets: tuple[NewOutlet, ...] = ()


class Surroundings(Struct, frozen=True):
    """`public_url` is where the app is reached from outside, `kin` are its agents by name.

    `deciders` are the hooks that are asked about every tool call. Without a `bureau` the app has
    no connections.
    """

    public_url: str = ""
    kin: Mapping[str, Kin] = {}
    deciders: tuple[Decider, ...] = ()
    bureau: Bureau | None = None


ALONE = Surroundings()
