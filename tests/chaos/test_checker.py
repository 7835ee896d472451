"""Every check passes on good evidence and fails on evidence that was doctored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from chaos import check_call, check_delivery, check_owner, check_run, check_time, checker
from chaos.checker import CHECKS, Check, check
from chaos.evidence import Evidence
from chaos.fault import Fault
from chaos.ledger import Mark
from chaos.reader import Reading
from chaos.report import report_on, traces
from chaos.user import Accepted
from outlast import Event
from outlast.core import record as r
from outlast.core.record import AnyRecord, Entry, Failure

S, LANE, RUN = "ses_1", "main", "run_1"
OLD, NEW = 11, 22
"""Two workers' processes: the first is killed at 5.0, the second takes the lane at 5.5."""

CALLS = {"t1.s1.c1": "book", "t1.s1.c2": "pay", "t1.s1.c3": "ship", "t1.s1.c4": "nap"}
AGAIN = ("t1.s1.c1", "t1.s1.c3", "t1.s1.c4")


def records() -> list[AnyRecord]:
    """A turn whose worker dies in the middle of four tools, and a message that waits."""
    done = [r.ToolCompleted(call_id=call, attempt=2, value='"done"') for call in AGAIN]
    return [
        r.SessionStarted(agent="porter"),
        r.DeliveryQueued(delivery_id="dlv_1"),
        r.TurnStarted(turn="t1", delivery_id="dlv_1", since=0),
        r.ModelStarted(call_id="t1.s1", attempt=1),
        r.MessageCompleted(call_id="t1.s1", attempt=1, parts=()),
        *(r.ToolRequested(call_id=call, tool=tool, digest="") for call, tool in CALLS.items()),
        *(r.ToolStarted(call_id=call, attempt=1) for call in CALLS),
        r.ToolStepRecorded(call_id="t1.s1.c4", name="step:lie down", value="null"),
        r.DeliveryQueued(delivery_id="dlv_2"),
        r.LaneTakenOver(worker="new", fence=2, since=0),
        r.ToolInterrupted(call_id="t1.s1.c2", attempt=1, reason="crash"),
        *(r.ToolStarted(call_id=call, attempt=2) for call in AGAIN),
        *done,
        r.TurnCompleted(turn="t1", call_id="t1.s1"),
        r.DeliverySettled(delivery_id="dlv_1", outcome="completed", turn="t1"),
        r.TurnStarted(turn="t2", delivery_id="dlv_2", since=0),
        r.LaneTakenOver(worker="new", fence=2, since=0, graceful=True),
        r.DeliverySettled(delivery_id="dlv_2", outcome="completed", turn="t2"),
    ]


def run_records() -> list[AnyRecord]:
    """A run that does something, reserves something, fails, and is undone."""
    call = "t1.s1.c1"
    undo = "=undo/step:undo#1"
    return [
        r.UndoRegistered(call_id=call, name="undo", title="undo pay"),
        r.ToolStepStarted(call_id=call, name="step:pay#1", attempt=1),
        r.ToolStepRecorded(call_id=call, name="step:pay#1", value="1"),
        r.ToolStepRecorded(call_id=call, name="step:book#1", value="1"),
        r.UndoStarted(call_id=call),
        r.ToolStepStarted(call_id=call, name=undo, attempt=1),
        r.ToolStepRecorded(call_id=call, name=undo, value="1"),
        r.UndoEnded(call_id=call),
    ]


def did(what: str) -> Mark:
    return Mark(what="did", at=9.0, pid=OLD, session=RUN, key=what)


def with_run(*more: AnyRecord, but: int = 0) -> Callable[[Evidence], None]:
    """Add to the log of the run, or leave out its last records."""

    def doctor(evidence: Evidence) -> None:
        kept = [entry.record for entry in evidence.runs[RUN]][: -but or None]
        log = enumerate([*kept, *more], 1)
        evidence.runs[RUN] = tuple(Entry(n, n, LANE, record) for n, record in log)

    return doctor


