"""The context of a workflow's body: that of a tool, and what only a run has.

Everything here is known by its scope, its kind and how many of it there were, as steps and waits
are, so that the body finds it again when it runs anew. What is undone in the end, and how, is in
`body.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import msgspec
from typing_extensions import TypeVar

from outlast.agents.runtime.branch import tell_progress
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.durable_wait import for_async_tools
from outlast.agents.runtime.environment import WorkflowKind
from outlast.agents.runtime.json_value import TypeMismatch, fitted, from_json, to_json
from outlast.agents.runtime.step import (
    StepRemedy,
    StepRules,
    function_name,
    step_name,
    step_rules,
)
from outlast.agents.runtime.subagent_call import check_depth
from outlast.clock import DerivedId, uuid_of
from outlast.core.instant import Span, date_of, milliseconds
from outlast.core.name import args_digest, check_id, quoted, wait_name
from outlast.core.record import (
    EventTaken,
    Failure,
    ToolEmitted,
    ToolStepRecorded,
    UndoRegistered,
)
from outlast.core.result import NewChild, NewWait
from outlast.core.setting import count_of
from outlast.core.workflow import payload_of
from outlast.errors import EventTimeout, InvalidInput, RunFailed, UnknownWorkflow

if TYPE_CHECKING:
    from outlast.workflows.workflow import Workflow

Deps = TypeVar("Deps", default=Any)
In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)


class RestartsRun(BaseException):
    """Unwinds a body that begins again. Private, and not an Exception: nothing swallows it."""

    def __init__(self, text: str) -> None:
        super().__init__("the run begins again")
        self.input = text


class Undo(NamedTuple):
    """A function that undoes what comes after it was registered."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    rules: StepRules
    title: str


