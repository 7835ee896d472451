"""What holds in every story of a lane, made by chance.

More stories: FOLD_EXAMPLES=1000 pytest tests/unit/test_fold_properties.py
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from known import known_as
from msgspec.structs import replace
from unit.simulation import Simulation

from outlast.core import record as r
from outlast.core.action import AnyAction, Park
from outlast.core.codec import Packer, encode
from outlast.core.decide import decide
from outlast.core.fold import ARRIVALS, fold, fold_all
from outlast.core.lane import Lane, Turn
from outlast.core.message import Message, ModelAnswer, ToolCall, ToolOutputs, UserMessage, text_of
from outlast.core.outcome import NOT_RUN
from outlast.core.policy import HOUR
from outlast.core.record import Entry
from outlast.core.view import GO_ON, View, view_of
from outlast.log.verify.log import SessionLog


def live(seed: int, moments: int) -> Simulation:
    simulation = Simulation(seed)
    simulation.live(moments)
    return simulation


LIVES = st.builds(live, seed=st.integers(0, 2**32), moments=st.integers(1, 100))


def struggle(seed: int) -> Simulation:
    """A life in which models mostly break off."""
    simulation = Simulation(seed)
    simulation.answers = 1
    simulation.policy = replace(simulation.policy, on_partial="continue", typed=False)
    simulation.live(100)
    return simulation


STRUGGLES = st.builds(struggle, seed=st.integers(0, 2**32))

EXAMPLES = int(os.environ.get("FOLD_EXAMPLES", "100"))
many = settings(max_examples=EXAMPLES, phases=set(Phase) - {Phase.explain})


def start() -> Lane:
    return Lane(session="ses_1")


def taken_by(record: r.AnyRecord) -> set[str]:
    """The deliveries that a lane record takes out of the inbox."""
    name = getattr(record, "delivery_id", "")
    return {name} if name else set()


@many
@given(LIVES)
def test_a_log_folds_into_the_same_lane_however_it_is_cut(life: Simulation) -> None:
    whole = fold_all(start(), life.entries)

    for cut in range(0, len(life.entries), 5):
        before, after = life.entries[:cut], life.entries[cut:]
        assert fold_all(fold_all(start(), before), after) == whole == life.lane


@many
@given(LIVES)
def test_an_arrival_may_be_folded_before_or_after_any_record_that_does_not_take_it(
    life: Simulation,
) -> None:
    lane = start()
    entries = life.entries
    for first, second in pairwise(entries):
        kinds = (type(first.record) in ARRIVALS, type(second.record) in ARRIVALS)
        if kinds in ((True, False), (False, True)):
            arrival, other = (first, second) if kinds[0] else (second, first)
            if not taken_by(arrival.record) & taken_by(other.record):
                assert fold_all(lane, [first, second]) == fold_all(lane, [second, first])
        lane = fold(lane, first.record, first.offset)


@many
@given(LIVES)
def test_there_is_always_one_thing_to_do_next_and_it_is_always_the_same(
    life: Simulation,
) -> None:
    for end, at in life.seams:
        lane = fold_all(start(), life.entries[:end])
        for now in (at, life.now + HOUR):
            action = decide(lane, life.policy, now)
            assert isinstance(action, AnyAction)
            assert decide(lane, life.policy, now) == action


@many
@given(LIVES)
def test_every_record_comes_back_from_the_store_as_it_was(life: Simulation) -> None:
    records = [entry.record for entry in life.entries]
    packer = Packer()

    packed = packer.pack(encode(records))

    assert packer.unpack(packed.data, packed.blobs.__getitem__) == records


@many
@given(LIVES)
def test_a_snapshot_comes_back_as_the_lane_that_it_was_made_of(life: Simulation) -> None:
    lane = start()
    for entry in life.entries:
        lane = fold(lane, entry.record, entry.offset)
        stored = msgspec.msgpack.encode(lane)
        assert msgspec.msgpack.decode(stored, type=Lane) == lane


@many
@given(LIVES)
def test_every_delivery_is_settled_exactly_once(life: Simulation) -> None:
    action = life.next_action()
    if isinstance(action, Park) and life.lane.turn is None and not life.lane.queue:
        assert settled(life.entries) == Counter(arrived(life.entries))

    life.finish()

    assert settled(life.entries) == Counter(arrived(life.entries))


def arrived(entries: list[Entry]) -> list[str]:
    kinds = (
        r.DeliveryQueued,
        r.CancelRequested,
        r.RequestRelayed,
        r.StateChangeRequested,
        r.ContextChangeRequested,
    )
    return [e.record.delivery_id for e in entries if isinstance(e.record, kinds)]


def settled(entries: list[Entry]) -> Counter[str]:
    return Counter(e.record.delivery_id for e in entries if isinstance(e.record, r.DeliverySettled))


@many
@given(LIVES)
def test_every_requested_call_gets_exactly_one_outcome(life: Simulation) -> None:
    life.finish()

    wanted = [e.record.call_id for e in life.entries if isinstance(e.record, r.ToolRequested)]
    ended = [getattr(e.record, "call_id", "") for e in life.entries if is_outcome(e.record)]
    assert Counter(ended) == Counter(wanted)
    assert len(wanted) == len(set(wanted))


def is_outcome(record: Any) -> bool:
    match record:
        case r.ToolCompleted() | r.ToolDenied():
            return True
        case r.ToolFailed():
            return not record.again_at
        case r.ToolInterrupted():
            return record.final
    return False


@many
@given(LIVES)
def test_nothing_runs_before_it_was_approved_or_after_it_has_ended(life: Simulation) -> None:
    life.finish()

    asks: dict[str, str] = {}
    answered: dict[str, str] = {}
    ended: set[str] = set()
    about: dict[str, str] = {}
    for entry in life.entries:
        match entry.record:
            case r.ToolRequested() as e:
                asks[e.call_id] = e.asks
            case r.RequestOpened() as e if not (e.name or e.origin):
                about[e.request_id] = e.call_id
            case r.RequestResolved() as e if e.request_id in about:
                answered[about[e.request_id]] = e.option
            case r.ToolStarted() as e:
                assert e.call_id not in ended
                assert not asks[e.call_id] or answered[e.call_id] in ("approve", "rerun")
        if is_outcome(entry.record):
            ended.add(entry.record.call_id)  # type: ignore[union-attr]


@many
@given(LIVES)
def test_what_may_not_be_repeated_is_run_again_only_after_a_wait_of_its_own(
    life: Simulation,
) -> None:
    begun: set[str] = set()
    unrepeatable: set[str] = set()
    for entry in life.entries:
        match entry.record:
            case r.ToolRequested(tool="pay" | "launch") as e:
                unrepeatable.add(e.call_id)
            case r.ToolStarted() as e if e.call_id in unrepeatable:
                assert e.call_id not in begun
                begun.add(e.call_id)
            case r.ToolWoken() as e:
                begun.discard(e.call_id)


@many
@given(LIVES)
def test_only_what_never_began_is_told_as_not_run(life: Simulation) -> None:
    life.finish()

    begun: set[str] = set()
    for entry in life.entries:
        match entry.record:
            case r.ToolStarted() as e:
                begun.add(e.call_id)
            case r.ToolDenied() as e:
                assert e.call_id not in begun
            case r.ToolFailed() as e if e.error == NOT_RUN:
                assert e.call_id not in begun


@many
@given(LIVES)
def test_the_model_never_sees_a_call_without_its_result(life: Simulation) -> None:
    life.finish()

    for entry, view in views(life.entries):
        if isinstance(entry.record, r.ModelStarted):
            messages = view.messages
            for place, message in enumerate(messages):
                if isinstance(message, ModelAnswer):
                    asked = [p.call_id for p in message.parts if isinstance(p, ToolCall)]
                    given_ = messages[place + 1] if asked else None
                    assert not asked or isinstance(given_, ToolOutputs)
                    assert (
                        not asked
                        or [x.call_id for x in known_as(ToolOutputs, given_).results] == asked
                    )


def views(entries: Sequence[Entry]) -> Iterator[tuple[Entry, View]]:
    """Yield each entry with the view behind it, as the lane's owner has it."""
    view = View()
    for place, entry in enumerate(entries, 1):
        view.see([entry.record], entry.offset)
        if view.is_outdated:
            view = view_of(entries[:place], "main")
        yield entry, view


