"""Promises about a session's state: no change is lost that was not taken back.

Two lanes, their tools and people outside change the same slices, and roll them back. Each change
has to be made of the slices as the log had them right before it.
"""

from collections.abc import Iterator

import msgspec

from outlast.core import record as r
from outlast.core.record import AnyRecord, Entry
from outlast.core.slice import EMPTY, RESERVED, STATE_RECORDS, Slices, change, is_log, values_of
from outlast.testing.simulation.evidence import SimulationEvidence

LINES, COUNT = "OrderLine", "CallCount"
PART_OF_A_CHANGE = (*STATE_RECORDS, r.ToolEmitted)
"""What stands before the record that says whose change it was."""


def state_is_kept(evidence: SimulationEvidence) -> Iterator[str]:
    for name, session in evidence.talks.items():
        # What a tool of one's own writes is not known here; only of the agents made by chance.
        state = SimulatedState(knows_tools={"note", "charge"} <= set(evidence.agent(name).tools))
        for entry in session.entries:
            for wrong in state.see(entry):
                yield f"{name}@{entry.offset} {entry.lane}: {wrong}"


class SimulatedState:
    """The state of one session, changed as its log says."""

    def __init__(self, *, knows_tools: bool) -> None:
        self._knows_tools = knows_tools
        self._slices: Slices = EMPTY
        self._before: Slices = EMPTY
        """The slices before the change that is being made."""
        self._tools: dict[str, str] = {}
        self._asked: dict[str, r.StateChangeRequested] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        e = entry.record
        match e:
            case r.ToolRequested():
                self._tools[e.call_id] = e.tool
            case r.StateChangeRequested():
                self._asked[e.delivery_id] = e
            case r.ToolCompleted() if self._knows_tools and not e.same_as:
                yield from self._tool_changed(e)
            case r.DeliverySettled(outcome="completed") if e.delivery_id in self._asked:
                yield from self._outside_changed(self._asked[e.delivery_id])
        self._go_on(e)

    def _go_on(self, e: AnyRecord) -> None:
        if isinstance(e, STATE_RECORDS):
            self._slices = change(self._slices, e)
        elif not isinstance(e, PART_OF_A_CHANGE):
            self._before = self._slices

    def _tool_changed(self, e: r.ToolCompleted) -> Iterator[str]:
        tool = self._tools.get(e.call_id, "")
        if tool == "note":
            lines, before = texts(self._slices, LINES), texts(self._before, LINES)
            if lines[:-1] != before:
                yield f"{e.call_id} added a line to {len(before)}, and there are {len(lines)}"
            count, was = counted(self._slices), counted(self._before)
            if count != was + 1:
                yield f"{e.call_id} counted {was} on, to {count}"
        if tool == "charge" and len(texts(self._slices, LINES)) != 1:
            yield f"{e.call_id} left more than the line that it wrote"

    def _outside_changed(self, asked: r.StateChangeRequested) -> Iterator[str]:
        match asked.op:
            case "append":
                expected = (*texts(self._before, LINES), *(each.text for each in asked.values))
                if texts(self._slices, LINES) != expected:
                    yield f"{asked.delivery_id} added a line, and another is gone"
            case "rollback" | "reset":
                names = {*self._slices, *asked.slices}
                for name in (each for each in names if not each.startswith(RESERVED)):
                    wanted = asked.slices.get(name, ())
                    if not is_log(self._slices, name) and values_of(self._slices, name) != wanted:
                        yield f"{name} is not as {asked.delivery_id} rolled it back to"


def texts(slices: Slices, name: str) -> tuple[str, ...]:
    return tuple(value.text for value in values_of(slices, name))


def counted(slices: Slices) -> int:
    found = texts(slices, COUNT)
    return int(msgspec.json.decode(found[-1])["count"]) if found else 0
