"""The app as its tools may use it: its address, its agents and its connections.

Owns the protocols only, so that what runs a call need not know the app: `outlast/runtime.py` puts
in what implements them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from outlast.agents.decision import Decider
from outlast.core.instant import Span
from outlast.core.lane import Lane, OpenRequest
from outlast.core.record import NewOutboxCursor
from outlast.core.result import ChildContact, NewAuthorization


class Credential(Protocol):
    """A token of a signed-in account."""

    @property
    def access_token(self) -> str: ...

    @property
    def scopes(self) -> tuple[str, ...]: ...

    def covers(self, scopes: Iterable[str]) -> bool: ...


class AccountTokens(Protocol):
    """One account at a connection."""

    async def live(self, instead_of: str = "") -> Credential | None:
        """Return a token that can be used now; None means that a user has to sign in."""
        ...

    async def begin(
        self, scopes: Iterable[str], timeout: Span | None, now: int
    ) -> NewAuthorization:
        """Begin a sign-in."""
        ...


class TokenSource(Protocol):
    """The app's connections, as tools use them."""

    def of(self, connection: str, tenant: str, principal: str) -> AccountTokens:
        """Return whose token a session uses at a connection."""
        ...


class AgentRef(Struct, frozen=True):
    """Another agent, as one that asks it needs to know it; with a `url`, behind another server."""

    name: str
    parse: Callable[[str], Any]
    outbox: tuple[NewOutboxCursor, ...] = ()
    url: str = ""
    queue: str = ""


class WorkflowKind(Protocol):
    """A workflow of the app, as another that runs it needs to know it."""

    @property
    def queue(self) -> str:
        """The queue in which its runs stand; empty: none."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def outbox(self) -> tuple[NewOutboxCursor, ...]: ...

    def input_text(self, given: Any, /) -> str:
        """Return an input as JSON text, if a run can be started with it."""
        ...

    def output_of(self, text: str, /) -> Any:
        """Return an output from its JSON text."""
        ...


class ContactableServer(Protocol):
    """The server of a remote agent."""

    async def contact(self, lane: Lane, child: OpenRequest, public_url: str) -> ChildContact:
        """Start a child there, send it answers, look how it stands: see `Executor`."""
        ...


class Environment(Struct, frozen=True):
    """`public_url` is where the app is reached from outside.

    `agents` are those that its tools can ask, by name; `remotes` are the servers of those that are
    remote. `deciders` are the hooks that are asked about every tool call. Without `sign_ins` the
    app has no connections. `deployment` names the version of the code. `anchors` gives the cursor
    of the channel that a token is of, if the app has that channel.
    """

    public_url: str = ""
    agents: Mapping[str, AgentRef] = {}
    deciders: tuple[Decider, ...] = ()
    sign_ins: TokenSource | None = None
    remotes: Mapping[str, ContactableServer] = {}
    deployment: str = ""
    workflows: Mapping[str, WorkflowKind] = {}
    anchors: Callable[[str], tuple[NewOutboxCursor, ...]] = lambda token: ()


ALONE = Environment()