@many
@given(LIVES)
def test_a_view_that_goes_back_is_what_it_was_behind_the_turn(life: Simulation) -> None:
    life.finish()

    seen: dict[int, list[Message]] = {}
    ends: dict[str, int] = {}
    for entry, view in views(life.entries):
        seen[entry.offset] = list(view.messages)
        match entry.record:
            case r.TurnCompleted() | r.TurnFailed() | r.TurnCancelled() as e:
                ends[e.turn] = entry.offset
            case r.ContextRewound() as e:
                assert view.messages == seen[e.until] == seen[ends[e.to]]


@many
@given(LIVES)
def test_verify_finds_nothing_wrong_with_any_log(life: Simulation) -> None:
    life.finish()

    log = SessionLog("ses_1")
    for entry in life.entries:
        log.add(entry)
    assert log.findings == []


@many
@given(LIVES)
def test_the_same_log_gives_the_same_view(life: Simulation) -> None:
    life.finish()

    *_, (_, grown) = views(life.entries)
    whole = view_of(life.entries, "main")
    assert (grown.messages, grown.offsets) == (whole.messages, whole.offsets)
    assert (grown.answers, grown.rewinds) == (whole.answers, whole.rewinds)
    assert grown.summaries <= whole.summaries | set(grown.offsets)


