from datetime import UTC, datetime

import pytest

from outlast.core import record as r
from outlast.core.event import Event, present, type_of
from outlast.core.message import Text, ToolCall
from outlast.core.name import is_tool_call, lane_of
from outlast.core.record import AnyRecord, Entry


def event_of(record: AnyRecord, **texts: dict[int, str] | dict[str, str]) -> Event:
    entry = Entry(7, 1_700_000_000_000, "main", record)
    return present(entry, texts.get("deltas", {}), texts.get("args", {}))  # type: ignore[arg-type]


def test_an_event_says_where_and_when_it_happened() -> None:
    event = event_of(r.TurnStarted(turn="t1", delivery_id="d1", since=5))

    assert (event.offset, event.type, event.lane) == (7, "turn.started", "main")
    assert event.at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (event.turn, event.delivery_id) == ("t1", "d1")
    assert event.data == {"since": datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)}


def test_an_event_of_a_call_names_its_turn_step_call_and_attempt() -> None:
    event = event_of(r.ToolStarted(call_id="notes/t3.s2.c1", attempt=4))

    assert (event.turn, event.step, event.call_id) == ("notes/t3", 2, "notes/t3.s2.c1")
    assert event.attempt_id == "notes/t3.s2.c1#4"
    assert event.data == {}


@pytest.mark.parametrize("lane", ["bulk.s", "bob.smith", "my.crew", "docs.search", "a/b.s1.c2"])
def test_a_call_is_told_from_its_lane_whatever_that_is_called(lane: str) -> None:
    event = event_of(r.ToolStarted(call_id=f"{lane}/t3.s2.c1", attempt=1))

    assert (event.turn, event.step) == (f"{lane}/t3", 2)
    assert lane_of(event.turn) == lane
    assert is_tool_call(f"{lane}/t3.s2.c1")
    assert not is_tool_call(f"{lane}/t3.s2")


def test_json_texts_are_shown_as_values() -> None:
    done = r.ToolCompleted(call_id="t1.s1.c1", attempt=1, value='{"cents":5}')
    emitted = r.ToolEmitted(call_id="t1.s1.c1", name="paid", data="[1]")

    assert event_of(done).data["value"] == {"cents": 5}
    assert event_of(emitted).data == {"name": "paid", "data": [1]}


def test_arguments_that_are_no_json_are_shown_as_they_are() -> None:
    requested = r.ToolRequested(call_id="t1.s1.c1", tool="pay", digest="x")

    assert event_of(requested, args={"t1.s1.c1": '{"cents":'}).data["args"] == '{"cents":'
    assert event_of(requested, args={"t1.s1.c1": '{"cents":5}'}).data["args"] == {"cents": 5}


def test_a_streamed_answer_is_shown_whole() -> None:
    answer = r.MessageCompleted(
        call_id="t1.s1",
        attempt=1,
        parts=(Text(""), ToolCall("t1.s1.c1", "pay", "{}")),
        deltas_from=3,
        streamed=(0,),
    )

    shown = event_of(answer, deltas={0: "here you are"}).data

    assert shown["parts"][0]["text"] == "here you are"
    assert not {"streamed", "deltas_from"} & set(shown)


@pytest.mark.parametrize(
    "record",
    [
        r.SessionStarted(agent="a", token="secret"),
        r.SessionRekeyed(token="secret", revoked=("secret",)),
    ],
)
def test_tokens_are_never_shown(record: AnyRecord) -> None:
    assert "secret" not in str(event_of(record))


def test_the_types_of_records_are_told_apart() -> None:
    kinds: tuple[type, ...] = r.AnyRecord.__args__
    tags = {kind.__struct_config__.tag for kind in kinds}  # type: ignore[attr-defined]

    assert len(tags) == len(kinds)
    assert all("." in str(tag) for tag in tags)
    assert type_of(r.SessionEnded()) == "session.ended"
