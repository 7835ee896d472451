from unit.history import (
    Log,
    answers,
    asks_approval,
    fails,
    message,
    returns,
    said,
    starts,
    step_begins,
    turn_begins,
    turn_completes,
    turn_fails,
    wants,
)

from outlast.core import record as r
from outlast.core.message import (
    Message,
    ModelAnswer,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
    text_of,
)
from outlast.core.record import AnyRecord
from outlast.core.view import GO_ON, View

C1, C2 = "t1.s1.c1", "t1.s1.c2"


def view_of(*records: AnyRecord) -> list[Message]:
    view = View()
    view.see_all(Log(*records).entries, "main")
    return view.messages


def user(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def told(*records: AnyRecord) -> list[str]:
    """What the model is told of the two calls of a step."""
    step = view_of(message(), *turn_begins(), *wants("pay", "ship"), *records, *step_begins(2))
    results = step[-1]
    assert isinstance(results, ToolOutputs)
    return [result.text for result in results.results]


def test_a_message_is_seen_when_its_turn_starts_and_not_before() -> None:
    assert view_of(message(text="hi")) == []
    assert view_of(message(text="hi"), *turn_begins()) == [user("hi")]


def test_a_message_that_was_never_taken_up_is_never_seen() -> None:
    dropped = r.DeliverySettled(delivery_id="d1", outcome="cancelled")

    assert view_of(message("d1"), dropped, message("d2", "hi"), *turn_begins(1, "d2")) == [
        user("hi")
    ]


def test_a_joined_message_stands_behind_the_results_of_the_step_before() -> None:
    seen = view_of(
        *(message(), *turn_begins(), *wants("find"), starts(), returns(), message("d2", "also")),
        r.StepCompleted(turn="t1", step=1),
        r.DeliveryJoined(delivery_id="d2", turn="t1"),
        r.StepStarted(turn="t1", step=2),
    )

    assert [type(m) for m in seen] == [UserMessage, ModelAnswer, ToolOutputs, UserMessage]
    assert seen[-1] == user("also")


def test_results_stand_in_the_order_of_the_calls_and_not_of_their_ends() -> None:
    seen = view_of(
        *(message(), *turn_begins(), *wants("pay", "ship"), starts(C1), starts(C2)),
        *(returns(C2), fails(C1), *step_begins(2)),
    )

    assert seen[-1] == ToolOutputs(
        (
            ToolOutput(C1, "pay", "TOOL_ERROR: no", failed=True),
            ToolOutput(C2, "ship", "ok"),
        )
    )


def test_an_interrupted_call_is_an_ordinary_result_that_says_so() -> None:
    [first, _] = told(
        *(starts(C1), r.ToolInterrupted(call_id=C1, attempt=1, reason="timeout")),
        returns(C2),
    )

    assert "unknown: it may or may not have happened (timeout)" in first


def test_failures_that_are_tried_again_are_not_seen() -> None:
    assert told(
        *(starts(C1), fails(C1, again_at=5), returns(C1)),
        r.ToolInterrupted(call_id=C2, attempt=1, reason="crash", final=False),
        returns(C2),
    ) == ["ok", "ok"]


def test_a_denied_call_says_why() -> None:
    denied = r.ToolDenied(call_id=C1, reason="too much")

    assert told(denied, returns(C2)) == ["Not run: too much.", "ok"]


def test_a_result_may_show_the_model_something_else_than_what_is_kept() -> None:
    shown = r.ToolCompleted(call_id=C1, attempt=1, value="[1,2]", message="two rows")
    plain = r.ToolCompleted(call_id=C2, attempt=1, value='{"a":1}')

    assert told(shown, plain) == ["two rows", '{"a":1}']


def test_arguments_that_a_human_changed_are_told() -> None:
    changed = r.RequestResolved(request_id="q1", option="approve", args='{"cents":5}')

    [first, _] = told(asks_approval("q1", C1), changed, returns(C1), returns(C2))

    assert first == '(A human changed the arguments to {"cents":5}.)\nok'


def test_a_streamed_answer_is_put_together_from_its_deltas() -> None:
    whole = r.MessageCompleted(
        call_id="t1.s1",
        attempt=1,
        parts=(Reasoning("", extra="signature"), Text(""), ToolCall(C1, "pay", "{}")),
        streamed=(0, 1),
    )
    thought = r.ReasoningDelta(call_id="t1.s1", attempt=1, part=0, text="hm")
    first, second = (
        r.MessageDelta(call_id="t1.s1", attempt=1, part=1, text=text) for text in ("so ", "be it")
    )

    seen = view_of(message(), *turn_begins(), thought, first, second, whole)

    assert seen[-1] == ModelAnswer(
        (Reasoning("hm", extra="signature"), Text("so be it"), ToolCall(C1, "pay", "{}"))
    )


def test_a_kept_partial_answer_is_followed_by_the_request_to_go_on() -> None:
    seen = view_of(
        *(message(text="hi"), *turn_begins(), said("Once "), said("upon")),
        r.MessageAborted(call_id="t1.s1", attempt=1, kept=True),
        r.ModelStarted(call_id="t1.s1", attempt=2),
    )

    assert seen == [user("hi"), ModelAnswer((Text("Once upon"),), aborted=True), user(GO_ON)]


def test_a_dropped_partial_answer_leaves_no_trace() -> None:
    seen = view_of(
        *(message(text="hi"), *turn_begins(), said("Once ")),
        r.MessageAborted(call_id="t1.s1", attempt=1),
        r.ModelStarted(call_id="t1.s1", attempt=2),
        *(said("Twice", attempt=2),),
        r.MessageCompleted(call_id="t1.s1", attempt=2, parts=(Text(""),), streamed=(0,)),
    )

    assert seen == [user("hi"), ModelAnswer((Text("Twice"),))]


def test_a_new_message_after_a_kept_partial_needs_no_request_to_go_on() -> None:
    seen = view_of(
        *(message(text="hi"), *turn_begins(), said("Once ")),
        r.MessageAborted(call_id="t1.s1", attempt=1, kept=True),
        r.TurnCancelled(turn="t1"),
        *(message("d2", "enough"), *turn_begins(2, "d2")),
    )

    assert seen == [user("hi"), ModelAnswer((Text("Once "),), aborted=True), user("enough")]


def test_a_failed_turn_leaves_the_results_that_there_are() -> None:
    seen = view_of(message(), *turn_begins(), *wants("pay"), starts(), returns(), turn_fails())

    assert [type(m) for m in seen] == [UserMessage, ModelAnswer, ToolOutputs]


def test_other_lanes_are_not_seen() -> None:
    view = View()
    view.see_all(Log(message(), *turn_begins()).entries, "notes")

    assert view.messages == []


def test_the_list_only_grows() -> None:
    view = View()
    records = [message(), *turn_begins(), *wants("find"), starts(), returns(), *step_begins(2)]
    before: list[Message] = []
    for record in [*records, answers(call_id="t1.s2"), turn_completes()]:
        view.see([record], 1)
        assert view.messages[: len(before)] == before
        before = list(view.messages)


def test_the_words_of_a_message_are_its_texts() -> None:
    assert text_of((Reasoning("hm"), Text("a"), ToolCall("c", "t", "{}"), Text("b"))) == "ab"
