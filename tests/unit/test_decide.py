from pathlib import Path
from typing import Any

import pytest
from known import known_as
from msgspec.structs import replace
from unit.history import (
    OOPS,
    Log,
    answers,
    asks_approval,
    asks_question,
    cancel,
    crash,
    fails,
    gives_feedback,
    graceful_stop,
    message,
    parks,
    refuses_answer,
    reply,
    resumes,
    retries,
    retry,
    returns,
    said,
    settles,
    starts,
    step_begins,
    step_fails,
    turn_begins,
    turn_completes,
    turn_fails,
    unavailable,
    vanishes,
    wants,
)
from unit.recovery_cases import C1, C2, CASES, NOW, Case, recovery_table, run, tool_policy

from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    AskHuman,
    CallModel,
    CancelTurn,
    CheckCompletion,
    CompactContext,
    CompleteSession,
    CompleteTurn,
    ExpireRequest,
    FailSession,
    FailTurn,
    GiveFeedback,
    MissTools,
    Park,
    RunTools,
    SettleDeliveries,
    Sleep,
    Start,
    TakeReply,
)
from outlast.core.decide import decide, rest_for
from outlast.core.lane import ArrivedReply, DeliveryOutcome
from outlast.core.message import Text
from outlast.core.outcome import opening, outcome
from outlast.core.policy import HOUR, MINUTE, SECOND, FeedbackTrigger, Policy, ToolPolicy
from outlast.core.record import Failure
from outlast.core.result import CompletionChecked, FeedbackCollected, FeedbackSaid, TurnStopped

RECOVERY = Path(__file__).parents[2] / "docs" / "explanation" / "recovery.md"


def next_of(log: Log, policy: Policy = Policy(), now: int = NOW) -> AnyAction:  # noqa: B008
    return decide(log.lane, policy, now)


def settles_as(*outcomes: tuple[str, r.DeliveryResult, str]) -> SettleDeliveries:
    return SettleDeliveries(outcomes=tuple(DeliveryOutcome(*each) for each in outcomes))


def code_of(action: AnyAction) -> str:
    assert isinstance(action, FailTurn)
    return action.error.code


# The table


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_log_is_gone_on_with_as_the_recovery_table_says(case: Case) -> None:
    assert decide(case.log.lane, case.policy, case.now) == case.expected


def test_the_recovery_page_shows_exactly_this_table() -> None:
    rows = [line for line in RECOVERY.read_text().splitlines() if line.startswith("|")]

    assert "\n".join(rows) == recovery_table()


# Cancels


def test_a_cancel_goes_before_a_reply_that_came_earlier() -> None:
    log = Log(message(), *turn_begins(), *wants("pay", asks="always"), asks_approval())
    log.add(reply("q1", "approve"), cancel("t1"))

    assert isinstance(next_of(log), CancelTurn)


def test_a_cancel_of_a_turn_that_is_over_is_ignored() -> None:
    log = Log(message(), *turn_begins(), answers(), turn_completes(), settles())
    log.add(message("d2"), *turn_begins(2, "d2"), cancel("t1"))

    assert next_of(log) == settles_as(("dc", "ignored", ""))


def test_a_cancel_before_the_turn_cancels_the_message_at_the_head_of_the_queue() -> None:
    log = Log(message("d1"), message("d2"), cancel())

    assert next_of(log) == settles_as(("d1", "cancelled", ""), ("dc", "completed", ""))


def test_a_cancel_that_arrived_just_before_its_message_was_taken_up_stops_the_turn() -> None:
    log = Log(message("d1"), cancel(), *turn_begins())

    assert next_of(log) == CancelTurn(turn="t1", reason="stop", delivery_id="dc")


def test_a_cancel_means_no_message_that_came_after_it() -> None:
    waiting = Log(cancel(), message("d1"))
    taken_up = Log(cancel(), message("d1"), *turn_begins())

    assert next_of(waiting) == settles_as(("dc", "ignored", ""))
    assert next_of(taken_up) == settles_as(("dc", "ignored", ""))


