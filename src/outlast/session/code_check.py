"""Compares the code of today with what is open in a store: `app.check()`, `outlast check`.

Owns the findings: what a deployment of this code would meet, and what mends each. Reads only, and
calls no code of the user's but the classes of slices. What becomes of open sessions if nothing is
mended is in docs/how-to/upgrade.md.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from outlast.agents.agent import Agents
from outlast.agents.state.slice_type import types_named
from outlast.agents.state.stored_value import load
from outlast.agents.tool import Tool
from outlast.core import record as r
from outlast.core.lane import Lane, OpenCall, OpenRequest
from outlast.core.slice import RESERVED
from outlast.errors import InvalidInput, OutlastError, UnknownSession
from outlast.log.explain.evidence import read_state
from outlast.session.code_text import HasFunction, asks, is_given, is_own, waits_for_event
from outlast.session.start import RUN
from outlast.session.state import read_slices
from outlast.store import OpenFilter, SessionInfo, Store

CodeFindingKind = Literal[
    "agent", "workflow", "tool", "arguments", "input", "wait", "event", "slice", "output"
]
PAGE = 500
MOST_NAMED = 5
KEEP_WORDS = (
    "keep the words of the question, or give it the name that it had; else it is asked anew, and an"
    " answer to this one is not used"
)

SHOW: Mapping[bool | None, str] = {False: "", None: "show that it would "}
"""The words before the verb of a finding: none if it is certain, others if it is not."""


class CodeFinding(Struct, frozen=True, kw_only=True):
    """One thing that open sessions need and the code does not have, and what mends it.

    `name` is the part of the agent that it is about; `count` sessions need it, of which `sessions`
    are a few. One that is not `certain` may be none: the code does not show what it waits for.
    """

    kind: CodeFindingKind
    agent: str
    name: str
    text: str
    remedy: str
    count: int = 0
    sessions: tuple[str, ...] = ()
    certain: bool = True


class HasDigests(Protocol):
    """An agent or a workflow: what its callers see, by what it is of."""

    def digests(self) -> Mapping[str, str]: ...


class CheckedWorkflow(HasDigests, HasFunction, Protocol):
    """A workflow of the code of today."""

    def parse(self, text: str) -> Any:
        """Return an input as the body takes it. Raises InvalidInput if it cannot."""
        ...


class FoundNeeds:
    """Findings by what they say, with the sessions that each is about."""

    def __init__(self) -> None:
        self._whose: dict[tuple[bool, tuple[str, ...]], list[str]] = defaultdict(list)

    def add(self, session_id: str, *said: str, certain: bool = True) -> None:
        """Note a need of a session: kind, agent, name, sentence (`{n}` is how many), remedy."""
        # A session with ten calls of a tool that is gone needs it once.
        if session_id not in (known := self._whose[not certain, said]):
            known.append(session_id)

    def all(self) -> tuple[CodeFinding, ...]:
        return tuple(self._finding(said, whose) for said, whose in sorted(self._whose.items()))

    def _finding(self, said: tuple[bool, tuple[str, ...]], whose: list[str]) -> CodeFinding:
        unsure, (kind, agent, name, text, remedy) = said
        noun = "run" if all(each.startswith(RUN) for each in whose) else "session"
        number = f"{len(whose)} {noun}{'' if len(whose) == 1 else 's'}"
        return CodeFinding(
            kind=kind,  # type: ignore[arg-type]
            agent=agent,
            name=name,
            text=f"{number} of {agent} {text}",
            remedy=remedy,
            count=len(whose),
            sessions=tuple(whose[:MOST_NAMED]),
            certain=not unsure,
        )


async def check_code(
    store: Store, agents: Agents, flows: Mapping[str, CheckedWorkflow]
) -> tuple[CodeFinding, ...]:
    """Return all that open sessions need and the code of today does not have."""
    found = FoundNeeds()
    # All of them, also those at rest: their state is read when the next message comes.
    async for info in living_sessions(store):
        if info.agent in agents:
            await check_slices(found, store, info)
        elif flow := flows.get(info.agent):
            await check_input(found, store, info, flow)
        elif info.mode == RUN:
            found.add(
                info.session_id,
                *("workflow", info.agent, info.agent),
                "are not over, and the code has no workflow of that name: they wait for one",
                f'keep @workflow(name="{info.agent}") in the app until they are over',
            )
        else:
            found.add(
                info.session_id,
                *("agent", info.agent, info.agent),
                "are not over, and the code has no agent of that name: they wait for one",
                f'keep an Agent("{info.agent}", …) in the app until they are over',
            )
    elsewhere = await changed_outputs(store, {**agents, **flows})
    async for session_id, lane in open_turns(store):
        if agent := agents.get(lane.agent):
            assert lane.turn is not None
            for call in lane.turn.calls.values():
                if not call.is_done:
                    check_call(found, session_id, lane, call, agent.find_tool(call.tool), agents)
        elif flow := flows.get(lane.agent):
            check_body(found, session_id, lane, flow)
        if others := elsewhere.get(lane.agent):
            await check_output(found, store, session_id, lane, others)
    return found.all()


async def living_sessions(store: Store) -> AsyncIterator[SessionInfo]:
    before: str | None = None
    while page := await store.listing.sessions(before=before, limit=PAGE):
        for info in page:
            if not info.over:
                yield info
        before = page[-1].session_id


async def open_turns(store: Store) -> AsyncIterator[tuple[str, Lane]]:
    """Yield the folds of all lanes with an open turn."""
    after: tuple[str, str] | None = None
    while page := await store.listing.open_lanes(OpenFilter(), after=after, limit=PAGE):
        for each in page:
            lane = await read_state(store, each.session_id, each.lane) if each.turn else None
            if lane and lane.turn:
                yield each.session_id, lane
        after = (page[-1].session_id, page[-1].lane)


# Tools and their arguments


def check_call(
    found: FoundNeeds,
    session_id: str,
    lane: Lane,
    call: OpenCall,
    tool: Tool | None,
    agents: Agents,
) -> None:
    if tool is None:
        heir = successor(call, agents[lane.agent].tools.values())
        remedy = f'add @tool(aliases=["{call.tool}"]) to {heir or "its successor"}'
        found.add(
            session_id,
            *("tool", lane.agent, call.tool),
            f"{needs(call)} the tool {call.tool}, which is gone",
            f"{remedy}, or keep it until they are over",
        )
        return
    if tool.misfit(call.tool, call.args):
        found.add(
            session_id,
            *("arguments", lane.agent, call.tool),
            f"{needs(call)} {call.tool} with arguments that do not fit"
            f" {tool.name}({tool.arguments.form})",
            "give new arguments defaults and keep old ones"
            if call.attempt
            else "give new arguments defaults, or approve again with other arguments",
        )
    for request in lane.turn.requests.values() if lane.turn else ():
        if request.call_id == call.call_id and is_own(request):
            asked = is_given(call.args, request) or asks(tool, request)
            about = ("wait", lane.agent, call.tool)
            add_wait(found, session_id, about, asked, f"in {call.tool} ", request)


def add_wait(
    found: FoundNeeds,
    session_id: str,
    about: tuple[str, str, str],
    is_asked: bool | None,
    where: str,
    request: OpenRequest,
) -> None:
    """Note a question that code does not ask, or does not show that it asks."""
    if not is_asked:
        text = f"wait {where}for what its code does not {SHOW[is_asked]}ask: {request.asked!r:.80}"
        found.add(session_id, *about, text, KEEP_WORDS, certain=is_asked is not None)


def needs(call: OpenCall) -> str:
    """Say what an open call waits for in the tool, in the plural."""
    match call.status:
        case "asked":
            return "ask for an approval of"
        case "approved":
            return "have an approval of"
        case "waiting" | "woken":
            return "are in the middle of"
    return "are about to run"


def successor(call: OpenCall, tools: Any) -> str:
    """Return the one tool that takes the arguments of a call, if there is only one."""
    fit = [tool.name for tool in tools if not tool.misfit(call.tool, call.args)]
    takes_some = call.args not in ("", "{}")
    return fit[0] if takes_some and len(fit) == 1 else ""


# Runs


async def check_input(
    found: FoundNeeds, store: Store, info: SessionInfo, flow: CheckedWorkflow
) -> None:
    """Say that a run was given what its workflow does not take any more."""
    given = ""
    for entry in (await store.log.read(info.session_id, 0, 2)).entries:
        if isinstance(entry.record, r.DeliveryQueued):
            given = entry.record.args
    try:
        flow.parse(given or "null")
    except InvalidInput as error:
        found.add(
            info.session_id,
            *("input", info.agent, "input"),
            f"have an input that the workflow does not take any more: {error.message}",
            "give new fields defaults and keep old ones; else these runs error",
        )


def check_body(found: FoundNeeds, session_id: str, lane: Lane, flow: CheckedWorkflow) -> None:
    """Say which questions and events of an open run its code does not wait for any more."""
    assert lane.turn is not None
    for request in lane.turn.requests.values():
        if is_own(request):
            about = ("wait", lane.agent, lane.agent)
            add_wait(found, session_id, about, asks(flow, request), "", request)
    kept = [name for name, payloads in lane.turn.events.whole().items() if payloads]
    kept += [event.name for event in lane.sent if event.name not in kept]
    awaited = [name for call in lane.turn.calls.values() for name in call.events.values()]
    for names, what in ((awaited, "wait for"), (kept, "have got, and not taken,")):
        for name in names:
            if not (waits := waits_for_event(flow, name)):
                found.add(
                    session_id,
                    *("event", lane.agent, name),
                    f"{what} the event {name}, for which the code does not {SHOW[waits]}wait",
                    f'keep ctx.wait_event("{name}") until they are over; else it is never taken',
                    certain=waits is not None,
                )


# Slices and output types


async def check_slices(found: FoundNeeds, store: Store, info: SessionInfo) -> None:
    """Read what a session keeps, as the classes of slices that this process knows."""
    try:
        slices = await read_slices(store, info.session_id)
    except UnknownSession:  # erased since it was listed
        return
    for name, kept in slices.items():
        for kept_as in types_named(name) if not name.startswith(RESERVED) else ():
            try:
                for value in kept.values:
                    load(value, kept_as)
            except OutlastError as error:
                what, _, remedy = error.message.rpartition(": ")
                about = ("slice", info.agent, name)
                found.add(
                    info.session_id, *about, f"keep state that cannot be read: {what}", remedy
                )
                break


async def changed_outputs(
    store: Store, agents: Mapping[str, HasDigests]
) -> Mapping[str, frozenset[str]]:
    """Return the deployments in which the output of an agent or workflow is of another type."""
    known = await store.work.deployments()
    others: dict[str, frozenset[str]] = {}
    for name, agent in agents.items():
        now = agent.digests()[key := f"{name}.output"]
        differing = (each.name for each in known if each.digests.get(key, now) != now)
        others[name] = frozenset(differing)
    return others


async def check_output(
    found: FoundNeeds, store: Store, session_id: str, lane: Lane, others: frozenset[str]
) -> None:
    """Say that an open turn began where the output of its agent is of another type."""
    pin = (await store.listing.pins(session_id)).get(lane.name)
    if pin and pin.deployment in others:
        found.add(
            session_id,
            *("output", lane.agent, "output_type"),
            f"have an open turn of the deployment {pin.deployment}, where the output is of another"
            " type",
            "callers get the new type: let these turns end on the old deployment"
            ' (pin="turn"), or keep the type until they have',
        )
