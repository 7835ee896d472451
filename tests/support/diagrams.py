"""Draws the diagrams of docs/explanation/architecture.md from what they show.

`make diagrams` writes them into the page; `tests/docs/test_diagrams.py` fails when they differ.
The rooms come from the architecture test, the commits from a run that is watched, the states
from `decide` itself, asked all along the histories of the pure simulation.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any, NamedTuple

from unit.simulation import Simulation
from unit.test_architecture import SOURCE, TIERS

from outlast import Agent, Outlast, tool
from outlast.core import action as a
from outlast.core import record as r
from outlast.core.action import AnyAction, Park
from outlast.core.record import AnyRecord
from outlast.errors import OutlastError
from outlast.store import Admission, AdmissionReceipt, Claim, Commit, Committed, Refused
from outlast.stores.sqlite import SqliteStore
from outlast.testing import ScriptedModel, call, say
from outlast.testing.wrapped_store import WrappedStore

LINE = 30
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"

# The wider a diagram, the smaller its letters: a page's column is 700 pixels wide.
NARROW = '%%{init: {"sequence": {"width": 90, "actorMargin": 20, "messageFontSize": 15}}}%%'
SMALL = (
    '%%{init: {"flowchart": {"nodeSpacing": 18, "rankSpacing": 26, "padding": 6, '
    '"wrappingWidth": 110, "subGraphTitleMargin": {"top": 2, "bottom": 14}}}}%%'
)
"""Many arrows would make the picture wide, and its words too small to be read."""

# Thirteen tiers at Mermaid's own distances would fill three screens.
CLOSE = '%%{init: {"flowchart": {"rankSpacing": 18, "padding": 8, "wrappingWidth": 400}}}%%'

# The rooms


def draw_rooms() -> str:
    """Return the units of the package, tier above tier; each may import those below it."""
    lines = ["%% rooms: drawn by `make diagrams`", CLOSE, "flowchart TB"]
    tiers = [sorted(unit for unit in tier if is_built(unit)) for tier in TIERS]
    for number, tier in enumerate(tiers):
        lines.append(f'  tier{number}["{" &nbsp;·&nbsp; ".join(tier)}"]')
    lines += [f"  tier{number} --> tier{number - 1}" for number in range(1, len(tiers))]
    return "\n".join(lines)


def is_built(unit: str) -> bool:
    return (SOURCE / unit).is_dir() or (SOURCE / f"{unit}.py").is_file()


# One message through its commits


class WatchedStore(WrappedStore):
    """Notes what is written on behalf of one message, and by whom."""

    def __init__(self, store: SqliteStore, notes: list[str]) -> None:
        super().__init__(store)
        self._notes = notes

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        receipts = await super().admit(admissions)
        self._notes.append("Sender->>Store: admit: session.started,<br/>delivery.queued")
        self._notes.append("Store-->>Sender: receipt")
        return receipts

    async def claim(self, *args: Any, **options: Any) -> Sequence[Claim]:
        claims = await super().claim(*args, **options)
        if claims:
            self._notes.append(f"Worker->>Store: claim: fence {claims[0].fence}")
        return claims

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await super().commit(commits)
        for commit, result in zip(commits, results, strict=True):
            kinds = [kind_of(record) for record in commit.records]
            if isinstance(result, Committed):
                rest = "<br/>and release the lane" if commit.release else ""
                said = in_lines("commit: " + ", ".join(kinds))
                self._notes.append(f"Worker->>Store: {said}{rest}")
        return results


def in_lines(text: str) -> str:
    """Break a message of the diagram into lines: a long one makes all of it tiny on a page."""
    return "<br/>".join(wrap(text, LINE, break_on_hyphens=False))


def kind_of(record: AnyRecord) -> str:
    return str(type(record).__struct_config__.tag)


async def draw_message() -> str:
    """Return what a message with one tool call in it has written, in order."""
    notes: list[str] = []

    @tool
    async def refund(order: int) -> str:
        """Give the money back."""
        notes.append("Worker->>Tool: refund(17)")
        return "refunded"

    replies = iter([call("refund", order=17), say("Done.")])

    def answer(_: object) -> Any:
        notes.append("Worker->>Model: ask")
        return next(replies)

    agent = Agent("support", ScriptedModel(answer), tools=[refund])
    with TemporaryDirectory() as directory:
        store = WatchedStore(SqliteStore(Path(directory) / "message.db"), notes)
        async with Outlast([agent], store=store) as app:
            session = await app.start(agent, "Refund order 17")
            await session.wait()
    head = ["%% message: drawn by `make diagrams`", NARROW, "sequenceDiagram"]
    people = [f"  participant {who}" for who in ("Sender", "Store", "Worker", "Model", "Tool")]
    return "\n".join([*head, *people, *(f"  {note}" for note in notes)])


# A lane's states


class State(NamedTuple):
    """What a lane does next, in a reader's words, and the actions that come to it."""

    says: str
    actions: tuple[type[AnyAction], ...]


