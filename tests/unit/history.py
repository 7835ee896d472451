"""Words for writing a lane's log by hand, record by record.

Each function returns the records that the system writes for what its name says. `Log`
puts them into their places and folds them.
"""

from __future__ import annotations

from typing import Any

from outlast.core import record as r
from outlast.core.fold import fold_all
from outlast.core.lane import Lane
from outlast.core.message import Text, ToolCall
from outlast.core.name import args_digest
from outlast.core.record import AnyRecord, Entry, Failure, Option

SESSION = "ses_1"
OOPS = Failure("OOPS", "it broke")


class Log:
    """A session's log with one lane, as it grows."""

    def __init__(self, *records: AnyRecord, mode: str = "conversation", can_ask: bool = True):
        self.entries: list[Entry] = []
        self.add(r.SessionStarted(agent="a", mode=mode, can_ask=can_ask), *records)

    def add(self, *records: AnyRecord) -> Log:
        for record in records:
            offset = len(self.entries) + 1
            self.entries.append(Entry(offset, offset, "main", record))
        return self

    @property
    def lane(self) -> Lane:
        return fold_all(Lane(session=SESSION), self.entries)


# What arrives


def message(delivery_id: str = "d1", text: str = "hello") -> AnyRecord:
    return r.DeliveryQueued(delivery_id=delivery_id, content=(Text(text),))


def retry(delivery_id: str) -> AnyRecord:
    return r.DeliveryQueued(delivery_id=delivery_id, kind="retry")


def reply(request_id: str, option: str = "", *, text: str = "", args: str = "") -> AnyRecord:
    return r.DeliveryQueued(
        delivery_id="dr", kind="reply", request_id=request_id, option=option, text=text, args=args
    )


def cancel(turn: str = "", *, delivery_id: str = "dc", ends: bool = False) -> AnyRecord:
    return r.CancelRequested(delivery_id=delivery_id, reason="stop", turn=turn, ends=ends)


# What the owner writes


def turn_begins(
    number: int = 1, delivery_id: str = "d1", *, at: int = 0, model: str = ""
) -> list[AnyRecord]:
    """A turn has started, and its first model call."""
    return [
        r.TurnStarted(turn=f"t{number}", delivery_id=delivery_id, since=at),
        *step_begins(1, turn=f"t{number}", model=model),
    ]


def step_begins(number: int, *, turn: str = "t1", model: str = "") -> list[AnyRecord]:
    before = [r.StepCompleted(turn=turn, step=number - 1)] if number > 1 else []
    return [
        *before,
        r.StepStarted(turn=turn, step=number),
        r.ModelStarted(call_id=f"{turn}.s{number}", attempt=1, model=model),
    ]


def said(text: str, *, attempt: int = 1, call_id: str = "t1.s1") -> AnyRecord:
    return r.MessageDelta(call_id=call_id, attempt=attempt, part=0, text=text)


def began_a_tool_call() -> AnyRecord:
    return r.MessageDelta(call_id="t1.s1", attempt=1, part=1, tool="pay")


def thought(text: str) -> AnyRecord:
    return r.ReasoningDelta(call_id="t1.s1", attempt=1, part=0, text=text)


def answers(text: str = "done", *, call_id: str = "t1.s1") -> AnyRecord:
    return r.MessageCompleted(call_id=call_id, attempt=1, parts=(Text(text),))


def wants(
    *tools: str, asks: str = "", repeats: str = "", output: bool = False, call_id: str = "t1.s1"
) -> list[AnyRecord]:
    """The model has asked for tools, by name, each without arguments."""
    calls = [ToolCall(f"{call_id}.c{n}", tool, "{}") for n, tool in enumerate(tools, 1)]
    return [
        r.MessageCompleted(call_id=call_id, attempt=1, parts=tuple(calls)),
        *(
            r.ToolRequested(
                call_id=c.call_id,
                tool=c.tool,
                digest=args_digest(c.tool, c.args),
                asks=asks,
                repeats=repeats,
                output=output,
            )
            for c in calls
        ),
    ]


def starts(call_id: str = "t1.s1.c1", attempt: int = 1) -> AnyRecord:
    return r.ToolStarted(call_id=call_id, attempt=attempt)


def vanishes(call_id: str = "t1.s1.c1", since: int = 1000) -> AnyRecord:
    return r.ToolVanished(call_id=call_id, tool="gone", since=since)


def returns(call_id: str = "t1.s1.c1", attempt: int = 1) -> AnyRecord:
    return r.ToolCompleted(call_id=call_id, attempt=attempt, value='"ok"')


def reaches(call_id: str = "t1.s1.c1") -> AnyRecord:
    """The call that has just returned is a milestone."""
    return r.MilestoneReached(call_id=call_id, attempt=1, since=0)