def do_again(what: str) -> Callable[[Evidence], None]:
    def doctor(evidence: Evidence) -> None:
        evidence.marks += (did(what),)

    return doctor


def marks() -> list[Mark]:
    old: dict[str, Any] = {"pid": OLD, "session": S, "lane": LANE, "worker": "old", "fence": 1}
    new: dict[str, Any] = {"pid": NEW, "session": S, "lane": LANE, "worker": "new", "fence": 2}
    first = [Mark(what="begun", at=2.0, call=c, attempt=1, tool=t, **old) for c, t in CALLS.items()]
    again = [Mark(what="begun", at=6.0, call=c, attempt=2, tool=CALLS[c], **new) for c in AGAIN]
    return [
        Mark(what="claimed", at=1.0, **old),
        Mark(what="begun", at=1.1, call="t1.s1", attempt=1, **old),
        *first,
        Mark(what="stepped", at=2.1, call="t1.s1.c4", attempt=1, **old),
        Mark(what="wrote", at=2.2, offset=14, **old),
        Mark(what="claimed", at=5.5, **new),
        Mark(what="wrote", at=5.6, offset=16, **new),
        *again,
        Mark(what="woke", at=6.5, call="t1.s1.c4", attempt=2, key="4000", **new),
        Mark(what="shipped", at=6.1, call="t1.s1.c3", attempt=2, key="parcel", **new),
        *haul(old, "t0", 1.0, 1.5),
        *haul(new, "t9", 7.0, 7.5),
        *(did("pay"), did("undo pay")),
    ]


def haul(worker: dict[str, Any], call: str, begun: float, ended: float) -> list[Mark]:
    """A call in a tool lane, of another session."""
    facts = {**worker, "session": "ses_2", "call": call, "attempt": 1, "tool": "haul", "key": "d1"}
    return [Mark(what="begun", at=begun, **facts), Mark(what="ended", at=ended, **facts)]


def event(entry: Entry) -> Event:
    at = datetime.fromtimestamp(entry.at, UTC)
    return Event(offset=entry.offset, type="x", at=at, lane=LANE, data={}, version=1)


def clean() -> Evidence:
    log = tuple(Entry(n, n, LANE, record) for n, record in enumerate(records(), 1))
    events = tuple(event(entry) for entry in log if not type(entry.record).internal)
    starts = [r.ToolStarted(call_id=call, attempt=1) for call in ("t0", "t9")]
    other = tuple(Entry(n, n, LANE, record) for n, record in enumerate(starts, 1))
    return Evidence(
        store="postgres",
        lease=4.0,
        logs={S: log, "ses_2": other},
        runs={RUN: tuple(Entry(n, n, LANE, e) for n, e in enumerate(run_records(), 1))},
        events={S: events},
        marks=tuple(marks()),
        accepted=(Accepted(S, "dlv_1", 2, "start"), Accepted(S, "dlv_2", 15, "follow-up")),
        readings=(Reading(S, events),),
        faults=(Fault(kind="kill", at=5.0, until=5.0, pid=OLD),),
        effects=[(S, "t1.s1.c1"), (RUN, "book")],
    )


def with_log(change: Callable[[list[Entry]], object]) -> Callable[[Evidence], None]:
    def doctor(evidence: Evidence) -> None:
        log = list(evidence.logs[S])
        change(log)
        evidence.logs[S] = tuple(log)

    return doctor


def with_marks(**facts: Any) -> Callable[[Evidence], None]:
    """Repeat the last mark of a kind for a call, changed."""

    def doctor(evidence: Evidence) -> None:
        known = [m for m in evidence.marks if m.what == facts["what"]]
        last = [m for m in known if m.call == facts.get("call", m.call)][-1]
        evidence.marks += (replace(last, **facts),)

    return doctor


def with_facts(**facts: Any) -> Callable[[Evidence], None]:
    def doctor(evidence: Evidence) -> None:
        for name, value in facts.items():
            setattr(evidence, name, value)

    return doctor


def add(*more: AnyRecord) -> Callable[[Evidence], None]:
    return with_log(lambda log: log.extend(Entry(len(log) + 1, 99, LANE, e) for e in more))