STATES = {
    "idle": State("waits for a message", (Park,)),
    "waiting": State("waits in a turn", (Park,)),
    "over": State("is over", (Park,)),
    "model": State("calls the model", (a.CallModel, a.Sleep)),
    "tools": State("runs tools", (a.RunTools, a.MissTools, a.CallWorkflow)),
    "rules": State("asks its rules", (a.GiveFeedback, a.CheckCompletion)),
    "ask": State("asks a human", (a.AskHuman, a.AskForBudget)),
    "take": State(
        "takes a reply", (a.TakeReply, a.RefuseReply, a.TakeRelay, a.TakeEvent, a.ExpireRequest)
    ),
    "ending": State("ends the turn", (a.CompleteTurn, a.FailTurn, a.CancelTurn)),
    "change": State("changes the session's state", (a.ChangeState,)),
    "context": State(
        "changes what the model sees", (a.CompactContext, a.ChangeContext, a.HandBack)
    ),
    "settle": State("settles deliveries", (a.SettleDeliveries,)),
    "closing": State("ends the session", (a.CompleteSession, a.FailSession)),
}
PASSED = ("change", "settle")
"""States that a lane passes on its way from one that is drawn to the next."""
ENDINGS = ("model", "rules")
"""The states from which a turn ends by itself; by a cancel or a failure it ends from any."""
IN_A_TURN = ("model", "tools", "rules", "ask", "take", "waiting")
BY_ACTION = {
    kind: name for name, state in STATES.items() for kind in state.actions if kind is not Park
}
SEEDS, MOMENTS, OFTEN = 400, 150, 5


def state_of(action: AnyAction) -> str:
    if isinstance(action, Park):
        rests = {(): "over", ("message",): "idle", ("retry",): "idle"}
        return rests.get(action.wait, "waiting")
    return BY_ACTION[type(action)]


class WalkedLane(Simulation):
    """A simulated lane that tells which state follows on which, and why."""

    def __init__(self, seed: int, seen: Counter[tuple[str, str, str]]) -> None:
        super().__init__(seed)
        self.loses_tools = False  # a deployment is none of the steps that are drawn
        self._seen = seen
        self._left: tuple[str, str] | None = None

    def work(self) -> AnyAction:
        before, in_turn = self.next_action(), self.lane.turn is not None
        done = super().work()
        # A delivery that is settled in the middle of a turn, and a reply that comes after it,
        # change nothing about where the lane stands.
        if state_of(before) != ("settle" if in_turn else "take"):
            self._note(before, "")
        return done

    def arrive(self) -> None:
        before, count = self.next_action(), len(self.entries)
        super().arrive()
        for entry in self.entries[count:]:
            why = arrival_of(entry.record)
            if isinstance(before, Park):
                self._note(before, why)
            elif self._left and self._left[1] and why == "message":  # it goes on with that
                self._left = (self._left[0], why)

    def pass_time(self) -> None:
        before = self.next_action()
        super().pass_time()
        if isinstance(before, Park):
            self._note(before, "time")

    def die(self) -> None:
        before = self.next_action()
        super().die()
        self._note(before, "crash")

    def _note(self, before: AnyAction, why: str) -> None:
        start, end = state_of(before), state_of(self.next_action())
        if start in PASSED:
            if self._left is None or why == "crash":
                return
            start, why = self._left
        self._left = (start, why) if end in PASSED else None
        if start == end or end in PASSED or (end == "ending" and start not in ENDINGS):
            return
        self._seen[start, why, end] += 1


def arrival_of(record: AnyRecord) -> str:
    match record:
        case r.DeliveryQueued(kind="message" | "retry"):
            return "message"
        case r.CancelRequested():
            return "cancel"
    return "reply"


def walk() -> Counter[tuple[str, str, str]]:
    """Return how often each state followed on each, along many simulated lanes."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for seed in range(SEEDS):
        WalkedLane(seed, seen).live(MOMENTS)
    return seen


def draw_states() -> str:
    steps = {step for step, count in walk().items() if count >= OFTEN}
    lines = ["%% states: drawn by `make diagrams`", SMALL, "flowchart TB"]
    lines += [node(name) for name in STATES if name not in (*IN_A_TURN, *PASSED)]
    lines.append('  subgraph turn["a turn is open"]')
    lines += [f"  {node(name)}" for name in IN_A_TURN]
    lines.append("  end")
    reasons: dict[tuple[str, str, bool], list[str]] = {}
    for start, why, end in sorted(steps):
        reasons.setdefault((start, end, why in ("", "crash")), []).append(why)
    for (start, end, is_own), whys in reasons.items():
        lines += [arrow(start, why, end) for why in (whys if is_own else [", ".join(whys)])]
    return "\n".join(lines)


def node(name: str) -> str:
    return f'  {name}["{STATES[name].says}"]'


def arrow(start: str, why: str, end: str) -> str:
    match why:
        case "":
            return f"  {start} --> {end}"
        case "crash":
            return f"  {start} -. crash .-> {end}"
    return f"  {start} -- {why} --> {end}"


ARROW = re.compile(r"^  (\w+) (?:-->|-- ([\w, ]+) -->|-\. (\w+) \.->) (\w+)$", re.MULTILINE)


def drawn_steps(diagram: str) -> set[tuple[str, str, str]]:
    """Return the steps that a drawn diagram shows."""
    return {
        (start, why, end)
        for start, whys, fall, end in ARROW.findall(diagram)
        for why in (whys or fall).split(", ")
    }


# The page


def drawn(page: str, name: str) -> str:
    """Return the diagram of a name as the page has it."""
    [diagram] = re.findall(rf"```mermaid\n(%% {name}:.*?)\n```", page, re.DOTALL)
    return str(diagram)


def main() -> None:
    page = PAGE.read_text("utf-8")
    drawings: dict[str, Callable[[], str]] = {
        "rooms": draw_rooms,
        "message": lambda: asyncio.run(draw_message()),
        "states": draw_states,
    }
    for name, draw in drawings.items():
        page = page.replace(drawn(page, name), draw())
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