@many
@given(STRUGGLES)
def test_no_model_is_shown_what_another_began_to_say(life: Simulation) -> None:
    life.finish()

    lane, said = start(), dict[int, str]()
    for entry in life.entries:
        lane = fold(lane, entry.record, entry.offset)
        match entry.record:
            case r.ModelStarted(attempt=1) as e:
                said = {1: e.model}
            case r.ModelStarted() as e:
                assert lane.turn is not None
                assert lane.turn.model is not None
                said[e.attempt] = e.model
                assert {said[each] for each in lane.turn.model.kept} <= {e.model}


@many
@given(STRUGGLES)
def test_a_view_has_as_much_of_an_answer_as_the_attempts_that_are_kept(life: Simulation) -> None:
    life.finish()

    lane = start()
    for entry, view in views(life.entries):
        lane = fold(lane, entry.record, entry.offset)
        if isinstance(entry.record, r.ModelStarted):
            assert lane.turn is not None
            assert lane.turn.model is not None
            last = reversed(view.messages)
            partial = [m for m in takewhile(is_of_partial, last) if isinstance(m, ModelAnswer)]
            assert len(partial) == len(lane.turn.model.kept)


def is_of_partial(message: Any) -> bool:
    """Whether a message is a partial answer of the open call, or asks to go on with it."""
    if isinstance(message, UserMessage):
        return text_of(message.content) == GO_ON
    return isinstance(message, ModelAnswer) and message.aborted


@many
@given(LIVES)
def test_a_turn_ends_once_and_only_after_all_its_calls(life: Simulation) -> None:
    life.finish()

    open_turn, open_calls = "", set[str]()
    for entry in life.entries:
        match entry.record:
            case r.TurnStarted() as e:
                assert not open_turn
                open_turn = e.turn
            case r.TurnCompleted() | r.TurnFailed() | r.TurnCancelled() as e:
                assert (open_turn, open_calls) == (e.turn, set())
                open_turn = ""
            case r.ToolRequested() as e:
                open_calls.add(e.call_id)
        if is_outcome(entry.record):
            open_calls.discard(entry.record.call_id)  # type: ignore[union-attr]
    assert not open_turn


def test_the_simulation_reaches_the_far_corners() -> None:
    """If it did not, the properties above would prove little."""
    seen: set[type] = set()
    for seed in range(300):
        life = live(seed, 60)
        life.finish()
        seen |= {type(entry.record) for entry in life.entries}

    never = set(r.AnyRecord.__args__) - seen
    of_runs = {
        *(r.WorkflowCalled, r.ToolStepStarted, r.ToolStepFailed, r.ToolMismatched),
        *(r.RunRestarted, r.JournalInherited, r.EventSent, r.EventReceived, r.EventTaken),
        *(r.UndoRegistered, r.UndoStarted, r.UndoEnded),
    }
    others = {r.SessionRekeyed, r.ToolEmitted, r.ReasoningCompleted}
    assert never == others | of_runs


class Compared(str):
    """A name that counts how often it is compared with others."""

    looks = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.looks += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        Compared.looks += 1
        return str.__ne__(self, other)


def test_the_oldest_of_a_backlog_is_settled_without_a_look_at_the_others() -> None:
    """A caller may send thousands of events that nobody waits for; each fold settles them all."""
    names = [Compared(f"dlv_{number}") for number in range(100)]
    lane = Lane(
        session="ses_1",
        name="main",
        sent=tuple(r.EventSent(delivery_id=name, name="word", payload="1") for name in names),
    )
    Compared.looks = 0
    for offset, name in enumerate(names):
        lane = fold(lane, r.DeliverySettled(delivery_id=name, outcome="answered"), offset + 1)

    assert lane.sent == ()
    assert Compared.looks <= 2 * len(names)


def test_an_event_of_a_new_name_copies_few_of_those_that_are_kept() -> None:
    """A run may be sent thousands of events, each of another name, that it takes much later."""
    lane = Lane(session="ses_1", turn=Turn("turn_1", ("dlv_0",), 1))
    for number in range(2000):
        lane = with_event(lane, f"word {number}")
    assert lane.turn is not None
    before = lane.turn.events

    after = with_event(lane, "last word").turn

    assert after is not None
    copied = [level for level in after.events.levels if not any(level is b for b in before.levels)]
    assert len(after.events) == 2001
    assert sum(map(len, copied)) < 100


def with_event(lane: Lane, name: str) -> Lane:
    lane = fold(lane, r.EventSent(delivery_id=f"dlv {name}", name=name, payload="1"), 1)
    lane = fold(lane, r.EventReceived(delivery_id=f"dlv {name}", name=name))
    return fold(lane, r.DeliverySettled(delivery_id=f"dlv {name}", outcome="answered"))