def place_of(log: list[Entry], kind: type, number: int = 0) -> int:
    return [n for n, entry in enumerate(log) if isinstance(entry.record, kind)][number]


def swap_turns(log: list[Entry]) -> None:
    first, second = (place_of(log, r.TurnStarted, n) for n in (0, 1))
    early = place_of(log, r.DeliveryQueued, 1)
    one, two = log[first], log[second]
    log[first] = Entry(one.offset, one.at, LANE, r.DeliveryQueued(delivery_id="dlv_2"))
    log[early] = Entry(log[early].offset, log[early].at, LANE, two.record)


def taken_over_too_late(evidence: Evidence) -> None:
    """Two calls under one key overlap, and the first one's lane changes hands only after that."""
    other = next(m for m in evidence.marks if m.what == "begun" and m.call == "t9")
    claim = replace(other, what="claimed", at=9.0, fence=3, worker="later")
    evidence.marks += (replace(other, call="t10", at=7.2), claim)
    starts = r.ToolStarted(call_id="t10", attempt=1)
    taken = r.LaneTakenOver(worker="later", fence=3, since=0)
    log = evidence.logs["ses_2"]
    evidence.logs["ses_2"] = (*log, Entry(3, 3, LANE, starts), Entry(4, 4, LANE, taken))


def taken_from_itself(evidence: Evidence) -> None:
    """A worker that lived is taken for dead, and takes its own lane again under another name."""
    evidence.marks = tuple(replace(mark, pid=NEW) for mark in evidence.marks)


def with_evidence(why: str) -> Callable[[Evidence], None]:
    """Have the log say on which evidence the lane was taken over."""

    def change(log: list[Entry]) -> None:
        place = place_of(log, r.LaneTakenOver)
        taken = r.LaneTakenOver(worker="new", fence=2, since=0, evidence=why)
        log[place] = replace(log[place], record=taken)

    return with_log(change)


def runs_on_meanwhile(why: str) -> Callable[[Evidence], None]:
    """The first worker ends a call after the second has begun it again."""

    def doctor(evidence: Evidence) -> None:
        with_evidence(why)(evidence)
        begun = next(m for m in evidence.marks if (m.what, m.call) == ("begun", "t1.s1.c3"))
        evidence.marks += (replace(begun, what="ended", at=6.5),)

    return doctor


def blip_of(seconds: float, why: str = "") -> Callable[[Evidence], None]:
    """The first worker lives, and was cut off for so long; its lane was taken over."""

    def doctor(evidence: Evidence) -> None:
        with_evidence(why)(evidence)
        evidence.faults = (Fault(kind="blip", at=2.0, until=2.0 + seconds, pid=OLD),)

    return doctor


FAILED = r.ToolFailed(call_id="t1.s1.c1", attempt=2, error=Failure("X", "x"))
LOST = Mark(what="lost", at=1.0, pid=OLD, key="an error that nobody foresaw")
WROTE_LATE = {"what": "wrote", "pid": OLD, "fence": 1, "offset": 20}

