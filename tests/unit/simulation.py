"""Any log that the system can write, made by chance: all of it pure.

The world outside says things, answers, cancels and waits; models and tools answer, fail and
hang; workers die. Between them stands only the core: `decide`, `opening`, `outcome`, `fold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    CallModel,
    CancelTurn,
    ChangeContext,
    ChangeState,
    CheckCompletion,
    CompactContext,
    FailTurn,
    GiveFeedback,
    Park,
    RunTools,
    Sleep,
    TakeReply,
)
from outlast.core.amount import NO_LIMITS, BudgetTerms
from outlast.core.budget import active_time, turn_state
from outlast.core.budget_admission import CallEstimate, admit_call, admit_tools
from outlast.core.budget_charge import calls_cut_off
from outlast.core.compaction import TOO_LONG, TURN_UNKNOWN, refused, rewound
from outlast.core.decide import decide, rest_for
from outlast.core.fold import fold
from outlast.core.index import Opening
from outlast.core.lane import RUNNING, Lane, OpenCall, OpenRequest
from outlast.core.message import Part, Reasoning, Text, ToolCall
from outlast.core.name import args_digest, tool_call_name
from outlast.core.outcome import opening, outcome
from outlast.core.policy import HOUR, UNBOUNDED, FeedbackTrigger, Policy, ToolPolicy
from outlast.core.prompt import section_digest
from outlast.core.record import AnyRecord, Entry, Failure
from outlast.core.remote_child import has_callback
from outlast.core.result import (
    Answered,
    BufferedEffects,
    ChildContact,
    ChildEnd,
    Compacted,
    CompletionChecked,
    FeedbackCollected,
    FeedbackSaid,
    Interrupted,
    ModelFailed,
    NewAuthorization,
    NewChild,
    NewWait,
    PossibleMilestone,
    Question,
    Raised,
    RemoteView,
    RequestedCall,
    Result,
    Returned,
    SummaryLost,
    ToolEnd,
    ToolWaits,
    TurnStopped,
    Usage,
)
from outlast.core.slice import EMPTY, change_all
from outlast.core.state_change import change_made, change_refused, made_of, put_change_first
from outlast.core.view import View, view_of

T = TypeVar("T")

TOOLS = {
    "find": ToolPolicy("rerun", max_attempts=2),
    "pay": ToolPolicy("report"),
    "launch": ToolPolicy("fail"),
    "sign": ToolPolicy("ask", answer_timeout=1000),
    "check": ToolPolicy("reconcile"),
}
FEWER_TOOLS = {name: TOOLS[name] for name in ("find", "sign")}
MODELS = (("first",), ("first",), ("first", "second"), ("third", "first", "second"))
FEEDBACK = (
    (),
    (FeedbackTrigger("stay", calls=2), FeedbackTrigger("hurry", span=1000)),
    (FeedbackTrigger("often", calls=1, span=1),),
)
BUDGETS = (
    *[None] * 6,
    *[BudgetTerms(replace(NO_LIMITS, model_calls=1), on_end="ask")] * 2,
    BudgetTerms(replace(NO_LIMITS, tool_calls=1), on_end="ask"),
    BudgetTerms(replace(NO_LIMITS, tool_calls=1, steps=3), on_end="hand_back"),
    BudgetTerms(replace(NO_LIMITS, nano_usd=40), on_end="hand_back"),
    BudgetTerms(replace(NO_LIMITS, steps=2), on_end="fail"),
)
EVERY_OTHER = PossibleMilestone(lambda calls, _: calls > 1, "half of it")
OOPS = Failure("OOPS", "it broke")


class Simulation:
    """One lane's life; the same seed gives the same."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self.entries: list[Entry] = []
        self.seams: list[tuple[int, int]] = []
        """Where a commit may have ended, and when: only there can anybody ask what comes next."""
        self.lane = Lane(session="ses_1")
        self.slices = EMPTY
        self.now = 1
        self.answers = 6
        """How often the model answers, of that many and five times."""
        self.loses_tools = True
        """Whether the code of another owner may lack tools."""
        self._arrived = 0
        self._fence = 1
        self._answered: set[str] = set()
        self.policy = Policy(
            on_busy=self.choose(["queue", "join", "interrupt"]),
            on_partial=self.choose(["continue", "restart"]),
            typed=self.choose([False, True]),
            max_steps=self.choose([2, 50]),
            max_crashes=self.choose([2, 10]),
            max_corrections=1,
            models=self.choose(MODELS),
            tools=TOOLS,
            feedback=self.choose(FEEDBACK),
            checkers=self.choose([(), ("built",)]),
            max_refusals=1,
            resume=self.choose(["transcript", "milestone"]),
            most_tokens=self.choose([UNBOUNDED, UNBOUNDED, 6]),
            summarizes=self.choose([False, True]),
            turn_budget=self.choose(BUDGETS),
        )
        mode = self.choose([*["conversation"] * 5, "task"])
        can_ask = self.choose([True, True, False])
        deadline = self.choose([0, 0, 0, 2 * HOUR])
        self.write([r.SessionStarted(agent="a", mode=mode, can_ask=can_ask, deadline_at=deadline)])

    def choose(self, options: Sequence[T]) -> T:
        return self._chance.choice(options)

    def write(self, records: Sequence[AnyRecord]) -> None:
        for record in records:
            offset = len(self.entries) + 1
            entry = Entry(offset, self.now, "main", record)
            self.entries.append(entry)
            self.lane = fold(self.lane, record, offset)
            self.slices = change_all(self.slices, (entry,))
        self.seams.append((len(self.entries), self.now))

    def next_action(self) -> AnyAction:
        """Decide, as far as the turn's budget allows it."""
        action, state = decide(self.lane, self.policy, self.now), turn_state(self.lane, self.policy)
        match action:
            case CallModel(running=False) if state:
                estimate = CallEstimate(3, 9, 3, 9_000_000)
                found = admit_call(self.lane, action, [state], estimate, self.now)
                return put_change_first(self.lane, found) if self.lane.changes else found
            case RunTools(start=start) if start and state:
                begun = admit_tools(self.lane, action, [state], self.now)
                found = rest_for(self.lane, (), self.now) if begun is None else begun
                return put_change_first(self.lane, found) if self.lane.changes else found
        return action

    # What may happen

    def live(self, moments: int) -> None:
        happens = [*[self.work] * 8, *[self.arrive] * 3, self.pass_time, self.die]
        for _ in range(moments):
            self.choose(happens)()

    def arrive(self) -> None:
        """Something comes in; a session that is over takes nothing."""
        if self.lane.over:
            return
        self._arrived += 1
        name = f"d{self._arrived}"
        often = [
            *["reply"] * 40,
            *["message"] * 16,
            *["relay"] * 10,
            *["change"] * 6,
            *["view"] * 3,
        ]
        kind = self.choose([*often, "retry", *["cancel"] * 4, "end"])
        turn = self.lane.turn.id if self.lane.turn else ""
        match kind:
            case "message":
                text = (Text(f"message {name}"),)
                self.write([r.DeliveryQueued(delivery_id=name, content=text)])
            case "retry":
                self.write([r.DeliveryQueued(delivery_id=name, kind="retry")])
            case "cancel":
                self.write([r.CancelRequested(delivery_id=name, turn=self.choose([turn, "t1"]))])
            case "end":
                self.write([r.CancelRequested(delivery_id=name, turn=turn, ends=True)])
            case "reply":
                self._reply(name)
            case "relay":
                self._relay(name)
            case "change":
                self._ask_for_change(name)
            case "view":
                op: Literal["compact", "rewind"] = self.choose(["compact", "rewind"])
                to = self.choose(["t1", "t2", "t9"]) if op == "rewind" else ""
                self.write([r.ContextChangeRequested(delivery_id=name, op=op, turn=to)])

    def _ask_for_change(self, name: str) -> None:
        """Somebody outside wants state changed."""
        values = (r.SliceValue(f'"{name}"'),)
        match self.choose(["append", "seed", "rollback", "reset"]):
            case "append":
                change = r.StateChangeRequested(
                    delivery_id=name, op="append", slice="x", values=values
                )
            case "seed":
                change = r.StateChangeRequested(
                    delivery_id=name, op="seed", slice="x", values=values
                )
            case "rollback":
                back: dict[str, tuple[r.SliceValue, ...]] = {"x": values}
                change = r.StateChangeRequested(delivery_id=name, op="rollback", slices=back)
            case _:
                change = r.StateChangeRequested(delivery_id=name, op="reset")
        self.write([change])

    def _change_state(self, change: r.StateChangeRequested) -> None:
        """The owner makes a change, or refuses it; or dies before it has."""
        match self.choose(["made", "made", "refused", "nothing"]):
            case "made":
                self.write(change_made(change, made_of(change, self.slices)))
            case "refused":
                self.write(change_refused(change, OOPS))

    def _relay(self, name: str) -> None:
        """A child asks, or does so no longer."""
        requests = self.lane.turn.requests.values() if self.lane.turn else ()
        children = [q.child for q in requests if q.kind == "child" and not q.remote]
        asked = [q.origin for q in requests if q.origin and not q.subagent]
        if not children:
            return
        here = {"delivery_id": name, "child": self.choose(children)}
        if asked and bool(self.choose((1, 0))):
            how = self.choose(["answered", "completed", "cancelled", "superseded", "expired"])
            self.write([r.RequestRelayed(**here, request_id=self.choose(asked), how=how)])
            return
        question = self.choose([self._question, self._sign_in])(f"req_{name}")
        asks = msgspec.json.encode(question).decode()
        self.write([r.RequestRelayed(**here, request_id=f"req_{name}", asked=asks)])

    def _question(self, request_id: str) -> r.RequestOpened:
        return r.RequestOpened(
            request_id=request_id,
            kind=self.choose(["approval", "question"]),
            prompt="May I?",
            call_id="t1.s1.c1",
            tool="pay",
            expires_at=self.choose([0, self.now + 1000]),
        )

    def _sign_in(self, request_id: str) -> r.AuthorizationRequired:
        return r.AuthorizationRequired(
            request_id=request_id,
            call_id="t1.s1.c1",
            attempt=1,
            name="authorization:1",
            connection="hub",
            url="https://hub.example/authorize",
            expires_at=self.now + 1000,
        )

    def _reply(self, name: str) -> None:
        """Answer a request that is open; each can be answered once."""
        open_ = [
            entry.record
            for entry in self.entries
            if isinstance(entry.record, Opening)
            and entry.record.request_id in (self.lane.turn.requests if self.lane.turn else ())
            and entry.record.request_id not in self._answered
            and not (isinstance(entry.record, r.SubagentCalled) and entry.record.url)
        ]
        if not open_:
            return
        asked = self.choose(open_)
        self._answered.add(asked.request_id)
        if isinstance(asked, r.SubagentCalled):
            end = self.choose([ChildEnd(value='"a poem"'), ChildEnd(error=OOPS)])
            ended = r.DeliveryQueued(
                delivery_id=name,
                kind="reply",
                request_id=asked.request_id,
                args=msgspec.json.encode(end).decode(),
            )
            self.write([ended])
            return
        if isinstance(asked, r.AuthorizationRequired):
            how = self.choose(["completed", "completed", "denied", "failed"])
            came = r.DeliveryQueued(
                delivery_id=name, kind="reply", request_id=asked.request_id, option=how
            )
            self.write([came])
            return
        if isinstance(asked, r.CallbackOpened):
            called = r.DeliveryQueued(
                delivery_id=name, kind="reply", request_id=asked.request_id, args='{"body":"paid"}'
            )
            self.write([called])
            return
        option = self.choose([o.id for o in asked.options] or [""])
        args = self.choose(["", '{"n":9}']) if option == "approve" else ""
        self.write(
            [
                r.DeliveryQueued(
                    delivery_id=name,
                    kind="reply",
                    request_id=asked.request_id,
                    option=option,
                    text="well",
                    args=args,
                )
            ]
        )

    def pass_time(self) -> None:
        self.now += self.choose([*[1000] * 9, HOUR])

    def die(self) -> None:
        """The owner is gone, by accident or gracefully, and another takes over, with newer code."""
        if self.lane.turn is None or self.lane.waiting:
            return
        self.write([*calls_cut_off(self.lane, lambda *_: None)])
        if self.choose([False, True]):
            spent = active_time(self.lane, self.now)
            back = r.LaneTakenOver(
                worker="w", fence=self._fence, since=self.now, spent=spent, graceful=True
            )
            self.write([back])
        spent, fence = active_time(self.lane, max(self.now, self.lane.turn.since)), self._fence + 1
        self._fence = fence
        self.write([r.LaneTakenOver(worker="w", fence=fence, since=self.now, spent=spent)])
        tools = self.choose([TOOLS, TOOLS, FEWER_TOOLS]) if self.loses_tools else TOOLS
        self.policy = replace(self.policy, models=self.choose(MODELS), tools=tools)

    def work(self) -> AnyAction:
        """Do the next thing, as far as chance lets it get."""
        action = self.next_action()
        if isinstance(action, CallModel) and action.restarts:
            action = replace(action, restarted=self._whole_view().restarted(action.turn))
        if isinstance(action, CompactContext) and action.may_sum_up:
            action = replace(action, sums_up=self.choose([True, False]), model="first")
        self.write(opening(self.lane, action, self.now))
        match action:
            case CallModel():
                self._model_goes_on(action)
            case RunTools():
                self._tools_go_on()
                for request_id in action.contact:
                    self._contact(request_id)
            case GiveFeedback():
                self._give_feedback(action)
            case CheckCompletion():
                self._check_completion(action)
            case ChangeState():
                self._change_state(action.change)
            case CompactContext():
                self._compact(action)
            case ChangeContext():
                if action.error:
                    self.write([*refused(action.change, action.error)])
                elif self.choose([True, True, False]):
                    self._rewind(action.change)
            case Sleep():
                self.now = action.until
            case CancelTurn() | FailTurn():
                self._record(action, TurnStopped(tuple(self._ends())))
        return action

    def _rewind(self, change: r.ContextChangeRequested) -> None:
        if (until := self._whole_view().end_of(change.turn)) is None:
            self.write([*refused(change, TURN_UNKNOWN)])
        else:
            past = [entry for entry in self.entries if entry.offset <= until]
            self.write([*rewound(change, until, view_of(past, "main"))])

    def _whole_view(self) -> View:
        return view_of(self.entries, "main")

    def _compact(self, action: CompactContext) -> None:
        """Leave out what was said before some place; or the owner dies before it has."""
        view = self._whole_view()
        if not self.choose([True, True, False]):
            return
        usage = self.choose([None, Usage(1, 1)]) if action.sums_up else None
        if action.sums_up and self.choose([True, False]):
            self._record(action, SummaryLost(self._failure(), usage))
            return
        until = self.choose([0, *view.offsets[: len(view.offsets) - view.unsettled]])
        kept = {*view.offsets[:1], *view.began, *([view.open_answer] if view.open_answer else [])}
        if until in kept:
            until = 0
        keep = tuple(sorted({offset for offset in kept if offset <= until}))
        results = dict.fromkeys(view.result_offsets, "cleared")
        text = "so far" if until else ""
        self._record(action, Compacted(3, until, keep, text, results, usage=usage))

    def _record(self, action: AnyAction, result: Result) -> None:
        self.write(outcome(self.lane, action, result, self.policy, self.now, self.slices))

    # Rules

    def _give_feedback(self, action: GiveFeedback) -> None:
        if self.choose([True, True, False]):
            texts = ["go on", "", "go on"]
            said = tuple(FeedbackSaid(name, self.choose(texts)) for name in action.due)
            self._record(action, FeedbackCollected(action.turn, action.step, said))

    def _check_completion(self, action: CheckCompletion) -> None:
        if self.choose([True, True, False]):
            reasons = self.choose([{}, {"built": "nothing was built"}])
            self._record(action, CompletionChecked(action.turn, action.step, ("built",), reasons))

    # Models

    def _model_goes_on(self, action: CallModel) -> None:
        match self.choose([*["answer"] * self.answers, *["stream"] * 2, *["fail"] * 2, "hang"]):
            case "answer":
                self._record(action, self._answer(action))
            case "stream":
                self.write([self._delta(action)])
            case "fail":
                self._record(action, self._failure())

    def _delta(self, action: CallModel) -> AnyRecord:
        here: dict[str, Any] = {"call_id": action.call_id, "attempt": action.attempt}
        match self.choose(["text", "reasoning", "tool"]):
            case "text":
                return r.MessageDelta(**here, part=1, text="so ")
            case "reasoning":
                return r.ReasoningDelta(**here, part=0, text="hm ")
        return r.MessageDelta(**here, part=2, tool="pay")

    def _failure(self) -> ModelFailed:
        kind = self.choose([*["transient"] * 6, "blocked", "recoverable", "structural"])
        error = (
            self.choose([OOPS, Failure(TOO_LONG, "too long")]) if kind == "recoverable" else OOPS
        )
        return ModelFailed(error, kind, retry_after=self.choose([0, 0, 60_000]), backoff=10)

    def _answer(self, action: CallModel) -> Answered:
        parts: list[Part] = [Reasoning("hm"), Text("here")]
        wanted: list[RequestedCall] = []
        for number in range(self.choose([0, 1, 1, 2, 3])):
            call_id = tool_call_name(action.call_id, number + 1)
            output = self.policy.typed and self.choose([False, False, True])
            tool = "final_result" if output else self.choose(sorted(TOOLS))
            args = self.choose(['{"n":1}', '{"n":2}'])
            parts.append(ToolCall(call_id, tool, args))
            wanted.append(
                RequestedCall(
                    call_id,
                    tool,
                    args_digest(tool, args),
                    asks="" if output else self.choose(["", "", "once", "always"]),
                    output=output,
                    refusal=self.choose([*[None] * 9, Failure("RETRY", "no")]),
                )
            )
        return Answered(tuple(parts), Usage(1, 1), tuple(wanted), prompt=self._prompt())

    def _prompt(self) -> tuple[r.PromptSection, ...]:
        """Sections that come, go and say something else."""
        texts = {"work": self.choose(["a", "b"]), "notes": self.choose(["a", "c", ""])}
        return tuple(
            r.PromptSection(key, section_digest(text), text) for key, text in texts.items() if text
        )

    # Tools

    def _running(self) -> list[OpenCall]:
        calls = self.lane.turn.calls.values() if self.lane.turn else ()
        return [call for call in calls if call.status == RUNNING]

    def _tools_go_on(self) -> None:
        for call in self._running():
            if self.choose([True, False]):
                self.write(self._on_the_way(call))
                action = RunTools(until=0)
                self._record(action, self._end(call))

    def _on_the_way(self, call: OpenCall) -> list[AnyRecord]:
        if self.choose([True, False]):
            return []
        step = r.ToolStepRecorded(call_id=call.call_id, name="step:one", value="1")
        return [
            r.ToolProgress(call_id=call.call_id, attempt=call.attempt, progress="1"),
            *([] if step.name in call.memo else [step]),
            *self._callbacks(call),
        ]

    def _callbacks(self, call: OpenCall) -> list[AnyRecord]:
        """Perhaps an address: the first of its wait, or another of a further attempt."""
        assert self.lane.turn is not None
        if self.choose([True, False]):
            return []
        name = "callback:1"
        known = [q for q in self.lane.turn.requests.values() if q.name == name]
        mine = [q.expires_at for q in known if q.call_id == call.call_id]
        request_id = f"cbk_{len(self.entries)}"
        if name in call.memo:
            return []
        return [
            r.CallbackOpened(
                request_id=request_id,
                call_id=call.call_id,
                attempt=call.attempt,
                name=name,
                expires_at=mine[0] if mine else self.now + self.choose([1000, HOUR]),
            )
        ]

    def _end(self, call: OpenCall) -> ToolEnd:
        name = call.call_id
        match self.choose(["raise", "retry", "cut", *["wait"] * 7, *["return"] * 4]):
            case "raise":
                return Raised(name, OOPS, backoff=10)
            case "retry":
                return Raised(name, Failure("RETRY", "other arguments"))
            case "cut":
                return Interrupted(name, "timeout")
            case "wait":
                tasks = self.choose([1, 1, 1, 2, 3])
                waits = [self._wait(call, task) for task in range(tasks)]
                return ToolWaits(name, tuple({wait.name: wait for wait in waits}.values()))
        noted = r.StateChanged(slice="Note", op="append", values=("1",))
        undone = r.StateRolledBack(slices={"Note": ()})
        options: list[r.StateChanged | r.StateRolledBack] = [noted, noted, noted, undone]
        change = self.choose(options)
        milestone = self.choose([None, EVERY_OTHER, EVERY_OTHER])
        leftovers = BufferedEffects(changes=(change,))
        return Returned(name, '"ok"', leftovers=leftovers, milestone=milestone)

    def _wait(self, call: OpenCall, task: int) -> NewWait:
        """What one task of a tool stops at: something new, or what is open already."""
        assert self.lane.turn is not None
        number = f"{len(call.memo) + 1}.{task}"
        mine = [q for q in self.lane.turn.requests.values() if q.call_id == call.call_id]
        known = [NewWait(q.name) for q in mine if q.name]
        known += [NewWait(name, due_at=due_at) for name, due_at in call.timers.items()]
        opened = any(q.kind == "callback" for q in mine)
        kinds = ["ask", "sleep", "child", "child", "authorization", *["known"] * 4 * bool(known)]
        match self.choose([*kinds, *["callback"] * 6 * opened]):
            case "known":
                return self.choose(known)
            case "ask" if self.lane.can_ask:
                expires_at = self.choose([0, self.now + 1000])
                return NewWait(f"ask:{number}", question=Question("?", expires_at=expires_at))
            case "callback":
                return NewWait("callback:1")
            case "authorization":
                asked = self._sign_in(f"aut_{len(self.entries)}_{task}")
                new = NewAuthorization(
                    asked.request_id, asked.connection, asked.url, asked.expires_at
                )
                return NewWait(f"authorization:{number}", authorization=new)
            case "child":
                session_id = f"ses_{len(self.entries)}_{task}"
                child = NewChild(session_id, "writer", (Text("write"),))
                if self.choose([True, False]):
                    child = replace(child, session_id="", url="https://far.example")
                return NewWait(f"agent:{number}", child=child)
        return NewWait(f"sleep:{number}", due_at=self.now + self.choose([1, 1000]))

    # Remote children

    def _contact(self, request_id: str) -> None:
        """Contact a remote child's server; meanwhile an answer or news may come."""
        assert self.lane.turn is not None
        child = self.lane.turn.requests.get(request_id)
        if child is None or child.remote is None or self.choose([True, False, False]):
            return
        seen = child.remote
        is_told = has_callback(self.lane.turn, child)
        contact = ChildContact(request_id=request_id, rounds=seen.rounds)
        if not is_told and self.choose([True, False]):
            contact = replace(contact, callback=f"cbk_{request_id}_{seen.rounds}")
        elif not child.child and self.choose([True, True, False]):
            contact = replace(contact, started=f"ses_there_{len(self.entries)}", told=is_told)
        if (child.child or contact.started) and self.choose([True, True, False]):
            sent = {each.request_id: self.choose(["", "", "no"]) for each in seen.answers}
            contact = replace(contact, refusals=sent, view=self._view(child))
        if self.choose([True, False]):
            self.arrive()
            if isinstance(action := self.next_action(), TakeReply):
                self.write(opening(self.lane, action, self.now))
        self._record(RunTools(until=0), contact)

    def _view(self, child: OpenRequest) -> RemoteView:
        """What a server says: it may list anything, and again what it had ceased to list."""
        if self.choose([*[False] * 5, True]):
            return RemoteView(end=self.choose([ChildEnd(value='"a poem"'), ChildEnd(error=OOPS)]))
        asked = [self._question(f"far_{n}") for n in range(3) if self.choose([True, False])]
        sign_ins = [self._sign_in("far_9")] if self.choose([True, False]) else []
        ended = self.choose([{}, {"far_9": self.choose(["completed", "denied"])}])
        return RemoteView((*asked, *([] if ended else sign_ins)), ended)

    def _ends(self) -> list[ToolEnd]:
        """Some of the calls of a stopped turn end by themselves."""
        ended = [each for each in self._running() if self.choose([0, 1])]
        return [Returned(each.call_id, '"just"', milestone=EVERY_OTHER) for each in ended]

    # The end of it

    def finish(self) -> None:
        """End the session, and let the owner do what there is left to do."""
        if not self.lane.over:
            self.write([r.CancelRequested(delivery_id="last", ends=True)])
        for _ in range(100):
            if isinstance(self.work(), Park):
                return
        raise AssertionError("the lane does not come to rest")
