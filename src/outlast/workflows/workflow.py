"""A workflow: an async function with typed input and output, and how its runs behave.

Owns the decorator `workflow`, the reading and writing of a run's input and output, and the policy
that the engine carries a run by. Refuses to know what the body does: it is run by `body.py`, and
speaks to the log through `context.py`.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import TypeVar

from outlast.agents.agent import digest_of
from outlast.agents.limit import Limit, checked_limit
from outlast.agents.return_type import ReturnType, name_of
from outlast.agents.runtime.json_value import findings, from_json, to_json
from outlast.agents.schema import summary, takes, type_hints
from outlast.agents.subagent import MAX_DEPTH
from outlast.agents.tool import checked_name
from outlast.core.instant import Span
from outlast.core.policy import Policy, ToolPolicy
from outlast.core.queue import check_queue
from outlast.core.setting import count_of, seconds_of
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.workflows.body_check import warn_of
from outlast.workflows.context import WorkflowContext

In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)

NO_INPUT = "null"
EVER = 1000 * 365 * 86_400_000
"""The active time of a run that has no `timeout`, in milliseconds."""


class Workflow(Generic[In, Out]):
    """An async function that is run durably. `@workflow` makes it; `app.run` starts it."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Out]],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: Span | None = None,
        limit: Limit | None = None,
        queue: str | None = None,
        max_crashes: int = 10,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise InvalidDefinition(
                f"a workflow is an async function, not {function!r:.80}: write `async def`"
            )
        self.function = function
        self.name = checked_name(name, function, "workflow")
        self.description = description or summary(function)
        hints = type_hints(function, self.name)
        self.input_type = self._input_type(hints)
        self.output_type: Any = hints.get("return", Any)
        self.returns = ReturnType(self.output_type)
        self._input = self._adapter(self.input_type)
        self._has_sets = "'uniqueItems'" in str(shape_of(self.input_type))
        self.limit = checked_limit(f"the limit of {self.name}", limit)
        self.queue = check_queue(queue) if queue else ""
        self.max_depth = count_of("max_depth", max_depth, least=0)
        active = EVER
        if timeout is not None:
            active = int(seconds_of(f"the timeout of {self.name}", timeout) * 1000)
        self.policy = Policy(
            max_crashes=count_of("max_crashes", max_crashes),
            turn_timeout=active,
            at_once=self.limit.concurrency if self.limit else 0,
            # What its body has done is known step by step, so the body is simply run again.
            tools={self.name: ToolPolicy(on_interrupt="rerun")},
        )
        warn_of(function, self.name)

    def _input_type(self, hints: dict[str, Any]) -> Any:
        parameters = list(inspect.signature(self.function).parameters.values())
        if not parameters or not takes(WorkflowContext, hints.get(parameters[0].name)):
            raise InvalidDefinition(
                f"the first argument of the workflow {self.name} is its context:"
                f" async def {self.name}(ctx: WorkflowContext, …)"
            )
        if len(parameters) > 2:
            names = ", ".join(each.name for each in parameters[1:])
            raise InvalidDefinition(
                f"the workflow {self.name} takes {names}: a run has one input, so make these the"
                " fields of one class"
            )
        self.takes_input = len(parameters) == 2
        if not self.takes_input:
            return None
        given = parameters[1]
        if given.kind in (given.VAR_POSITIONAL, given.VAR_KEYWORD, given.KEYWORD_ONLY):
            raise InvalidDefinition(
                f"the workflow {self.name} takes its input by place: (ctx, {given.name})"
            )
        self._has_default = given.default is not given.empty
        if given.name not in hints:
            raise InvalidDefinition(
                f"the workflow {self.name} does not say what type {given.name} is: add a type hint"
            )
        return hints[given.name]

    def _adapter(self, kind: Any) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(kind)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise InvalidDefinition(
                f"the input of the workflow {self.name} cannot be read from JSON: {error}"
            ) from error

    def __repr__(self) -> str:
        return f"Workflow({self.name!r})"

    def __call__(self, *args: Any, **named: Any) -> Awaitable[Out]:
        return self.function(*args, **named)

    def digests(self) -> dict[str, str]:
        """Return digests of what its callers see: its input and its output."""
        parts = {
            f"{self.name}.input": digest_of(shape_of(self.input_type)),
            f"{self.name}.output": digest_of(shape_of(self.output_type)),
        }
        return {**parts, self.name: digest_of([self.description, sorted(parts.items())])}

    def input_text(self, given: Any) -> str:
        """Return a run's input as JSON text. Raises InvalidInput if the body cannot take it."""
        if not self.takes_input:
            if given is not None:
                raise InvalidInput(f"the workflow {self.name} takes no input")
            return NO_INPUT
        # By this text a child of a run is known, and one start from another of its dispatch.
        text = to_json(given, f"the input of {self.name} is", stable=self._has_sets)
        self.parse(text)
        return text

    def parse(self, text: str) -> Any:
        """Return a run's input as the body takes it."""
        try:
            return self._input.validate_json(text)
        except ValidationError as error:
            raise InvalidInput(
                f"this is no input of the workflow {self.name}: {findings(error)}",
                workflow=self.name,
            ) from None

    def output_of(self, text: str) -> Out:
        """Return the output of a run from its JSON text."""
        kind = self.output_type
        found: Out = from_json(text, Any if kind in (None, type(None)) else kind)
        return found


def shape_of(kind: Any) -> Any:
    """Return the schema of a type, or its name where it has none."""
    try:
        return TypeAdapter(kind).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError):
        return name_of(kind)


class WorkflowDecorator(Protocol):
    """The decorator that `workflow(…)` returns."""

    @overload
    def __call__(
        self, function: Callable[[WorkflowContext[Any], In], Awaitable[Out]], /
    ) -> Workflow[In, Out]: ...
    @overload
    def __call__(
        self, function: Callable[[WorkflowContext[Any]], Awaitable[Out]], /
    ) -> Workflow[None, Out]: ...


@overload
def workflow(
    function: Callable[[WorkflowContext[Any], In], Awaitable[Out]], /
) -> Workflow[In, Out]: ...


@overload
def workflow(
    function: Callable[[WorkflowContext[Any]], Awaitable[Out]], /
) -> Workflow[None, Out]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: Span | None = None,
    limit: Limit | None = None,
    queue: str | None = None,
    max_crashes: int = 10,
    max_depth: int = MAX_DEPTH,
) -> WorkflowDecorator: ...


def workflow(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make an async function a workflow: `async def report(ctx, input: In) -> Out`.

    The body runs again from its first line after each wait and each crash; what it did through its
    context is recorded, and not done again. `timeout` bounds its active time, without waits;
    `limit` bounds how many of its runs go on at once. They stand in the `queue`, whose settings are
    in the store, unless a start names another.
    """
    if function is not None:
        return Workflow(function)
    return lambda function: Workflow(function, **options)