DOCTORED: list[tuple[Check, Callable[[Evidence], None]]] = [
    (
        check_delivery.every_receipt_is_in_the_log,
        with_facts(accepted=(Accepted(S, "dlv_3", 3, "lost"),)),
    ),
    (check_delivery.every_receipt_is_in_the_log, add(r.DeliveryQueued(delivery_id="dlv_1"))),
    (check_delivery.every_delivery_is_settled_once, with_log(lambda log: log.pop())),
    (
        check_delivery.every_delivery_is_settled_once,
        add(r.DeliverySettled(delivery_id="dlv_1", outcome="completed")),
    ),
    (check_delivery.turns_keep_the_order_of_arrival, with_log(swap_turns)),
    (check_delivery.readers_saw_the_log, lambda e: e.events.update({S: ()})),
    (check_delivery.readers_saw_the_log, with_log(lambda log: log.pop())),
    (check_delivery.logs_grow, with_log(lambda log: log.pop(3))),
    (check_delivery.logs_grow, with_log(lambda log: log.append(replace(log[-1], at=0)))),
    (check_call.recorded_work_never_reruns, with_marks(what="begun", call="t1.s1.c1")),
    (check_call.recorded_work_never_reruns, with_marks(what="begun", call="t1.s1.c1", attempt=3)),
    (check_call.recorded_work_never_reruns, with_marks(what="begun", call="t1.s1", attempt=2)),
    (check_call.recorded_work_never_reruns, add(FAILED)),
    (check_call.recorded_work_never_reruns, with_marks(what="wrote", offset=18, at=6.2)),
    (check_call.no_tool_fails, add(FAILED)),
    (check_call.recorded_steps_never_rerun, with_marks(what="stepped", attempt=2)),
    (
        check_call.unknown_effects_are_not_repeated,
        with_marks(what="begun", call="t1.s1.c2", attempt=2),
    ),
    (check_call.reconciled_effects_happen_once, with_marks(what="shipped", attempt=3)),
    (check_call.no_call_runs_twice_at_once, runs_on_meanwhile("lock_file")),
    (check_call.transactions_happen_once, with_facts(effects=[])),
    (check_call.transactions_happen_once, with_facts(effects=[(S, "t1.s1.c1")] * 2)),
    (check_call.tool_lanes_are_serial, with_marks(what="begun", call="t9", at=7.2)),
    (check_call.tool_lanes_are_serial, taken_over_too_late),
    (
        check_run.runs_are_done_once,
        with_run(r.ToolStepRecorded(call_id="t1.s1.c1", name="step:pay#1", value="1")),
    ),
    (check_run.runs_are_done_once, do_again("pay")),
    (check_run.undo_runs_in_reverse, do_again("undo other")),
    (check_run.undo_runs_in_reverse, with_run(but=4)),
    (check_run.transactional_steps_leave_their_row, with_facts(effects=[(S, "t1.s1.c1")])),
    (check_run.transactional_steps_leave_their_row, with_facts(effects=[(RUN, "book")] * 2)),
    (check_owner.fences_grow, add(r.LaneTakenOver(worker="x", fence=2, since=0))),
    (check_owner.fences_grow, add(r.LaneTakenOver(worker="x", fence=1, since=0, graceful=True))),
    (check_owner.fences_grow, with_marks(what="claimed", worker="x")),
    (check_owner.fences_grow, with_marks(**WROTE_LATE)),
    (check_owner.the_living_keep_their_lanes, with_facts(faults=())),
    (check_owner.the_living_keep_their_lanes, taken_from_itself),
    (
        check_owner.the_living_keep_their_lanes,
        with_facts(faults=(Fault(kind="restart", at=2.0, until=5.0),)),
    ),
    (
        check_owner.the_living_keep_their_lanes,
        with_facts(faults=(Fault(kind="kill", at=5.0, until=5.0, pid=NEW),)),
    ),
    (check_owner.the_living_keep_their_lanes, blip_of(1.0)),
    (check_owner.only_the_dead_are_passed_over_early, blip_of(9.0, "lock_file")),
    (
        check_time.timers_never_fire_early,
        with_marks(what="woke", call="t1.s1.c4", attempt=2, at=6.0, key="4000"),
    ),
    (check_time.dates_never_fall, with_log(lambda log: log.append(replace(log[-1], at=1)))),
    (checker.verify_finds_nothing, with_facts(findings=("CALL_LEFT_OPEN",))),
    (checker.nobody_complains, with_facts(complaints=("it did not come to rest",))),
    (checker.nobody_complains, with_facts(marks=(LOST,))),
]


def test_good_evidence_passes_every_check() -> None:
    assert {name: found for name, found in check(clean()).items() if found} == {}


def test_every_check_has_evidence_on_which_it_fails() -> None:
    assert {each for each, _ in DOCTORED} == set(CHECKS)