def test_a_cancel_that_names_a_message_stops_it_and_no_other() -> None:
    names = r.CancelRequested(delivery_id="dc", reason="stop", message="d1")
    queued = Log(message("d1"), message("d2"), names)
    taken_up = Log(message("d1"), names, *turn_begins())
    behind_another = Log(message("d0"), *turn_begins(1, "d0"), message("d1"), names)
    joined = Log(message("d0"), *turn_begins(1, "d0"), message("d1"), names)
    joined.add(r.DeliveryJoined(delivery_id="d1", turn="t1"))
    is_gone = Log(message("d1"), settles("d1", outcome="completed"), message("d2"), names)

    assert next_of(queued) == settles_as(("d1", "cancelled", ""), ("dc", "completed", ""))
    assert next_of(taken_up) == CancelTurn(turn="t1", reason="stop", delivery_id="dc")
    for log in (behind_another, joined, is_gone):
        assert next_of(log) == settles_as(("dc", "ignored", ""))


def test_an_end_cancels_the_open_turn_first_and_then_ends_the_session() -> None:
    log = Log(message(), *turn_begins(), cancel(ends=True))
    assert next_of(log) == CancelTurn(turn="t1", reason="stop")

    log.add(r.TurnCancelled(turn="t1", reason="stop"), settles(outcome="cancelled"))
    assert next_of(log) == CompleteSession(reason="stop", delivery_id="dc")


def test_an_end_is_not_counted_as_the_cancel_of_a_task() -> None:
    log = Log(message(), *turn_begins(), cancel(ends=True), mode="task")
    log.add(r.TurnCancelled(turn="t1", reason="stop"), settles(outcome="cancelled"))

    assert isinstance(next_of(log), CompleteSession)


# Replies and requests


def test_a_reply_is_taken_ahead_of_every_message() -> None:
    log = Log(message(), *turn_begins(), *wants("pay", asks="always"), asks_approval())
    log.add(message("d2"), reply("q1", "approve"))

    assert next_of(log) == TakeReply(reply=ArrivedReply("dr", "q1", "approve"))


def test_an_approved_call_runs_while_another_still_waits() -> None:
    log = Log(message(), *turn_begins(), *wants("pay", "ship", asks="always"))
    log.add(asks_approval("q1", C1), asks_approval("q2", C2))
    log.add(r.RequestResolved(request_id="q2", option="approve"))

    assert next_of(log) == run(Start(C2, 1))


def test_what_needs_no_approval_runs_before_and_while_others_are_asked_about() -> None:
    log = Log(message(), *turn_begins(), *wants("find", "pay"))
    log.add(r.ToolRequested(call_id=C2, tool="pay", digest="x", asks="always"))
    assert next_of(log) == AskHuman(call_id=C2, kind="approval")

    log.add(asks_approval("q2", C2))
    assert next_of(log) == run(Start(C1, 1))


def test_requests_past_their_time_are_closed_before_anything_runs() -> None:
    log = Log(message(), *turn_begins(), *wants("pay"), starts(), *asks_question(expires_at=900))
    log.add(parks("request"))

    assert next_of(log, now=899) == Park(wait=("request",), requests=("q1",), until=900)
    assert next_of(log, now=900) == ExpireRequest(request_id="q1")


def test_an_answered_wait_runs_the_tool_again_as_the_next_attempt() -> None:
    log = Log(message(), *turn_begins(), *wants("pay"), starts(), *asks_question())
    log.add(r.RequestResolved(request_id="q1", text="the red one"))
    log.add(r.ToolWoken(call_id=C1, name="ask:1"))

    assert next_of(log) == run(Start(C1, 2))


def test_what_a_call_opens_while_its_turn_is_being_stopped_is_closed_with_it() -> None:
    log = Log(message(), *turn_begins(), *wants("pay"), starts())
    where: dict[str, Any] = {"request_id": "w1", "call_id": C1, "attempt": 1, "name": "callback:1"}
    log.add(r.CallbackOpened(**where, expires_at=HOUR))

    log.add(*outcome(log.lane, CancelTurn(turn="t1"), TurnStopped(), Policy(), NOW))

    closed = [e.record.request_id for e in log.entries if isinstance(e.record, r.CallbackClosed)]
    assert closed == ["w1"]


def test_a_call_that_repeats_one_of_unknown_outcome_is_asked_about() -> None:
    log = Log(message(), *turn_begins(), *wants("pay", asks="repeat", repeats="t1.s0.c1"))

    assert next_of(log) == AskHuman(call_id=C1, kind="approval")


# Attempts


def crashes(times: int, *begin: r.AnyRecord) -> list[r.AnyRecord]:
    return [record for _ in range(times) for record in (*begin, crash())]


