"""The recovery table: what a log says, and what `decide` makes of it.

Each case is a log written record by record. `tests/unit/test_decide.py` holds `decide` to
them; `recovery_table` draws the table in docs/explanation/recovery.md from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace
from unit.history import (
    Log,
    accepts_answer,
    answers,
    asks_approval,
    asks_question,
    began_a_tool_call,
    calls_child,
    cancel,
    crash,
    gives_feedback,
    is_cut,
    message,
    parks,
    reaches,
    refuses_answer,
    returns,
    said,
    settles,
    signs_in,
    sleeps,
    starts,
    step_begins,
    switches,
    thought,
    turn_begins,
    turn_completes,
    turn_fails,
    vanishes,
    wants,
)

from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    AskHuman,
    CallModel,
    CancelTurn,
    ChangeContext,
    CheckCompletion,
    CompactContext,
    CompleteTurn,
    FailTurn,
    GiveFeedback,
    MissTools,
    Park,
    RunTools,
    SettleDeliveries,
    Start,
)
from outlast.core.lane import DeliveryOutcome
from outlast.core.policy import HOUR, FeedbackTrigger, Interruption, Policy, ToolPolicy
from outlast.core.record import Failure

NOW = 1000


@dataclass(frozen=True)
class Case:
    """A row of the table: `says` and `then` are its words, `expected` its exact action."""

    name: str
    says: str
    then: str
    log: Log
    expected: AnyAction
    policy: Policy = field(default_factory=Policy)
    now: int = NOW


def tool_policy(on_interrupt: Interruption, tool: str = "pay") -> Policy:
    return Policy(tools={tool: ToolPolicy(on_interrupt=on_interrupt)})


def model_again(*, aborts: int = 0, keeps: bool = False) -> CallModel:
    """The second attempt at the first model call of the first turn."""
    return CallModel(
        call_id="t1.s1", attempt=2, turn="t1", step=1, until=HOUR, aborts=aborts, keeps=keeps
    )


def run(*start: Start, report: tuple[str, ...] = (), running: tuple[str, ...] = ()) -> RunTools:
    return RunTools(start=start, report=report, running=running, until=HOUR)


C1, C2 = "t1.s1.c1", "t1.s1.c2"
LONG = r.UsageRecorded(call_id="t1.s1", attempt=1, input_tokens=1_000)
SHORT = Policy(most_tokens=900, summarizes=True)
COMPACTS = CompactContext(
    turn="t1",
    until=HOUR,
    tokens=1_001,
    level=0,
    is_near=True,
    call_id="t1.v1",
    attempt=2,
    may_sum_up=True,
)
OVERLOADED = Failure("OVERLOADED", "try again later")
REWIND = r.ContextChangeRequested(delivery_id="d2", op="rewind", turn="t1")
PAYING = (message(), *turn_begins(), *wants("pay"), starts(), crash())

CASES = [
    Case(
        "cancel_first",
        "a cancel not yet acted on",
        "cancel, before anything else",
        Log(message(), *turn_begins(), *wants("pay"), message("d2"), cancel("t1")),
        CancelTurn(turn="t1", reason="stop", delivery_id="dc"),
    ),
    Case(
        "message_queued",
        "a message queued, its turn not started",
        "start the turn",
        Log(message()),
        CallModel(call_id="t1.s1", attempt=1, turn="t1", step=1, until=NOW + HOUR, delivery="d1"),
    ),
    Case(
        "model_cut_before_a_word",
        "a model call started, nothing of the answer",
        "call again: next attempt, same call",
        Log(message(), *turn_begins(), crash()),
        model_again(),
    ),
    Case(
        "partial_text_continues",
        'partial plain text, `on_partial="continue"` (the default)',
        "keep the partial as an aborted answer and ask to go on",
        Log(message(), *turn_begins(), said("Once upon"), crash()),
        model_again(aborts=1, keeps=True),
    ),
    Case(
        "partial_text_restarts",
        'partial plain text, `on_partial="restart"`',
        "drop the partial and call again",
        Log(message(), *turn_begins(), said("Once upon"), crash()),
        model_again(aborts=1),
        Policy(on_partial="restart"),
    ),
    Case(
        "partial_with_a_tool_call",
        "a partial with a tool call begun",
        "drop it and call again; that tool call never runs",
        Log(message(), *turn_begins(), said("I will"), began_a_tool_call(), crash()),
        model_again(aborts=1),
    ),
    Case(
        "partial_reasoning",
        "reasoning only",
        "drop it and call again",
        Log(message(), *turn_begins(), thought("Hm"), crash()),
        model_again(aborts=1),
    ),
    Case(
        "partial_typed",
        "partial text of an agent with an `output_type`",
        "drop it and call again",
        Log(message(), *turn_begins(), said('{"a":'), crash()),
        model_again(aborts=1),
        Policy(typed=True),
    ),
    Case(
        "model_switched",
        "a model left for the next one (`model.switched`), with or without a partial of the first",
        "drop the partial and ask the next one",
        Log(message(), *turn_begins(model="first"), said("Once upon"), switches(), crash()),
        replace(model_again(aborts=1), model="second"),
        Policy(models=("first", "second")),
    ),
    Case(
        "tools_not_started",
        "the answer recorded, its tool calls not started",
        "run them",
        Log(message(), *turn_begins(), *wants("find", "pay"), crash()),
        run(Start(C1, 1), Start(C2, 1)),
    ),
    Case(
        "tool_cut_report",
        'a tool started, no outcome, `on_interrupt="report"` (the default)',
        "tell the model that the outcome is unknown",
        Log(*PAYING),
        run(report=(C1,)),
    ),
    Case(
        "tool_cut_rerun",
        'a tool started, no outcome, `on_interrupt="rerun"`',
        "run it again with the same idempotency key",
        Log(*PAYING),
        run(Start(C1, 2)),
        tool_policy("rerun"),
    ),
    Case(
        "tool_unstorable",
        'a tool whose result could not be stored, `on_interrupt="rerun"`',
        "tell the model that the outcome is unknown: it would come to the same again",
        Log(message(), *turn_begins(), *wants("pay"), starts(), is_cut("unstorable")),
        run(report=(C1,)),
        tool_policy("rerun"),
    ),
    Case(
        "tool_cut_reconcile",
        "a tool started, no outcome, `on_interrupt=reconcile`",
        "ask the outside world whether it happened, and run it if not",
        Log(*PAYING),
        run(Start(C1, 2, reconciles=1)),
        tool_policy("reconcile"),
    ),
    Case(
        "tool_cut_ask",
        'a tool started, no outcome, `on_interrupt="ask"`',
        "ask a human: done, run again, or give up",
        Log(*PAYING),
        AskHuman(call_id=C1, kind="interrupted"),
        tool_policy("ask"),
    ),
    Case(
        "tool_cut_ask_nobody",
        'a tool started, no outcome, `on_interrupt="ask"`, nobody can be asked',
        "tell the model that the outcome is unknown",
        Log(*PAYING, can_ask=False),
        run(report=(C1,)),
        tool_policy("ask"),
    ),
    Case(
        "tool_cut_fail",
        'a tool started, no outcome, `on_interrupt="fail"`',
        "fail the turn",
        Log(*PAYING),
        FailTurn(
            turn="t1",
            error=Failure("INTERRUPTED", "pay was interrupted: its outcome is unknown"),
        ),
        tool_policy("fail"),
    ),
    Case(
        "some_outcomes",
        "some tool outcomes of a step",
        "keep them as they are; the others by the rows above",
        Log(
            *(message(), *turn_begins(), *wants("find", "pay")),
            *(starts(C1), starts(C2), returns(C1), crash()),
        ),
        run(Start(C2, 2)),
        tool_policy("rerun"),
    ),
    Case(
        "request_open",
        "a request open",
        "stay parked; its id is the same as before the crash",
        Log(message(), *turn_begins(), *wants("pay", asks="always"), asks_approval(), crash()),
        Park(wait=("request",), requests=("q1",)),
    ),
    Case(
        "requests_closed",
        "a turn's requests closed, because it was being stopped",
        "stop it, though what it was stopped for may be gone",
        Log(
            *(message(), *turn_begins(), *wants("pay", asks="always"), asks_approval()),
            r.TurnStopping(turn="t1", reason="a newer message came", superseded=True),
            *(r.RequestResolved(request_id="q1", how="superseded"), crash()),
        ),
        CancelTurn(turn="t1", reason="a newer message came", superseded=True),
    ),
    Case(
        "question_open",
        "a tool's own question open",
        "stay parked; the tool is not run meanwhile",
        Log(
            *(message(), *turn_begins(), *wants("pay"), starts(), *asks_question()),
            parks("request"),
        ),
        Park(wait=("request",), requests=("q1",)),
    ),
    Case(
        "authorization_open",
        "a sign-in open",
        "stay parked; its address is the same as before the crash",
        Log(message(), *turn_begins(), *wants("pay"), starts(), *signs_in(), crash()),
        Park(wait=("authorization",)),
    ),
    Case(
        "child_started",
        "a child started, no result",
        "stay parked until it has ended; it is never started twice",
        Log(message(), *turn_begins(), *wants("pay"), starts(), *calls_child(), crash()),
        Park(wait=("children",)),
    ),
    Case(
        "timer_open",
        "a timer open",
        "stay parked until it is due",
        Log(
            *(message(), *turn_begins(), *wants("pay"), starts(), *sleeps(5000)),
            parks("timer"),
        ),
        Park(wait=("timer",), until=5000),
    ),
    Case(
        "timer_due",
        "a timer due",
        "run the tool again from its first line; that wait is over",
        Log(
            *(message(), *turn_begins(), *wants("pay"), starts(), *sleeps(500)),
            parks("timer"),
        ),
        RunTools(start=(Start(C1, 2, fired=("sleep:1",)),), until=NOW + HOUR),
    ),
    Case(
        "all_outcomes_in",
        "all outcomes in",
        "the next model call, with the results in the order of the calls",
        Log(
            *(message(), *turn_begins(), *wants("find", "pay")),
            *(starts(C1), starts(C2), returns(C2), returns(C1), crash()),
        ),
        CallModel(call_id="t1.s2", attempt=1, turn="t1", step=2, until=HOUR),
    ),
    Case(
        "feedback_due",
        "all outcomes in, and a feedback provider due",
        "ask it; one that was asked and has no record is asked again",
        Log(message(), *turn_begins(), *wants("find"), starts(), returns(), crash()),
        GiveFeedback(turn="t1", step=1, due=("stay",), until=HOUR),
        Policy(feedback=(FeedbackTrigger("stay", calls=1),)),
    ),
    Case(
        "feedback_given",
        "feedback given, the model not asked since",
        "the next model call, with the feedback; it is not asked for again",
        Log(
            *(message(), *turn_begins(), *wants("find"), starts(), returns()),
            *(gives_feedback(), crash()),
        ),
        CallModel(call_id="t1.s2", attempt=1, turn="t1", step=2, until=HOUR),
        Policy(feedback=(FeedbackTrigger("stay", calls=1),)),
    ),
    Case(
        "milestone",
        'all outcomes in, a milestone reached, `resume="milestone"`',
        "the next model call, with the task and the calls since the milestone",
        Log(
            *(message(), *turn_begins(), *wants("find"), starts(), returns(), reaches()),
            crash(),
        ),
        CallModel(call_id="t1.s2", attempt=1, turn="t1", step=2, until=HOUR, restarts=True),
        Policy(resume="milestone"),
    ),
    Case(
        "milestone_and_partial",
        'partial plain text, a milestone reached before, `resume="milestone"`',
        "drop it and call again, with the task and the calls since the milestone",
        Log(
            *(message(), *turn_begins(), *wants("find"), starts(), returns(), reaches()),
            *(*step_begins(2), said("Once upon", call_id="t1.s2"), crash()),
        ),
        CallModel(
            call_id="t1.s2", attempt=2, turn="t1", step=2, until=HOUR, aborts=1, restarts=True
        ),
        Policy(resume="milestone"),
    ),
    Case(
        "tool_gone",
        "a tool call whose tool is not in the worker's code, whatever had become of it",
        "note it: the call waits for a worker that has the tool, or an alias of its name",
        Log(message(), *turn_begins(), *wants("gone"), starts(), crash()),
        MissTools(calls=(C1,)),
        Policy(tools={}),
    ),
    Case(
        "tool_still_gone",
        "that, noted (`tool.vanished`)",
        "park, and look again from time to time; after ten minutes the model is told, unless a"
        " human was asked about the call",
        Log(message(), *turn_begins(), *wants("gone"), starts(), crash(), vanishes()),
        Park(wait=("code",), until=NOW + 2000),
        Policy(tools={}),
    ),
    Case(
        "compaction_due",
        "all outcomes in, and the view too long (`ContextPolicy`)",
        "make it shorter, then ask the model",
        Log(*(message(), *turn_begins(), *wants("find"), LONG, starts(), returns(), crash())),
        replace(COMPACTS, attempt=1),
        SHORT,
    ),
    Case(
        "summary_begun",
        "the same, and a summary begun, nothing of it",
        "ask for it again: next attempt, same call; given up after three",
        Log(
            *(message(), *turn_begins(), *wants("find"), LONG, starts(), returns()),
            *(r.SummaryStarted(call_id="t1.v1", attempt=1), crash()),
        ),
        COMPACTS,
        SHORT,
    ),
    Case(
        "summary_failed",
        "the same, and the summary failed",
        "clear old results instead",
        Log(
            *(message(), *turn_begins(), *wants("find"), LONG, starts(), returns()),
            r.SummaryStarted(call_id="t1.v1", attempt=1),
            *(r.SummaryFailed(call_id="t1.v1", attempt=1, error=OVERLOADED), crash()),
        ),
        replace(COMPACTS, may_sum_up=False),
        SHORT,
    ),
    Case(
        "view_shortened",
        "the view made shorter, the model not asked since",
        "the next model call, with the view as recorded",
        Log(
            *(message(), *turn_begins(), *wants("find"), LONG, starts(), returns()),
            *(r.CompactionCompleted(before=1_000, tokens=900), crash()),
        ),
        CallModel(call_id="t1.s2", attempt=1, turn="t1", step=2, until=HOUR),
        SHORT,
    ),
    Case(
        "rewind_asked",
        "a rewind asked for, no turn open",
        "take the view back behind that turn",
        Log(*(message(), *turn_begins(), answers(), turn_completes(), settles()), REWIND),
        ChangeContext(change=REWIND),
    ),
    Case(
        "completion_unchecked",
        "the answer recorded, its completion checkers not heard",
        "ask them; those that were asked and have no record are asked again",
        Log(message(), *turn_begins(), answers(), crash()),
        CheckCompletion(turn="t1", step=1, call_id="t1.s1", until=HOUR),
        Policy(checkers=("tests",)),
    ),
    Case(
        "completion_refused",
        "the answer refused by a completion checker",
        "the next model call, with what is missing; the answer is not checked again",
        Log(message(), *turn_begins(), answers(), refuses_answer(), crash()),
        CallModel(call_id="t1.s2", attempt=1, turn="t1", step=2, until=HOUR),
        Policy(checkers=("tests",)),
    ),
    Case(
        "completion_accepted",
        "the answer accepted by all completion checkers",
        "complete the turn",
        Log(message(), *turn_begins(), answers(), accepts_answer(), crash()),
        CompleteTurn(turn="t1", step=1, call_id="t1.s1"),
        Policy(checkers=("tests",)),
    ),
    Case(
        "completed_not_settled",
        "the turn ended, its delivery not settled",
        "settle it",
        Log(message(), *turn_begins(), answers(), turn_completes()),
        SettleDeliveries(outcomes=(DeliveryOutcome("d1", "completed", "t1"),)),
    ),
    Case(
        "failed_not_settled",
        "the turn failed, its delivery not settled",
        "settle it as failed",
        Log(message(), *turn_begins(), turn_fails()),
        SettleDeliveries(outcomes=(DeliveryOutcome("d1", "failed", "t1"),)),
    ),
    Case(
        "nothing_to_do",
        "nothing queued, nothing open",
        "park until something arrives",
        Log(),
        Park(wait=("message",)),
    ),
]


def recovery_table() -> str:
    """Return the table as docs/explanation/recovery.md shows it."""
    lines = [
        "| the log says | what comes next | as an action |",
        "| --- | --- | --- |",
        *(f"| {case.says} | {case.then} | `{type(case.expected).__name__}` |" for case in CASES),
    ]
    return "\n".join(lines)