class WorkflowContext(Context[Deps]):
    """The context that the body of a workflow gets.

    The body runs again from its first line after each wait and each crash; what it did through its
    context is recorded, and not done again.
    """

    _step_remedy: ClassVar[StepRemedy | None] = "report"
    _workflow: Workflow[Any, Any]
    _undos: dict[str, Undo]

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.session.id

    def _known(self, kind: str, name: str) -> tuple[str, str | None]:
        """Return what something is recorded under, and what is recorded there."""
        scope = self._waiting.scope(kind)
        key = wait_name(scope.path, kind, name, scope.count(kind, name))
        self._waiting.ask_for(key)
        known = self._waiting.call.memo.get(key)
        if known is None and self._waiting.is_undoing:
            raise self._waiting.stop_at(NewWait(key))
        return key, known

    def _derived(self, kind: str) -> bytes:
        """Return bytes that are the same whenever the body comes to this place."""
        scope, lane = self._waiting.scope(kind), self._waiting.lane
        key = wait_name(scope.path, kind, "", scope.count(kind, ""))
        begun = f"{lane.seed or lane.session}\n{self._waiting.call.restarts}\n{key}"
        return blake2b(begun.encode(), digest_size=16).digest()

    # Clock and chance

    def now(self) -> datetime:
        """Return the time as it was when the body first came to this place."""
        key, known = self._known("now", "")
        if known is None:
            known = str(self._journal.earliest())
            self._journal.note(ToolStepRecorded(call_id=self.call_id, name=key, value=known))
        return date_of(int(known))

    def random(self) -> float:
        """Return a number from 0 to 1, the same whenever the run comes here. It is not a secret."""
        return (int.from_bytes(self._derived("random")[:8], "big") >> 11) / 2**53

    def uuid(self) -> DerivedId:
        """Return an id, the same whenever this run, or one that tries it again, comes here."""
        return uuid_of(self._derived("uuid"))

    # Code that has changed

    def patched(self, name: str) -> bool:
        """Return whether this run takes the new way through a body that was changed.

        A run that was past this place before the change returns False, for good.
        """
        scope = self._waiting.scope("patched")
        key = wait_name(scope.path, "patched", quoted(check_id("name of a patch", name)), 1)
        self._waiting.ask_for(key)
        known = self._waiting.call.memo.get(key)
        if known is None:
            self._waiting.check_new(key)
            known = "false" if self._waiting.is_replaying(scope) else "true"
            self._journal.note(ToolStepRecorded(call_id=self.call_id, name=key, value=known))
        return known == "true"

    # Out

    def emit(self, name: str, data: Any = None) -> None:
        """Add an event of your own to the run's stream, once, with the next commit."""
        name = check_id("name of an event", name)
        text = to_json(data, f"{self.tool} emitted {name} with")
        key, known = self._known("emit", quoted(name))
        if known is None:
            self._journal.note(ToolEmitted(call_id=self.call_id, name=name, data=text, key=key))

    @for_async_tools
    async def progress(self, done: int, total: int) -> None:
        """Tell readers how much is done, of how much."""
        self._not_in_transaction("progress")
        count_of("done of ctx.progress", done, least=0)
        count_of("total of ctx.progress", total, least=0)
        await tell_progress(self._waiting, "", done, total)

    # In

    @for_async_tools
    async def wait_event(self, name: str, *, timeout: Span | None = None, kind: Any = Any) -> Any:
        """Wait for an event that is sent to the run, and return its payload, as a `kind`.

        The nth wait for a name gets the nth event of that name, also one that came before. Raises
        EventTimeout if none has come after `timeout`, and InvalidInput if what has come is no
        `kind`.
        """
        self._not_in_transaction("wait_event")
        about = check_id("name of an event", name)
        wait, known = self._waiting.next("event", quoted(about))
        if known is None:
            pause = f"{wait}~timeout"
            if timeout is not None and self._waiting.come_since(pause) is not None:
                raise EventTimeout(f"no event {about} came in time", event=about)
            turn = self._waiting.lane.turn
            if turn is None or not turn.events.get(about):
                new = NewWait(wait, event=about)
                if timeout is None:
                    raise self._waiting.stop_at(new)
                raise self._waiting.stop_until(pause, milliseconds(timeout), new)
            self._waiting.check_new(wait)
            self._journal.note(EventTaken(call_id=self.call_id, name=wait, event=about))
            known = self._waiting.call.memo.get(wait)
            assert known is not None
        try:
            return from_json(payload_of(known)) if kind is Any else fitted(payload_of(known), kind)
        except TypeMismatch as why:  # whoever sent it may send anything
            raise InvalidInput(f"the event {about} does not fit: {why}", event=about) from why

    # Children

    @for_async_tools
    async def run(
        self,
        workflow: Workflow[In, Out] | str,
        input: In | None = None,
        *,
        name: str | None = None,
    ) -> Out:
        """Start a run of another workflow, wait for its end, and return its output.

        It is known by the workflow and its input, or by a `name`. RunFailed is raised if it errors.
        """
        self._not_in_transaction("run")
        found = self._kind_of(workflow)
        text = found.input_text(input)
        known_as = f"={args_digest(found.name, text)[:20]}"
        if name is not None:
            known_as = f"{quoted(found.name)}:{quoted(check_id('name of a wait', name))}"
        wait, known = self._waiting.next("run", known_as)
        if known is not None:
            came: Out = self._come_to(found, known)
            return came
        if self._waiting.has_begun(wait):
            raise self._waiting.stop_at(NewWait(wait))
        check_depth(found.name, self._waiting.lane.depth, self._max_depth)
        child = NewChild(
            self._journal.new_id("run"), found.name, (), found.outbox, queue=found.queue, input=text
        )
        raise self._waiting.stop_at(NewWait(wait, child=child))

    def _kind_of(self, workflow: Workflow[Any, Any] | str) -> WorkflowKind:
        name = workflow if isinstance(workflow, str) else workflow.name
        found = self._environment.workflows.get(name)
        if found is None:
            known = ", ".join(sorted(self._environment.workflows)) or "none"
            raise UnknownWorkflow(
                f"this app has no workflow {name!r}; it has: {known}", workflow=name
            )
        return found

    def _come_to(self, workflow: WorkflowKind, known: str) -> Any:
        came = msgspec.json.decode(known)
        if error := came.get("error"):
            failure = msgspec.convert(error, Failure)
            raise RunFailed(f"{workflow.name} failed: {failure.code}: {failure.message}")
        return workflow.output_of(came["value"])

    # The history

    def restart(self, input: Any = None) -> NoReturn:
        """Begin again in the same run with another input and an empty history.

        A body that goes on for ever needs this: each park replays the whole history.
        """
        text = self._workflow.input_text(input)
        self._waiting.scope("restart")
        if self._waiting.call.undos:
            raise InvalidInput(
                "ctx.restart would forget what ctx.on_undo has registered: end the run instead, and"
                " have it started anew"
            )
        raise RestartsRun(text)

    # Undo

    def on_undo(
        self,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        max_attempts: int = 1,
        timeout: Span | None = None,
        on_interrupt: StepRemedy | None = None,
        transactional: bool = False,
    ) -> None:
        """Have a function called if the run fails or is cancelled. Call this before the step.

        It is recorded with the step's start, so it is called also if that step may not have
        happened. The functions are called in reverse order, each as a step with these options. If
        one fails, the run ends as UNDO_FAILED, and a retry of the run goes on with the undo.
        """
        rules = step_rules(
            self._step_remedy,
            on_interrupt,
            max_attempts,
            timeout,
            readonly=False,
            transactional=transactional,
        )
        scope = self._waiting.scope("on_undo")
        known_as = step_name(function, args, name)
        key = wait_name(scope.path, "undo", known_as, scope.count("undo", known_as))
        title = name or function_name(function)
        if key not in self._waiting.call.undos:
            if self._waiting.is_undoing:
                raise self._waiting.stop_at(NewWait(key))
            self._journal.note(UndoRegistered(call_id=self.call_id, name=key, title=title))
        self._undos[key] = Undo(function, args, rules, title)