@pytest.mark.parametrize(
    ("each", "doctor"),
    DOCTORED,
    ids=[f"{n}-{each.__name__}" for n, (each, _) in enumerate(DOCTORED)],
)
def test_a_check_fails_on_doctored_evidence(
    each: Check, doctor: Callable[[Evidence], None]
) -> None:
    evidence = clean()
    doctor(evidence)
    assert list(each(evidence))


def test_a_worker_that_was_cut_off_for_long_may_lose_its_lane_by_its_lease_alone() -> None:
    evidence = clean()
    blip_of(9.0, "lease_expired")(evidence)

    assert {name: found for name, found in check(evidence).items() if found} == {}


def test_a_call_may_run_twice_at_once_when_a_lease_has_run_out() -> None:
    evidence = clean()
    runs_on_meanwhile("lease_expired")(evidence)

    assert list(check_call.no_call_runs_twice_at_once(evidence)) == []


def test_a_worker_that_stood_still_may_lose_its_lane_and_finish_what_it_had_begun() -> None:
    evidence = clean()
    evidence.faults = (Fault(kind="stop", at=2.0, until=7.0, pid=OLD),)
    with_marks(what="shipped", attempt=1, pid=OLD, at=7.1)(evidence)

    assert {name: found for name, found in check(evidence).items() if found} == {}


def slept_for(seconds: float, *, forward: int) -> Evidence:
    """Evidence of a nap of four seconds on SQLite, while the clock was set forward."""
    evidence = clean()
    evidence.store = "sqlite"
    evidence.faults += (Fault(kind="jump", at=2.5, until=2.5, forward=forward),)
    with_marks(what="woke", attempt=2, at=2.1 + seconds, key="4000")(evidence)
    return evidence


def test_a_timer_fires_as_much_earlier_as_the_stores_clock_was_set_forward() -> None:
    assert list(check_time.timers_never_fire_early(slept_for(1.0, forward=3_001))) == []
    assert len(list(check_time.timers_never_fire_early(slept_for(1.0, forward=2_900)))) == 1


def test_a_clock_that_is_set_forward_by_more_than_leases_allow_may_cost_the_living_lanes() -> None:
    for forward, is_excuse in ((3_000, True), (1_000, False)):
        evidence = clean()
        evidence.store = "sqlite"
        evidence.faults = (Fault(kind="jump", at=5.0, until=5.0, forward=forward),)

        assert (list(check_owner.the_living_keep_their_lanes(evidence)) == []) == is_excuse


def test_a_call_that_was_stopped_gives_its_key_free_though_its_worker_dies_later() -> None:
    evidence = clean()
    begun = next(m for m in evidence.marks if m.call == "t0")
    cancelled = (
        replace(begun, call="t8", at=1.6),
        replace(begun, call="t8", at=1.7, what="stopped"),
    )
    next_one = replace(begun, call="t9", pid=NEW, at=2.0)
    evidence.marks = (*cancelled, next_one, replace(next_one, at=2.1, what="ended"))

    assert list(check_call.tool_lanes_are_serial(evidence)) == []


def test_a_lock_that_outlasts_the_leases_may_cost_the_living_their_lanes() -> None:
    evidence = clean()
    evidence.store = "sqlite"
    evidence.faults = (Fault(kind="lock", at=2.0, until=5.0),)

    assert list(check_owner.the_living_keep_their_lanes(evidence)) == []
    assert report_on(evidence, seed=1, lasted=9.0).outlasted == 1


def test_the_report_counts_and_times() -> None:
    report = report_on(clean(), seed=1, lasted=9.0)

    assert report.is_clean
    assert (report.takeovers, report.faults) == (1, {"kill": 1})
    assert report.takeover_median == pytest.approx(0.6)
    assert (report.repeats, report.lost) == (0, 0)


def test_the_trace_tells_all_of_a_session_that_was_found_wrong() -> None:
    evidence = clean()
    lines = list(traces(evidence, {"a check": [f"{S}: something is wrong"]}))

    assert lines[0] == f"== {S}"
    assert sum(line.startswith("log") for line in lines) == len(evidence.logs[S])
    assert lines[-1].startswith("fault")