def fails(call_id: str = "t1.s1.c1", *, code: str = "TOOL_ERROR", again_at: int = 0) -> AnyRecord:
    return r.ToolFailed(call_id=call_id, attempt=1, error=Failure(code, "no"), again_at=again_at)


def is_cut(reason: str, call_id: str = "t1.s1.c1") -> AnyRecord:
    """Its worker lives, and cannot say what became of the call."""
    return r.ToolInterrupted(call_id=call_id, attempt=1, reason=reason, final=False)


def asks_approval(request_id: str = "q1", call_id: str = "t1.s1.c1") -> AnyRecord:
    options = (Option("approve", "Approve"), Option("deny", "Deny"))
    return r.RequestOpened(
        request_id=request_id, kind="approval", prompt="May it?", options=options, call_id=call_id
    )


def asks_question(request_id: str = "q1", *, expires_at: int = 0) -> list[AnyRecord]:
    return [
        r.ToolWaiting(call_id="t1.s1.c1", attempt=1, name="ask:1"),
        r.RequestOpened(
            request_id=request_id,
            kind="question",
            prompt="Which?",
            call_id="t1.s1.c1",
            name="ask:1",
            expires_at=expires_at,
        ),
    ]


def signs_in() -> list[AnyRecord]:
    """The tool waits for somebody to sign in."""
    here: dict[str, Any] = {"call_id": "t1.s1.c1", "attempt": 1, "name": "authorization:1"}
    return [
        r.ToolWaiting(**here),
        r.AuthorizationRequired(**here, request_id="a1", connection="hub", url="", expires_at=0),
    ]


def calls_child() -> list[AnyRecord]:
    """The tool waits for a child that it has started."""
    here: dict[str, Any] = {"call_id": "t1.s1.c1", "attempt": 1, "name": "agent:1"}
    return [
        r.ToolWaiting(**here),
        r.SubagentCalled(**here, request_id="q1", child="ses_2", agent="writer"),
    ]


def sleeps(until: int) -> list[AnyRecord]:
    return [
        r.ToolWaiting(call_id="t1.s1.c1", attempt=1, name="sleep:1"),
        r.TimerSet(call_id="t1.s1.c1", name="sleep:1", due_at=until),
    ]


def gives_feedback(name: str = "stay", *, step: int = 1, at: int = 0) -> AnyRecord:
    return r.FeedbackGiven(turn="t1", step=step, name=name, text="go on", since=at)


def refuses_answer(number: int = 1, *, step: int = 1) -> AnyRecord:
    return r.CompletionRefused(turn="t1", step=step, reasons={"tests": "2 fail"}, number=number)


def accepts_answer() -> AnyRecord:
    return r.CompletionAccepted(turn="t1", step=1, checkers=("tests",))


def parks(*wait: str, at: int = 0, spent: int = 0) -> AnyRecord:
    return r.SessionWaiting(wait=wait, since=at, spent=spent)


def resumes(at: int) -> AnyRecord:
    return r.SessionResumed(since=at)


def crash(*, at: int = 0, spent: int = 0) -> AnyRecord:
    """The owner died, and another worker has taken the lane over."""
    return r.LaneTakenOver(worker="w2", fence=2, since=at, spent=spent)


def graceful_stop() -> AnyRecord:
    return r.LaneTakenOver(worker="w1", fence=1, since=0, graceful=True)


def retries(*, not_before: int) -> AnyRecord:
    return r.ModelRetrying(call_id="t1.s1", attempt=1, error=OOPS, not_before=not_before, since=0)


def switches(*, left: str = "first", model: str = "second") -> AnyRecord:
    return r.ModelSwitched(
        call_id="t1.s1", attempt=1, left=left, model=model, error=OOPS, since=1000
    )


def unavailable(*, not_before: int, since: int = 1000) -> AnyRecord:
    return r.ProviderUnavailable(
        call_id="t1.s1", attempt=1, error=OOPS, not_before=not_before, since=since
    )


def step_fails(*, structural: bool = False) -> AnyRecord:
    return r.StepFailed(turn="t1", step=1, error=OOPS, structural=structural)


def turn_fails(*, structural: bool = False) -> AnyRecord:
    return r.TurnFailed(turn="t1", error=OOPS, structural=structural)


def turn_completes(number: int = 1) -> AnyRecord:
    return r.TurnCompleted(turn=f"t{number}", call_id=f"t{number}.s1")


def settles(
    delivery_id: str = "d1", outcome: r.DeliveryResult = "completed", turn: str = "t1"
) -> AnyRecord:
    return r.DeliverySettled(delivery_id=delivery_id, outcome=outcome, turn=turn)