def test_a_model_call_that_cost_ten_workers_ends_its_turn() -> None:
    log = Log(message(), *turn_begins(), crash())
    log.add(*crashes(8, r.ModelStarted(call_id="t1.s1", attempt=2)))
    assert isinstance(next_of(log), CallModel)

    log.add(*crashes(1, r.ModelStarted(call_id="t1.s1", attempt=10)))
    assert code_of(next_of(log)) == "WORKERS_LOST"


def test_a_tool_call_lost_ten_times_ends_its_turn_with_no_progress() -> None:
    log = Log(message(), *turn_begins(), *wants("pay"), *crashes(9, starts()))
    assert next_of(log, tool_policy("rerun")) == run(Start(C1, 2))

    log.add(*crashes(1, starts()))
    assert code_of(next_of(log, tool_policy("rerun"))) == "NO_PROGRESS"


def test_a_call_that_others_are_quicker_than_may_be_tried_for_ever() -> None:
    undone = r.ToolInterrupted(call_id=C1, attempt=1, reason="contended", final=False)
    log = Log(message(), *turn_begins(), *wants("pay"), *[starts(), undone] * 20)

    assert next_of(log, tool_policy("rerun")) == run(Start(C1, 2))


def test_a_message_whose_time_is_up_interrupts_nothing_and_has_failed() -> None:
    late = r.DeliveryQueued(delivery_id="d2", content=(Text("hello?"),), deadline_at=NOW)
    log = Log(message(), *turn_begins(), late)

    action = next_of(log, Policy(on_busy="interrupt"))

    assert action == settles_as(("d2", "failed", ""))
    log.add(settles("d2", "failed"), message("d3"))
    assert isinstance(next_of(log, Policy(on_busy="interrupt")), CancelTurn)


def test_a_view_that_is_to_be_made_shorter_does_not_outlive_its_sessions_deadline() -> None:
    asked = r.ContextChangeRequested(delivery_id="d2", op="compact")
    log = Log(
        message(), *turn_begins(), answers(), turn_completes(), settles("d1", turn="t1"), asked
    )
    lane = replace(log.lane, deadline=NOW)

    assert isinstance(decide(lane, Policy(), NOW - 1), CompactContext)
    assert isinstance(decide(lane, Policy(), NOW), CompleteSession)


def test_a_turn_that_is_open_at_its_sessions_deadline_has_failed_whichever_lane_ended_it() -> None:
    log = Log(message(), *turn_begins(), r.SessionEnded(reason="its deadline has passed"))
    lane = replace(log.lane, deadline=NOW)

    assert code_of(decide(lane, Policy(), NOW)) == "DEADLINE_EXCEEDED"
    assert isinstance(decide(lane, Policy(), NOW - 1), CancelTurn)


def test_a_turn_whose_step_had_failed_at_the_deadline_fails_for_that() -> None:
    """Found by the simulation, seed 107 with snapshots."""
    log = Log(message(), *turn_begins(), step_fails(), r.SessionEnded(reason="late"))
    lane = replace(log.lane, deadline=NOW)

    action = decide(lane, Policy(), NOW)

    assert isinstance(action, FailTurn)
    assert action.error == OOPS


def test_attempts_are_counted_per_call() -> None:
    log = Log(message(), *turn_begins(), *wants("pay", "pay"))
    log.add(*crashes(9, starts(C1)), returns(C1), *crashes(9, starts(C2)))

    assert next_of(log, tool_policy("rerun")) == run(Start(C2, 2))


def test_a_recorded_failure_resets_the_count_of_a_model_call() -> None:
    log = Log(message(), *turn_begins(), *crashes(9, r.ModelStarted(call_id="t1.s1", attempt=1)))
    log.add(r.ModelStarted(call_id="t1.s1", attempt=10), retries(not_before=0))
    log.add(*crashes(9, r.ModelStarted(call_id="t1.s1", attempt=11)))

    assert isinstance(next_of(log), CallModel)


def test_a_recorded_failure_resets_the_count_of_a_tool_call() -> None:
    log = Log(message(), *turn_begins(), *wants("pay"), *crashes(9, starts()))
    log.add(starts(), fails(again_at=1), *crashes(9, starts()))

    assert next_of(log, tool_policy("rerun")) == run(Start(C1, 2))


def test_a_graceful_stop_costs_no_attempt() -> None:
    log = Log(message(), *turn_begins(), *wants("pay"), *crashes(9, starts()))
    log.add(starts(), graceful_stop(), crash())

    assert next_of(log, tool_policy("rerun")) == run(Start(C1, 2))


