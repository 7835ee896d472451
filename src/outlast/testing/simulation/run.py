"""Runs one simulation, and says what it came to."""

import gc
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import msgspec

from outlast.agents.agent import Agent
from outlast.errors import StoreError
from outlast.testing.simulation.evidence import SimulationEvidence
from outlast.testing.simulation.history import History, UnexpectedError
from outlast.testing.simulation.loop import NothingWillHappen
from outlast.testing.simulation.promise import Violation, broken_promises
from outlast.testing.simulation.report import SimulationReport
from outlast.testing.simulation.world import SimulatedWorld, Wrap

ENGINE = logging.getLogger("outlast.engine")
LISTENED = (ENGINE, logging.getLogger("outlast.integration.connection"))
AGENTS = logging.getLogger("outlast.agents")
FLOWS = logging.getLogger("outlast.workflows")


class Simulation:
    """Many workers on one virtual loop, with faults. The same seed gives the same, to the byte.

    Simulates your own `agents`, to which people say `messages`, or agents made by chance. What a
    model or a tool does may depend on its arguments and the attempt; real time, threads, sockets
    and unseeded chance have no place in it. `wrap` puts a store of yours round the real one. With
    `workflows` people start runs of one made by chance instead, whose body changes meanwhile.
    """

    def __init__(
        self,
        seed: int,
        *,
        agents: Sequence[Agent[Any, Any]] | None = None,
        messages: Sequence[str] = (),
        wrap: Wrap = lambda store: store,
        workflows: bool = False,
    ) -> None:
        self.seed = seed
        self._agents = () if workflows and agents is None else agents
        self._workflows = workflows
        self._messages = messages
        self._wrap = wrap

    def run(self) -> SimulationReport:
        """Let it happen; say what did, and which promises were broken."""
        with no_collection():
            world = SimulatedWorld(
                self.seed,
                self._agents,
                self._messages,
                self._wrap,
                with_workflows=self._workflows,
            )
            try:
                with (
                    listening(world.history),
                    disabled(AGENTS),
                    disabled(FLOWS),
                ):  # tools fail as they are meant to
                    return self._check(world)
            finally:
                with silence():
                    world.close()

    def _check(self, world: SimulatedWorld) -> SimulationReport:
        try:
            evidence = world.loop.run_until_complete(world.happen())
        except NothingWillHappen:
            stuck = Violation("3 recovery is the normal path", "everybody waits for ever")
            return self._report("", (stuck,), 0, world)
        for what in world.loop.unhandled:
            world.history.note(UnexpectedError, what=what)
        broken = tuple(broken_promises(evidence))
        return self._report(digest_of(evidence), broken, len(evidence.sessions), world)

    def _report(
        self, digest: str, broken: tuple[Violation, ...], sessions: int, world: SimulatedWorld
    ) -> SimulationReport:
        lasted, history = world.loop.time(), world.history
        return SimulationReport(
            self.seed, digest, broken, sessions, lasted, history, self._workflows
        )


def digest_of(evidence: SimulationEvidence) -> str:
    """Return what stands for all that was stored and all that happened."""
    digest = sha256()
    for name, session in evidence.sessions.items():
        digest.update(name.encode())
        digest.update(msgspec.msgpack.encode(session.entries))
    digest.update(msgspec.msgpack.encode(evidence.history.notes))
    return digest.hexdigest()


@contextmanager
def no_collection() -> Iterator[None]:
    """Have nothing happen at the whim of the garbage collector, which need not look at the rest."""
    was_on, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    if was_frozen:
        gc.collect()  # what stays frozen for good must not be what the last simulation has left
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        if was_on:
            gc.enable()


class ErrorListener(logging.Handler):
    """Takes down what the engine did not foresee."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, StoreError):
            self._history.note(UnexpectedError, what=f"{record.getMessage()}: {error!r}")


@contextmanager
def listening(history: History) -> Iterator[None]:
    listener, was_spread = ErrorListener(history), [log.propagate for log in LISTENED]
    for log in LISTENED:
        log.addHandler(listener)
        log.propagate = False
    try:
        yield
    finally:
        for log, spread in zip(LISTENED, was_spread, strict=True):
            log.removeHandler(listener)
            log.propagate = spread


@contextmanager
def silence() -> Iterator[None]:
    """Let the dead be buried without a word: nothing of what they still do counts."""
    with disabled(ENGINE), disabled(AGENTS), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
        gc.collect()


@contextmanager
def disabled(log: logging.Logger) -> Iterator[None]:
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled
