"""What a process knows of a server's clock, however late answers are and whatever clocks do."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.clock import Clock
from outlast.store.clock import DRIFT, STEP, WIDE, MeasuredStoreClock

HOUR = 3_600_000.0
spans = st.floats(0, 20_000)
delays = st.one_of(st.floats(0, 5), st.floats(0, 10_000))
jumps = st.floats(-2 * HOUR, 2 * HOUR).filter(lambda by: abs(by) > 2 * STEP)


class Machine(Clock):
    """A process's clocks, and a server's, which is elsewhere or on the same machine.

    `true` is the time that nobody can read; all are in milliseconds.
    """

    def __init__(self, *, ahead: float = 0.0, drift: float = 0.0, is_here: bool = False) -> None:
        self.true = 1_000_000.0
        self.unnoticed = 0.0
        self.set_by = 0.0
        self.ahead = ahead
        self.drift = 0.0 if is_here else drift
        self.is_here = is_here
        self.asked = 0
        self.known = MeasuredStoreClock(self, self.ask_soon)

    def ask_soon(self) -> None:
        self.asked += 1

    def boottime(self) -> float:
        return (self.true - self.unnoticed) / 1000

    def now(self) -> int:
        return floor(self.true + self.set_by)

    def server(self) -> int:
        server = self.true * (1 + self.drift) + self.ahead + self.set_by * self.is_here
        return floor(server + 0.5)

    def exchange(self, there: float, back: float) -> None:
        asked_at = self.known.asking()
        self.true += there
        time = self.server()
        self.true += back
        self.known.note(asked_at, time)

    def check(self) -> None:
        assert self.known.earliest() <= self.server() <= self.known.latest()
        assert self.known.earliest() <= self.known.date() <= self.known.latest()


@dataclass
class Pass:
    span: float

    def happen(self, machine: Machine) -> None:
        machine.true += self.span


@dataclass
class Answer:
    """A question that is sent late, or whose answer is late: stalled, or the process is stopped."""

    there: float
    back: float

    def happen(self, machine: Machine) -> None:
        machine.exchange(self.there, self.back)


@dataclass
class SetWall:
    by: float

    def happen(self, machine: Machine) -> None:
        machine.set_by += self.by


@dataclass
class Suspend:
    """A laptop sleeps: boot time and wall clock go on. The server does as well, elsewhere."""

    span: float

    def happen(self, machine: Machine) -> None:
        machine.true += self.span


@dataclass
class Freeze:
    """A machine stands still and nothing in it goes on, until its wall clock is set right."""

    span: float

    def happen(self, machine: Machine) -> None:
        machine.true += self.span
        machine.unnoticed += self.span


quiet = st.one_of(st.builds(Pass, spans), st.builds(Answer, delays, delays))
events = st.one_of(
    st.builds(SetWall, jumps),
    st.builds(Suspend, st.floats(HOUR / 60, 12 * HOUR)),
    st.builds(Freeze, st.floats(2 * STEP, HOUR)),
)
# A clock is set once before the next answer: two changes that cancel out cannot be seen.
days = st.lists(st.tuples(events, st.lists(quiet, max_size=3), delays, delays), max_size=6)


@given(
    ahead=st.floats(-HOUR, HOUR),
    drift=st.floats(-DRIFT, DRIFT),
    happenings=st.lists(quiet, max_size=20),
)
def test_the_servers_time_is_within_the_bounds_however_late_its_answers_are(
    ahead: float, drift: float, happenings: list[Pass | Answer]
) -> None:
    machine = Machine(ahead=ahead, drift=drift)
    machine.exchange(1, 1)
    for happening in happenings:
        happening.happen(machine)
        machine.check()


@given(is_here=st.booleans(), ahead=st.floats(-HOUR, HOUR), day=days)
def test_the_servers_time_is_within_the_bounds_though_clocks_are_set_and_machines_sleep(
    is_here: bool,
    ahead: float,
    day: list[tuple[SetWall | Suspend | Freeze, list[Pass], float, float]],
) -> None:
    machine = Machine(is_here=is_here, ahead=0.0 if is_here else ahead)
    machine.exchange(1, 1)
    for event, happenings, there, back in day:
        if is_here and isinstance(event, Freeze):
            continue  # the server stood still as well
        event.happen(machine)
        machine.check()
        for happening in happenings:
            if isinstance(happening, Pass):
                happening.happen(machine)
                machine.check()
        machine.exchange(there, back)
        machine.check()


@given(st.lists(st.tuples(delays, delays), max_size=20))
def test_a_late_answer_leaves_what_a_quick_one_has_told(lates: list[tuple[float, float]]) -> None:
    machine = Machine(ahead=HOUR)
    machine.exchange(1, 1)
    began = machine.true
    for there, back in lates:
        machine.exchange(there, back)
        doubt = machine.known.latest() - machine.known.earliest()
        assert doubt <= 4 + 2 * DRIFT * (machine.true - began)


@given(there=delays, back=delays)
def test_what_is_due_by_an_answer_is_due_when_the_answer_is_here(there: float, back: float) -> None:
    machine = Machine(ahead=-HOUR)
    machine.exchange(1, 1)
    asked_at = machine.known.asking()
    machine.true += there
    time = machine.server()
    machine.true += back
    machine.known.note(asked_at, time)
    assert machine.known.earliest() >= time


@pytest.mark.parametrize("by", [-HOUR, HOUR])
def test_a_clock_that_is_set_costs_a_measurement_and_nothing_after_it(by: float) -> None:
    machine = Machine(ahead=1234.0)
    machine.exchange(1, 1)
    machine.known.date()
    assert machine.asked == 0
    machine.set_by += by

    machine.check()

    assert machine.asked > 0
    machine.exchange(1, 1)
    machine.check()
    assert machine.known.latest() - machine.known.earliest() < WIDE


@pytest.mark.parametrize("by", [-HOUR, HOUR])
def test_a_server_whose_clock_was_set_is_believed_at_its_next_answer(by: float) -> None:
    machine = Machine()
    machine.exchange(1, 1)
    machine.ahead += by

    machine.exchange(1, 1)

    machine.check()
    assert machine.known.latest() - machine.known.earliest() < WIDE


def test_what_was_answered_late_is_measured_again() -> None:
    machine = Machine()
    machine.exchange(1, 6000)

    machine.known.date()

    assert machine.asked > 0


@given(there=delays, back=delays)
def test_clocks_that_agree_date_what_is_written_rightly_however_late_the_answer_was(
    there: float, back: float
) -> None:
    machine = Machine()
    machine.exchange(there, back)
    assert abs(machine.known.date() - machine.server()) <= 1


def test_boot_time_is_what_the_system_counts_since_it_was_started() -> None:
    clock = Clock()
    before = clock.monotonic()
    assert clock.boottime() >= before  # it counts suspended time as well