def test_a_takeover_before_the_call_began_costs_no_attempt() -> None:
    log = Log(message(), *turn_begins(), *wants("pay"), *crashes(20))

    assert next_of(log) == run(Start(C1, 1))


def test_the_wait_between_two_tries_of_a_tool_parks_the_lane() -> None:
    log = Log(message(), *turn_begins(), *wants("find"), starts(), fails(again_at=5000))

    assert next_of(log) == Park(wait=("timer",), until=5000)
    assert next_of(log, now=5000) == run(Start(C1, 2))


def test_a_key_that_another_call_has_is_looked_at_ever_more_rarely() -> None:
    log = Log(message(), *turn_begins(at=0), *wants("pay"))
    first = rest_for(log.lane, ("key",), HOUR)
    log.add(parks("key", at=HOUR, spent=HOUR))
    waited = (100, SECOND, 4 * SECOND, HOUR)

    looks = [rest_for(log.lane, ("key",), HOUR + each).until - HOUR - each for each in waited]

    assert first == Park(wait=("key",), until=HOUR + SECOND // 2)
    assert looks == [SECOND // 2, SECOND, 4 * SECOND, 10 * SECOND]


# The provider


def test_a_short_wait_for_the_provider_is_slept_in_the_worker() -> None:
    log = Log(message(), *turn_begins(), retries(not_before=2000))

    assert next_of(log) == Sleep(until=2000)
    assert isinstance(next_of(log, now=2000), CallModel)


def test_a_long_wait_for_the_provider_parks_the_lane() -> None:
    log = Log(message(), *turn_begins(), unavailable(not_before=90_000))

    assert next_of(log) == Park(wait=("provider",), until=90_000)
    assert isinstance(next_of(log, now=90_000), CallModel)


def test_the_patience_with_a_provider_counts_from_its_first_failure() -> None:
    log = Log(message(), *turn_begins(), unavailable(not_before=90_000, since=1000))
    policy = Policy(provider_patience=60_000)

    assert next_of(log, policy=policy) == Park(wait=("provider",), until=61_000)
    end = next_of(log, now=61_000, policy=policy)

    assert isinstance(end, FailTurn)
    assert end.error.code == OOPS.code


def test_without_patience_a_turn_fails_though_now_is_before_its_first_failure() -> None:
    log = Log(message(), *turn_begins(), unavailable(not_before=90_000, since=1000))

    end = next_of(log, now=990, policy=Policy(provider_patience=0))

    assert end == FailTurn(turn="t1", error=OOPS)


def test_a_message_behind_an_outage_does_not_begin_it_anew() -> None:
    log = Log(message(), *turn_begins(), unavailable(not_before=90_000, since=1000))
    log.add(
        r.TurnFailed(turn="t1", error=OOPS), r.DeliverySettled(delivery_id="d1", outcome="failed")
    )

    assert log.lane.outage is not None
    assert log.lane.outage.since == 1000
    log.add(r.ProviderAvailable(call_id="t1.s1", attempt=2, since=1000, attempts=1))
    assert log.lane.outage is None


def test_a_partial_answer_is_gone_on_with_after_a_failed_attempt_too() -> None:
    log = Log(message(), *turn_begins(), said("Once"), retries(not_before=500))

    action = next_of(log)

    assert isinstance(action, CallModel)
    assert (action.attempt, action.aborts, action.keeps) == (2, 1, True)


# Limits


def test_a_turn_has_at_most_max_steps_steps() -> None:
    log = Log(message(), *turn_begins(), *wants("find"), starts(), returns())
    log.add(*step_begins(2), *wants("find", call_id="t1.s2"), starts("t1.s2.c1"))
    log.add(returns("t1.s2.c1"))

    assert isinstance(next_of(log, Policy(max_steps=3)), CallModel)
    assert code_of(next_of(log, Policy(max_steps=2))) == "MAX_STEPS"


def test_a_last_answer_within_the_limit_of_steps_completes_the_turn() -> None:
    log = Log(message(), *turn_begins(), answers())

    assert next_of(log, Policy(max_steps=1)) == CompleteTurn(turn="t1", step=1, call_id="t1.s1")


def test_a_model_that_never_gets_its_arguments_right_fails_the_turn() -> None:
    log = Log(message(), *turn_begins(), *wants("find"), fails(code="RETRY"))
    assert isinstance(next_of(log, Policy(max_corrections=1)), CallModel)

    log.add(*step_begins(2), *wants("find", call_id="t1.s2"), fails("t1.s2.c1", code="RETRY"))
    assert code_of(next_of(log, Policy(max_corrections=1))) == "TOO_MANY_CORRECTIONS"


def test_an_answer_that_is_refused_too_often_fails_the_turn() -> None:
    log = Log(message(), *turn_begins(), answers(), refuses_answer())
    policy = Policy(checkers=("tests",), max_refusals=1)
    assert isinstance(next_of(log, policy), CallModel)

    log.add(*step_begins(2), answers(call_id="t1.s2"))
    assert isinstance(next_of(log, policy), CheckCompletion)
    log.add(refuses_answer(2, step=2))
    failed = next_of(log, policy)
    assert code_of(failed) == "COMPLETION_REFUSED"
    assert "2 answers" in failed.error.message  # type: ignore[union-attr]
    assert isinstance(next_of(log, Policy()), CompleteTurn)  # the checkers are gone from the code


def test_feedback_is_due_by_calls_of_the_lane_and_by_the_time_of_the_turn() -> None:
    log = Log(message(), *turn_begins(at=0), *wants("find", "pay"), starts(C1), starts(C2))
    log.add(returns(C1), fails(C2))
    by_calls = Policy(feedback=(FeedbackTrigger("stay", calls=3),))
    by_time = Policy(feedback=(FeedbackTrigger("hurry", span=500),))

    assert isinstance(next_of(log, by_calls), CallModel)
    assert isinstance(next_of(log, by_time, now=499), CallModel)
    assert isinstance(next_of(log, by_time, now=500), GiveFeedback)

    log.add(gives_feedback("hurry", at=600))
    assert isinstance(next_of(log, by_time, now=HOUR - 1), CallModel)  # once in a step

    log.add(*step_begins(2), *wants("find", call_id="t1.s2"))
    log.add(r.ToolDenied(call_id="t1.s2.c1", reason="no"))
    assert isinstance(next_of(log, by_calls), GiveFeedback)
    assert isinstance(next_of(log, by_time, now=1099), CallModel)
    assert isinstance(next_of(log, by_time, now=1100), GiveFeedback)


def test_rules_that_looked_at_a_step_before_write_nothing_down() -> None:
    """A clock that is set back while they look makes them due no longer: the model is asked."""
    log = Log(message(), *turn_begins(at=0), *wants("find"), starts(C1))
    log.add(returns(C1), *step_begins(2))
    action = next_of(log, now=499)
    late = FeedbackCollected("t1", 1, (FeedbackSaid("hurry", "go on"),))
    checked = CompletionChecked("t1", 1, ("tests",), {})

    assert list(outcome(log.lane, action, late, Policy(), 499)) == []
    assert list(outcome(log.lane, action, checked, Policy(), 499)) == []


def test_a_typed_answer_is_no_call_that_feedback_counts() -> None:
    log = Log(message(), *turn_begins(), *wants("final_result", output=True))
    log.add(r.ToolCompleted(call_id=C1, attempt=0, value='"accepted"'), refuses_answer())
    policy = Policy(feedback=(FeedbackTrigger("stay", calls=1),), checkers=("tests",))

    assert isinstance(next_of(log, policy), CallModel)


def test_a_turn_ends_when_its_active_time_is_used_up() -> None:
    log = Log(message(), *turn_begins(at=0))

    assert isinstance(next_of(log, now=HOUR - 1), CallModel)
    assert code_of(next_of(log, now=HOUR)) == "TURN_TIMEOUT"


def test_a_running_model_call_is_looked_at_again_when_the_turns_time_is_up() -> None:
    action = next_of(Log(message(), *turn_begins(at=0)), now=HOUR // 2)

    assert isinstance(action, CallModel)
    assert action.until == HOUR


def test_a_takeover_does_not_renew_a_turns_time() -> None:
    log = Log(message(), *turn_begins(at=0), crash(at=9 * HOUR, spent=HOUR - SECOND))

    assert isinstance(next_of(log, now=9 * HOUR), CallModel)
    assert code_of(next_of(log, now=9 * HOUR + SECOND)) == "TURN_TIMEOUT"


def test_parked_time_is_not_counted() -> None:
    log = Log(message(), *turn_begins(at=0), *wants("pay"), starts(), *asks_question())
    log.add(parks("request", at=SECOND, spent=SECOND))
    week = 7 * 24 * HOUR
    assert isinstance(next_of(log, now=week), Park)

    log.add(resumes(at=week), r.RequestResolved(request_id="q1", text="yes"))
    log.add(r.ToolWoken(call_id=C1, name="ask:1"))
    assert isinstance(next_of(log, now=week + HOUR - SECOND - 1), type(run()))
    assert code_of(next_of(log, now=week + HOUR - SECOND)) == "TURN_TIMEOUT"


# Messages while a turn is open


def test_queued_messages_wait_for_the_end_of_the_turn() -> None:
    log = Log(message(), *turn_begins(), *wants("find"), starts(), returns(), message("d2"))

    action = next_of(log)

    assert isinstance(action, CallModel)
    assert action.joins == ()


def test_joining_messages_are_placed_before_the_next_model_call() -> None:
    log = Log(message(), *turn_begins(), *wants("find"), starts(), returns())
    log.add(message("d2"), retry("d3"), message("d4"))

    action = next_of(log, Policy(on_busy="join"))

    assert isinstance(action, CallModel)
    assert action.joins == ("d2", "d4")


def test_a_joining_message_waits_while_the_turn_waits_for_a_human() -> None:
    log = Log(message(), *turn_begins(), *wants("pay", asks="always"), asks_approval())
    log.add(message("d2"))

    assert isinstance(next_of(log, Policy(on_busy="join")), Park)


def test_an_interrupting_message_cancels_the_open_turn() -> None:
    log = Log(message(), *turn_begins(), *wants("pay", asks="always"), asks_approval())
    log.add(message("d2"))

    action = next_of(log, Policy(on_busy="interrupt"))

    assert isinstance(action, CancelTurn)
    assert action.superseded


@pytest.mark.parametrize(
    "action",
    [
        CancelTurn(turn="t1", reason="a newer message came", superseded=True),
        CancelTurn(turn="t1", reason="enough", delivery_id="d9"),
        FailTurn(turn="t1", error=Failure("TURN_TIMEOUT", "too long"), structural=True),
    ],
)
def test_a_turn_whose_requests_are_closed_ends_as_it_was_decided(action: AnyAction) -> None:
    log = Log(message(), *turn_begins(), *wants("pay", asks="always"), asks_approval())

    first, closed = opening(log.lane, action, NOW)
    log.add(first, closed, crash())

    assert isinstance(first, r.TurnStopping)
    assert next_of(log) == action
    assert opening(log.lane, action, NOW) == []


def test_a_turn_that_waits_for_nothing_is_stopped_without_a_word() -> None:
    log = Log(message(), *turn_begins())

    assert opening(log.lane, CancelTurn(turn="t1", reason="enough"), NOW) == []


@pytest.mark.parametrize(
    ("action", "kept"),
    [
        (CancelTurn(turn="t1", reason="enough"), True),
        (FailTurn(turn="t1", error=Failure("TURN_TIMEOUT", "too long")), False),
    ],
)
def test_half_an_answer_is_kept_of_a_turn_that_was_cancelled_only(
    action: AnyAction, kept: bool
) -> None:
    log = Log(message(), *turn_begins(), said("It is"))

    aborted, *_ = outcome(log.lane, action, TurnStopped(()), Policy(), NOW)

    assert aborted == r.MessageAborted(call_id="t1.s1", attempt=1, kept=kept)


def test_a_model_whose_answer_does_not_fit_is_asked_again_so_often() -> None:
    log = Log(message(), *turn_begins())
    unfit = r.MessageCompleted(call_id="t1.s1", attempt=1, parts=(Text("2"),), misfit="no object")
    log.add(unfit)

    again = known_as(CallModel, next_of(log, Policy(typed=True)))
    assert (again.call_id, again.attempt) == ("t1.s2", 1)
    assert isinstance(next_of(log, Policy(typed=True, max_corrections=0)), FailTurn)
    log.add(*step_begins(2), replace(unfit, call_id="t1.s2", misfit=""))
    assert isinstance(next_of(log, Policy(typed=True)), CompleteTurn)


def test_joined_messages_settle_with_the_turn_that_they_joined() -> None:
    log = Log(message(), *turn_begins(), *wants("find"), starts(), returns(), message("d2"))
    log.add(r.DeliveryJoined(delivery_id="d2", turn="t1"), *step_begins(2))
    log.add(answers(call_id="t1.s2"), turn_completes())

    assert next_of(log) == settles_as(("d1", "completed", "t1"), ("d2", "completed", "t1"))


# Ends


def test_a_task_ends_with_its_answer() -> None:
    log = Log(message(), *turn_begins(), answers(), turn_completes(), settles(), mode="task")

    assert next_of(log) == CompleteSession(turn="t1")


def test_a_task_that_failed_rests_until_somebody_retries_it() -> None:
    log = Log(message(), *turn_begins(), turn_fails(), settles(outcome="failed"), mode="task")
    assert next_of(log) == Park(wait=("retry",))

    log.add(retry("d2"))
    again = next_of(log)

    assert isinstance(again, CallModel)
    assert again.retries == "t1"


def test_a_child_that_failed_ends_as_failed() -> None:
    log = Log(message(), *turn_begins(), turn_fails(), settles(outcome="failed"), mode="task")
    parent = r.Parent("ses_parent", "main", "req_1", 1)

    assert decide(replace(log.lane, parent=parent), Policy(), NOW) == FailSession(error=OOPS)


def test_a_task_that_was_cancelled_ends_as_failed() -> None:
    log = Log(message(), *turn_begins(), r.TurnCancelled(turn="t1"), settles(), mode="task")

    assert next_of(log) == FailSession(error=Failure("CANCELLED", "the task was cancelled"))


def test_a_failure_that_a_follow_up_can_mend_leaves_a_conversation_open() -> None:
    log = Log(message(), *turn_begins(), step_fails())
    assert next_of(log) == FailTurn(turn="t1", error=OOPS)

    log.add(turn_fails(), settles(outcome="failed"))
    assert next_of(log) == Park(wait=("message",))


def test_a_structural_failure_ends_the_session() -> None:
    log = Log(message(), *turn_begins(), step_fails(structural=True))
    assert next_of(log) == FailTurn(turn="t1", error=OOPS, structural=True)

    log.add(turn_fails(structural=True), settles(outcome="failed"), message("d2"))
    assert next_of(log) == FailSession(error=OOPS)


def test_a_session_that_is_over_refuses_what_is_still_queued() -> None:
    log = Log(message(), message("d2"), cancel("t1"), reply("q1", "approve"))
    log.add(r.SessionEnded())

    assert next_of(log) == settles_as(
        ("dc", "ignored", ""), ("dr", "ignored", ""), ("d1", "refused", ""), ("d2", "refused", "")
    )


def test_a_session_that_is_over_and_has_settled_all_rests_for_good() -> None:
    assert next_of(Log(r.SessionEnded())) == Park(wait=())


def test_a_turn_that_another_lanes_end_of_the_session_left_open_is_cancelled() -> None:
    log = Log(message(), *turn_begins(), r.SessionEnded())

    assert next_of(log) == CancelTurn(turn="t1", reason="the session is ended")


def test_a_retry_starts_a_turn_that_names_the_failed_one() -> None:
    log = Log(message(), *turn_begins(), turn_fails(), settles(outcome="failed"), retry("d2"))

    action = next_of(log)

    assert isinstance(action, CallModel)
    assert (action.turn, action.delivery, action.retries) == ("t2", "d2", "t1")


def test_a_retry_of_nothing_that_failed_is_ignored() -> None:
    log = Log(message(), *turn_begins(), turn_completes(), settles(), retry("d2"))

    assert next_of(log) == settles_as(("d2", "ignored", ""))


def test_a_typed_answer_completes_the_turn_with_the_call_that_carries_it() -> None:
    log = Log(message(), *turn_begins(), *wants("final_result", output=True), returns())

    assert next_of(log) == CompleteTurn(turn="t1", step=1, call_id="t1.s1", output=C1)


def test_a_typed_answer_waits_for_the_other_calls_of_its_step() -> None:
    log = Log(message(), *turn_begins(), *wants("final_result", "pay", output=True), returns())

    assert next_of(log) == run(Start(C2, 1))


def test_a_failed_try_of_a_typed_answer_is_shown_to_the_model() -> None:
    log = Log(message(), *turn_begins(), *wants("final_result", output=True))
    log.add(fails(code="RETRY"))

    assert isinstance(next_of(log), CallModel)


# Tools that are gone, and policies that changed


OTHER_CODE = Policy(tools={"other": ToolPolicy("rerun")})
TEN_MINUTES = 10 * MINUTE


def test_a_call_whose_tool_is_gone_is_noted_and_waits_for_other_code() -> None:
    log = Log(message(), *turn_begins(), *wants("gone"), starts(), crash())
    assert next_of(log, OTHER_CODE) == MissTools(calls=(C1,))

    log.add(*opening(log.lane, MissTools(calls=(C1,)), NOW))
    assert next_of(log, OTHER_CODE) == Park(wait=("code",), until=NOW + 2 * SECOND)
    later = NOW + 20 * SECOND  # the pauses grow with the time that it has waited
    assert next_of(log, OTHER_CODE, later) == Park(wait=("code",), until=later + 20 * SECOND)
    latest = NOW + TEN_MINUTES - 1
    assert next_of(log, OTHER_CODE, latest) == Park(wait=("code",), until=NOW + TEN_MINUTES)
    found = next_of(log, tool_policy("report", "gone"), latest)  # by code that has it
    assert isinstance(found, RunTools)
    assert found.report == (C1,)


def test_a_call_whose_tool_does_not_come_back_is_told_as_gone_or_interrupted() -> None:
    over = NOW + TEN_MINUTES
    log = Log(message(), *turn_begins(), *wants("gone"), vanishes())
    action = next_of(log, OTHER_CODE, over)
    assert isinstance(action, RunTools)
    assert action.gone == (C1,)
    [failed] = opening(log.lane, action, over)
    assert isinstance(failed, r.ToolFailed)
    assert (failed.error.code, failed.attempt) == ("UNKNOWN_TOOL", 0)

    log = Log(message(), *turn_begins(), *wants("gone"), starts(), crash(), vanishes())
    action = next_of(log, OTHER_CODE, over)
    assert isinstance(action, RunTools)
    assert (action.gone, action.report) == ((), (C1,))


def test_a_call_that_a_human_allowed_waits_for_its_tool_without_a_limit() -> None:
    log = Log(message(), *turn_begins(), *wants("gone", asks="always"), asks_approval())
    log.add(reply("q1", "approve"))
    take = next_of(log, OTHER_CODE)
    log.add(*opening(log.lane, take, NOW), vanishes(), parks("code"))

    assert next_of(log, OTHER_CODE, 100 * HOUR) == Park(wait=("code",), until=100 * HOUR + MINUTE)
    found = next_of(log, Policy(tools={"gone": ToolPolicy()}))
    assert isinstance(found, RunTools)
    assert found.start == (Start(C1, 1),)


def test_an_answer_that_only_some_may_give_is_not_taken_where_no_code_says_who() -> None:
    log = Log(message(), *turn_begins(), *wants("gone", asks="always"))
    log.add(replace(asks_approval(), restricted=True), reply("q1", "approve"))
    assert next_of(log, OTHER_CODE) == MissTools(calls=(C1,))

    log.add(vanishes(), parks("code"))
    action = next_of(log, OTHER_CODE, HOUR)
    assert isinstance(action, Park)
    assert action.wait == ("request", "code")
    assert isinstance(next_of(log, Policy(tools={"gone": ToolPolicy(restricted=True)})), TakeReply)


def test_a_readonly_tool_begins_ahead_of_its_commit_unless_an_owner_was_lost_in_the_turn() -> None:
    reads = Policy(tools={"look": ToolPolicy(on_interrupt="rerun", readonly=True)})
    log = Log(message(), *turn_begins(), *wants("look"))
    assert next_of(log, reads) == run(Start(C1, 1, may_run_ahead=True))

    log = Log(message(), *turn_begins(), crash(), r.ModelStarted(call_id="t1.s1", attempt=2))
    log.add(*wants("look"))
    assert next_of(log, reads) == run(Start(C1, 1))


def test_a_blocked_lane_fails_its_open_turn_before_anything_else_but_a_cancel() -> None:
    error = Failure("WORKERS_LOST", "three workers died")
    log = Log(message(), *turn_begins(), *wants("pay"), r.LaneBlocked(error=error))
    assert next_of(log) == FailTurn(turn="t1", error=error)


def test_a_blocked_lane_fails_the_turn_that_would_be_next() -> None:
    error = Failure("WORKERS_LOST", "three workers died")
    log = Log(message(), r.LaneBlocked(error=error))
    action = next_of(log)
    assert isinstance(action, FailTurn)
    assert (action.turn, action.error, bool(action.delivery)) == ("t1", error, True)
